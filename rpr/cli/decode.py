"""rpr.cli.decode"""
import os

from rpr.inference.file_decoder import _decode_file, _estimator
from rpr.t2t import launcher, trained_model
from rpr.utils import metrics_log, processes
from rpr.utils.errors import UserError


def main(argv, logs):
    """`rpr decode`, with the flags of t2t-decoder and those defined here."""
    import tensorflow.compat.v1 as tf
    from absl import flags as absl_flags
    from tensor2tensor.bin import t2t_decoder
    from tensor2tensor.utils import trainer_lib

    from rpr.inference import ensemble, progress
    absl_flags.DEFINE_string("test_set", None, "Decode the source of a test set that `sacrebleu "
                             "--list` knows, such as wmt14/full; with --language_pair.")
    absl_flags.DEFINE_string("language_pair", None, "Of --test_set, such as en-de.")
    absl_flags.DEFINE_string("metrics_file", None, "Where sentences/s and tokens/s are written, a "
                             "JSON object a line (default: metrics.jsonl in --output_dir).")
    absl_flags.DEFINE_list("ensemble", None, "Directories of runs (the averaged checkpoint counts) "
                           "or of models, separated by commas: the mean of their probabilities "
                           "decides, at each step. They need one vocabulary, no more.")
    absl_flags.DEFINE_string("decode_part", None, "K/N, given by rpr decode --worker_gpu=N to the "
                             "processes that it starts.")
    flags, rest = launcher.parse(argv, "t2t-decoder")
    if rest:
        raise UserError(f"{rest[0]}: no such flag (--help lists them)")
    models = _members(flags) if flags.ensemble else [trained_model.find_trained_model(flags)]
    hparams, output_dir = models[0].hparams, models[0].hparams.model_dir
    try:
        decode_hparams = t2t_decoder.create_decode_hparams()
    except (ValueError, KeyError) as error:
        raise UserError(f"--decode_hparams={flags.decode_hparams}: {error}") from None
    _check_devices(flags.worker_gpu)
    _take_shard(flags, decode_hparams)
    if flags.test_set:
        for name in ("language_pair", "decode_to_file"):
            if not flags[name].value:
                raise UserError(f"--{name} is missing")
        flags.decode_from_file = _test_set_file(flags.test_set, flags.language_pair)
    elif flags.decode_from_file:
        if not os.path.exists(flags.decode_from_file):
            raise UserError(f"--decode_from_file={flags.decode_from_file}: there is no such file")
        if not os.path.getsize(flags.decode_from_file):
            raise UserError(f"--decode_from_file={flags.decode_from_file}: it is empty")
    if logs and not flags.ensemble:
        logs.keep(os.path.join(output_dir, "decode.log"))
    tf.logging.set_verbosity(tf.logging.INFO)
    trainer_lib.set_random_seed(flags.random_seed)
    if flags.score_file and not flags.ensemble:
        t2t_decoder.main(None)
        return
    in_batches = (flags.decode_from_file and flags.decode_to_file
                  and "inputs" in hparams.problem_hparams.vocabulary)
    if flags.worker_gpu > 1 and not in_batches:
        raise UserError(f"--worker_gpu={flags.worker_gpu}: several devices decode "
                        "--decode_from_file to --decode_to_file, or a --test_set")
    if flags.ensemble:
        if not in_batches:
            raise UserError("--ensemble: it decodes --decode_from_file, or a --test_set, to "
                            "--decode_to_file")
        estimator = ensemble.estimator(models, decode_hparams)
    else:
        estimator = _estimator(flags, models[0], decode_hparams)
    if in_batches:
        record = _decode_file(argv, flags, models, estimator, decode_hparams)
    else:
        watched = progress.WatchedEstimator(estimator, None)
        t2t_decoder.decode(watched, hparams, decode_hparams)
        record = watched.record()
    if record and (flags.metrics_file or not flags.ensemble):
        metrics_log.append(flags.metrics_file or os.path.join(output_dir, launcher.METRICS_FILE), "decode",
                       **record)


def _members(flags):
    """The models of --ensemble, which says all that other flags say of one model."""
    for name in ("output_dir", "checkpoint_path", "model", "hparams_set", "hparams", "problem"):
        if flags[name].value:
            raise UserError(f"--{name}={flags[name].value}: not with --ensemble, whose directories "
                            "say it")
    from rpr.inference import ensemble
    return ensemble.members(flags.ensemble, flags.data_dir)


def _check_devices(count):
    import tensorflow.compat.v1 as tf
    gpus = len(tf.config.list_physical_devices("GPU"))
    if gpus and count > gpus:                         # without any, processes share the CPU
        raise UserError(f"--worker_gpu={count}: {gpus} GPUs are visible")


def _take_shard(flags, decode_hparams):
    """Names the files of the shard that --decode_shards asks for: T2T's in000, in001, ..."""
    from tensor2tensor.utils import decoding
    if decode_hparams.shards == 1:
        return
    if flags.test_set:
        raise UserError(f"--decode_shards={flags.decode_shards}: shards are of --decode_from_file, "
                        "not of a --test_set")
    if flags.decode_from_file:
        for name in ("decode_from_file", "decode_to_file"):
            if flags[name].value:
                flags[name].value = decoding._add_shard_to_filename(
                    flags[name].value, decode_hparams)
        decode_hparams.shards = 1


def _test_set_file(name, pair):
    """The source of a sacreBLEU test set as a file for T2T's decoder."""
    from rpr.evaluation import test_sets
    source = test_sets.test_set_source(name, pair)
    path = os.path.join(processes.temporary_directory("test-set"), "source")
    with open(path, "w", encoding="utf-8") as out:
        out.writelines(line + "\n" for line in source)
    return path
