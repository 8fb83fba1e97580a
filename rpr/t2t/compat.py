"""Makes tensor2tensor 1.15.7 run on TensorFlow 2.15, NumPy 1.26 and Python 3.11.

Only this file patches other libraries. Each patch is a function whose docstring says what breaks
without it. `install()` calls them in order, before the first import of tensor2tensor.
"""
import importlib
import importlib.util
import os
import sys
import types
from collections.abc import Callable
from typing import Any

from rpr.t2t import optimizers
from rpr.utils.errors import UserError
from rpr.utils.interfaces import HParams, Problem


class ImportOrderError(RuntimeError):
    """`install` was called after tensor2tensor was imported or TensorFlow ran eagerly."""


_installed = False


def install() -> None:
    """Prepares TensorFlow and tensor2tensor. A second call does nothing.

    Raises ImportOrderError if tensor2tensor was imported before, or TensorFlow 2 code has run.
    """
    global _installed
    if _installed:
        return
    if "tensor2tensor" in sys.modules:
        raise ImportOrderError("rpr: tensor2tensor was imported in TensorFlow 2 mode, in which "
                               "towers do not share their weights and decoding fails: use this "
                               "project's commands (t2t-trainer, t2t-decoder, ..., rpr train, rpr "
                               "decode, ...), or call rpr.register() before tensor2tensor is "
                               "imported")
    if "tensorflow" in sys.modules:
        from tensorflow.python.eager import context
        eager = context.context_safe()
        if context.executing_eagerly() and eager and eager._initialized:
            raise ImportOrderError("rpr: TensorFlow has run eagerly in this process, and T2T "
                                   "needs graph mode, which would change how that code works: "
                                   "call rpr first, or in a process of its own")
    # XLA's default is ./cuda_sdk_lib: in somebody else's directory, that runs their programs.
    os.environ.setdefault("XLA_FLAGS", f"--xla_gpu_cuda_data_dir={sys.prefix}")
    # By default TensorFlow uses oneDNN only on processors with AVX512_VNNI and the like.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    _numpy_aliases()
    _tensorflow_aliases()
    _tensorflow_1_behavior()
    _absent_modules()
    _slow_modules()
    _unicode_tables()
    _translation_path()
    _contrib()
    _no_autograph()
    _examples_in_place()
    _ordered_input()
    _tokens_of_all_replicas()
    _a_step_is_an_update()
    _batch_of_each_tower()
    _evaluation_without_batches()
    _beams_below_vocabulary()
    _packed_language_models()
    _installed = True


def _numpy_aliases() -> None:
    """T2T's readers and metrics use np.bool, np.int, ..., which NumPy 1.24 removed."""
    import numpy as np
    for kind in (bool, int, float, object, str):
        if kind.__name__ not in np.__dict__:
            setattr(np, kind.__name__, kind)


def _tensorflow_aliases() -> None:
    """tf_slim 1.1 takes Tensor and IndexedSlices from framework.ops, where TF 2.15 has neither.
    Without them optimize_loss fails at the first training step."""
    from tensorflow.python.framework import indexed_slices, ops, tensor
    ops.Tensor = tensor.Tensor
    ops.IndexedSlices = indexed_slices.IndexedSlices


def _tensorflow_1_behavior() -> None:
    """In TF2 mode common_layers.layers() returns Keras layers. Then every tower of --worker_gpu=N
    and every eager call trains its own weights. Control flow v2 breaks beam search ("Tensor is
    unhashable"), and avg_all, avg_checkpoints and --score_file fail on tf.placeholder()."""
    import tensorflow.compat.v1 as tf
    verbosity = tf.logging.get_verbosity()
    tf.logging.set_verbosity(tf.logging.ERROR)        # the call logs a deprecation warning
    tf.disable_v2_behavior()
    tf.logging.set_verbosity(verbosity)


def _absent_modules() -> None:
    """T2T imports these modules at its top level, but translation never calls them. They are not
    installed: ModuleNotFoundError at import."""
    _stand_in("tensorflow_addons", optimizers=types.SimpleNamespace(LazyAdam=None))
    _stand_in("googleapiclient", discovery=None)
    _stand_in("oauth2client")
    _stand_in("oauth2client.client", GoogleCredentials=None)


def _slow_modules() -> None:
    """T2T imports these modules at every start, although it needs them for some losses and audio
    only. They are imported when first used."""
    _deferred("tensorflow_probability")
    _deferred("scipy.signal")


def _unicode_tables() -> None:
    """At import T2T looks up the category of every code point three times, which takes about 1.5 s.
    All letters, numbers, punctuation and symbols are in the first planes."""
    last, sys.maxunicode = sys.maxunicode, 0x40000
    try:
        importlib.import_module("tensor2tensor.data_generators.tokenizer")
        importlib.import_module("tensor2tensor.utils.bleu_hook")
    finally:
        sys.maxunicode = last


def _translation_path() -> None:
    """tensor2tensor.models and .problems import every model and every data set, which is slow, and
    some cannot be imported any more. The stand-ins look up registered names only;
    `rpr.t2t.registration` imports the rest when a name is not registered."""
    import tensor2tensor
    from tensor2tensor.utils import registry
    root = os.path.dirname(tensor2tensor.__file__)
    _stand_in("tensor2tensor.models", model=registry.model).__path__ = [
        os.path.join(root, "models")]
    _stand_in("tensor2tensor.problems", problem=registry.problem,
              available=registry.list_base_problems)
    if importlib.util.find_spec("gym") is None:       # t2t-datagen uses it for RL problems only
        _stand_in("tensor2tensor.envs")
        _stand_in("tensor2tensor.envs.env_problem_utils")


def _contrib() -> None:
    """tensor2tensor.utils.contrib uses tf.contrib, which TF2 removed. On TF2 it takes Keras
    optimizers (no colocation with the towers, no TF1 Saver slots), and its RunConfig deletes the
    same keys twice (KeyError). Its TF1 branches work if the names of tf.contrib that they use
    exist."""
    import tensorflow.compat.v1 as tf
    from tensor2tensor.utils import contrib
    from tensorflow.python.framework import tensor_util
    from tensorflow.python.ops import nn_ops
    from tensorflow.python.training import checkpoint_utils
    from tensorflow.python.util import nest
    namespace = types.SimpleNamespace

    def run_config(master: Any = None, evaluation_master: Any = None, **kwargs: Any) -> Any:
        del master, evaluation_master                # TF2's RunConfig reads them from TF_CONFIG
        return tf.estimator.RunConfig(**kwargs)

    lazy_adam = optimizers.lazy_adam()
    modules = {
        "framework": namespace(
            nest=nest, argsort=tf.argsort, sort=tf.sort, name_scope=tf.name_scope, arg_scope=None,
            get_name_scope=lambda: tf.get_default_graph().get_name_scope(),
            deprecated=contrib.deprecated, load_checkpoint=tf.train.load_checkpoint,
            get_trainable_variables=tf.trainable_variables),
        "learn": namespace(RunConfig=run_config, monitors=namespace(
            replace_monitors_with_hooks=contrib.replace_monitors_with_hooks)),
        "summary": namespace(scalar=lambda *args, **kwargs: None),
        "opt": namespace(LazyAdam=lazy_adam, LazyAdamOptimizer=lazy_adam),
        "training": namespace(wait_for_new_checkpoint=checkpoint_utils.wait_for_new_checkpoint,
                              checkpoints_iterator=tf.train.checkpoints_iterator),
        "distribute": namespace(MirroredStrategy=tf.distribute.MirroredStrategy),
        "util": namespace(constant_value=tensor_util.constant_value),
        "nn": namespace(nth_element=nn_ops.nth_element),
        "mixed_precision": namespace(
            ExponentialUpdateLossScaleManager=optimizers.loss_scale,
            LossScaleOptimizer=tf.mixed_precision.MixedPrecisionLossScaleOptimizer),
    }
    for name, module in modules.items():
        setattr(contrib, name, lambda msg="err", module=module: module)
    contrib.is_tf2 = False


def _no_autograph() -> None:
    """AutoGraph rewrites the source of a Keras layer's `call`, which T2T models have, of the
    functions of a data set, and of all that they call. This takes most of the time of building a
    graph, and is only needed for Python control flow over tensors, which T2T does not have."""
    import tensorflow.compat.v1 as tf
    from tensor2tensor.data_generators import problem
    from tensor2tensor.utils import t2t_model
    not_converted = tf.autograph.experimental.do_not_convert
    t2t_model.T2TModel.call = not_converted(t2t_model.T2TModel.call)
    problem.Problem.input_fn = not_converted(problem.Problem.input_fn)


def _examples_in_place() -> None:
    """T2T makes a data set of each example and reads it in a thread, which takes two fifths of the
    input pipeline's time. This is needed only if one example becomes several."""
    import tensorflow.compat.v1 as tf
    from tensor2tensor.data_generators import problem
    preprocess = problem.Problem.preprocess

    @tf.autograph.experimental.do_not_convert
    def in_place(self: Problem, dataset: tf.data.Dataset, mode: str, hparams: HParams,
                 interleave: bool = True) -> tf.data.Dataset:
        mapped = dataset.map(lambda example: self.preprocess_example(example, mode, hparams))
        if isinstance(tf.data.get_output_classes(mapped), tf.data.DatasetSpec):
            return preprocess(self, dataset, mode, hparams, interleave)
        return mapped

    problem.Problem.preprocess = in_place


def _ordered_input() -> None:
    """T2T lets threads decide which file is read next (sloppy=True), and skips a random number of
    records whenever it starts to read: no two trainings would see the same batches."""
    import functools

    import tensorflow.compat.v1 as tf
    from tensor2tensor.data_generators import problem
    interleave = tf.data.experimental.parallel_interleave

    @functools.wraps(interleave)
    def ordered_interleave(*args: Any, sloppy: bool = False, **kwargs: Any) -> Any:
        return interleave(*args, sloppy=False, **kwargs)

    tf.data.experimental.parallel_interleave = ordered_interleave
    problem.Problem.skip_random_fraction_when_training = False


def _tokens_of_all_replicas() -> None:
    """A replica of a tf.distribute strategy divides its loss by its own tokens before the mean over
    replicas, so that a token in a smaller batch has more weight. T2T's towers, and one device with
    the whole batch, divide the sum of all losses by the number of all tokens."""
    import tensorflow.compat.v1 as tf
    from tensor2tensor.utils import t2t_model
    average = t2t_model.average_sharded_losses

    def average_sharded_losses(sharded_losses: list[dict[str, Any]]) -> dict[str, tf.Tensor]:
        replica = tf.distribute.get_replica_context()
        if not replica or replica.num_replicas_in_sync == 1:
            training: list[Any] = [shard.get("training") for shard in sharded_losses]
            if all(isinstance(loss, tuple) for loss in training):
                tf.add_to_collection(optimizers.TOKENS,
                                     tf.add_n([tokens for _, tokens in training]))
            return average(sharded_losses)
        losses = {}
        for name in sorted(sharded_losses[0]):
            (loss,) = (shard[name] for shard in sharded_losses)
            if isinstance(loss, tuple):
                total, tokens = loss
                mean = replica.all_reduce(tf.distribute.ReduceOp.MEAN, tokens)
                loss = total / tf.maximum(1.0, mean)
            losses[name] = loss
        return losses

    t2t_model.average_sharded_losses = average_sharded_losses


def _a_step_is_an_update() -> None:
    """T2T's multistep_adam counts batches as steps, so that the learning rate follows fractions of
    updates and every setting in steps has to be multiplied. It also averages the gradients of the
    batches; see `optimizers.multistep_adam`."""
    import tensorflow.compat.v1 as tf
    from tensor2tensor.utils import learning_rate, multistep_optimizer
    multistep_optimizer.MultistepAdamOptimizer = optimizers.multistep_adam()
    learning_rate._global_step = lambda hparams: tf.cast(tf.train.get_or_create_global_step(),
                                                         tf.float32)


def _batch_of_each_tower() -> None:
    """With use_fixed_batch_size, T2T's towers share one batch. Otherwise batch_size is that of each
    tower."""
    import tensorflow.compat.v1 as tf
    from tensor2tensor.utils import data_reader, hparams_lib
    input_fn = data_reader.input_fn

    def for_all_towers(*args: Any, config: Any = None, **kwargs: Any) -> Any:
        *before, mode, hparams = args
        towers = getattr(config, "data_parallelism", None)
        if hparams.use_fixed_batch_size and towers and mode == tf.estimator.ModeKeys.TRAIN:
            hparams = hparams_lib.copy_hparams(hparams)
            hparams.batch_size *= towers.n
        return input_fn(*before, mode, hparams, config=config, **kwargs)

    data_reader.input_fn = for_all_towers


def _beams_below_vocabulary() -> None:
    """T2T's beam search extends finished hypotheses if the beam is at least as large as the
    vocabulary, since it finds too few open ones: duplicates and wrong scores."""
    import functools

    from tensor2tensor.utils import beam_search
    search = beam_search.beam_search

    @functools.wraps(search)
    def checked(symbols_to_logits_fn: Any, initial_ids: Any, beam_size: int, decode_length: Any,
                vocab_size: int, *args: Any, **kwargs: Any) -> Any:
        if beam_size >= vocab_size:
            raise UserError(f"beam_size={beam_size}: must be less than the {vocab_size} target "
                            "symbols for T2T's search")
        return search(symbols_to_logits_fn, initial_ids, beam_size, decode_length, vocab_size,
                      *args, **kwargs)

    beam_search.beam_search = checked


def _packed_language_models() -> None:
    """T2T packs sources and targets, also where the examples of a language model have no source."""
    from tensor2tensor.data_generators import generator_utils
    pack = generator_utils.pack_dataset

    generator_utils.pack_dataset = lambda dataset, length, keys, use_custom_ops: pack(
        dataset, length, [key for key in keys if key in dataset.element_spec], use_custom_ops)


def _evaluation_without_batches() -> None:
    """Estimator's loss of an evaluation is the mean of the batches' means, and T2T's approximate
    BLEU, ROUGE and accuracy per sentence count padding. So all four change with batch_size."""
    from tensor2tensor.utils import metrics
    from tensorflow_estimator.python.estimator import estimator

    from rpr.t2t import evaluation_metrics
    create, verify = metrics.create_evaluation_metrics, estimator._verify_and_create_loss_metric

    def create_evaluation_metrics(problems: list[Problem], model_hparams: HParams
                                  ) -> dict[str, Any]:
        return {name: evaluation_metrics.OF_SENTENCES.get(name.rpartition("/")[2], metric)
                for name, metric in create(problems, model_hparams).items()}

    def verify_and_create_loss_metric(eval_metric_ops: dict[str, Any], loss: Any,
                                      distribution: Any = None) -> dict[str, Any]:
        metrics_with_loss = verify(eval_metric_ops, loss, distribution)
        per_token = evaluation_metrics.loss_per_token(metrics_with_loss)
        return metrics_with_loss | ({"loss": per_token} if per_token else {})

    metrics.METRICS_FNS["accuracy_per_sequence"] = evaluation_metrics.accuracy_per_sequence
    metrics.create_evaluation_metrics = create_evaluation_metrics
    estimator._verify_and_create_loss_metric = verify_and_create_loss_metric


def read_bleu_texts_with(read_lines: Callable[[str], list[str]]) -> None:
    """Makes t2t-bleu read files with `read_lines`.

    T2T counts what follows the last newline as a line, and a byte order mark as a word.
    """
    from tensor2tensor.utils import bleu_hook

    def bleu_wrapper(ref_filename: str, hyp_filename: str, case_sensitive: bool = False) -> float:
        expected, translated = ([
            bleu_hook.bleu_tokenize(line if case_sensitive else line.lower())
            for line in read_lines(path)] for path in (ref_filename, hyp_filename))
        if len(expected) != len(translated):
            raise UserError(f"{hyp_filename}: {len(translated):,} lines, but the reference "
                            f"{ref_filename} has {len(expected):,}")
        return bleu_hook.compute_bleu(expected, translated)

    bleu_hook.bleu_wrapper = bleu_wrapper


def _attach(name: str, module: types.ModuleType) -> types.ModuleType:
    """Makes a module available as `import name` and `parent.name`."""
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], child, module)
    return module


def _stand_in(name: str, **attributes: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__path__ = []                             # a package, so that submodules may be attached
    module.__dict__.update(attributes)
    return _attach(name, module)


class _Deferred(types.ModuleType):
    """Imports the module of its name when an attribute is first accessed."""

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), attribute)


def _deferred(name: str) -> None:
    if name not in sys.modules:
        module = _Deferred(name)
        module.__path__ = []
        _attach(name, module)
