"""Hparams without an effect leave the graph of a training unchanged; the others change it."""
from pathlib import Path

import pytest
import tensorflow.compat.v1 as tf
import tiny_models
from tensor2tensor.utils import registry

from rpr.cli import run
from rpr.experiments import config, gin_files, run_directory
from rpr.models import declarations, live_hparams, transformer
from rpr.models import seq2seq as _seq2seq  # noqa: F401  registers qkv_seq2seq
from rpr.t2t import preflight, registration, trained_model
from rpr.utils import console, interfaces
from rpr.utils.errors import UserError

OTHER = {"learning_rate_decay_scheme": "exp", "learning_rate_boundaries": [3],
         "learning_rate_multiples": [0.5], "learning_rate_minimum": 0.1,
         "scheduled_sampling_method": "sequential", "scheduled_sampling_warmup_schedule": "linear",
         "optimizer_adafactor_decay_type": "adam", "moe_hidden_sizes": "16",
         "area_key_mode": "mean", "area_value_mode": "sum", "rotary_scaling": "linear",
         "rotary_scaling_factor": 2.0, "rotary_long_factors": "1;2", "alibi_directions": "heads",
         "abacus_symbols": "3-4", "coupling_symbols": "3-4", "bipe_separators": "5",
         "parameter_attention_key_channels": 8, "num_hidden_layers": 3, "norm_type": "noam",
         "layer_preprocess_sequence": "d", "layer_postprocess_sequence": "a",
         "layer_prepostprocess_dropout_broadcast_dims": "1", "pretrained_model_dir": "x",
         "attention_dropout_broadcast_dims": "0", "relu_dropout_broadcast_dims": "1",
         "mixed_precision_optimizer_loss_scaler": "none", "position": "sinusoid",
         "position_features": "x",
         "max_relative_position_left": 3, "max_relative_position_right": 3}


@pytest.mark.parametrize("method, beam_size, is_ensemble, says", [
    ("random", 4, False, ["sampling_method=random has no effect with beam_size=4; "]),
    ("random", 1, True, ["sampling_method=random has no effect in an ensemble"]),
    ("random", 1, False, []), ("argmax", 4, False, [])])
def test_a_sampling_method_that_a_search_does_not_read_is_named(monkeypatch, method, beam_size,
                                                                is_ensemble, says):
    lines = []
    monkeypatch.setattr(console, "say", lambda line, style: lines.append(line))
    preflight.say_if_nothing_is_sampled({"sampling_method": method}, beam_size, is_ensemble)
    assert [line[:len(start)] for line, start in zip(lines, says, strict=True)] == says


def changed(hparams, names):
    """The hparams with another valid value for each of the names."""
    for name in names:
        value = hparams.get(name)
        if isinstance(value, bool):
            other = not value
        else:
            other = OTHER.get(name) or (value / 2 + 0.25 if isinstance(value, float) else
                                        (value or 0) + 1)
        hparams.set_hparam(name, other)
    return hparams


def rate_graph(hparams):
    with tf.Graph().as_default() as graph:
        tf.train.create_global_step()
        hparams.train_steps = 100
        transformer.learning_rate(hparams)
    return graph.as_graph_def()


def new_hparams(hparams_set="rpr_tiny", **values):
    hparams = registry.hparams(hparams_set)
    hparams.add_hparam("train_steps", 100)
    for name, value in values.items():
        hparams.set_hparam(name, value)
    return hparams


@pytest.mark.parametrize("schedule", [
    *live_hparams.FACTORS, "constant*linear_warmup*rsqrt_decay"])
def test_a_rate_reads_exactly_what_is_said(schedule):
    settings = {"learning_rate_schedule": schedule, "learning_rate_warmup_steps": 10}
    dead = [name for name in live_hparams.without_effect("transformer", new_hparams(**settings))
            if name.startswith("learning_rate")]
    graph = rate_graph(new_hparams(**settings))
    assert rate_graph(changed(new_hparams(**settings), dead)) == graph
    every = {name for group in live_hparams.FACTORS.values() for name in group}
    for name in every - set(dead):
        assert rate_graph(changed(new_hparams(**settings), [name])) != graph, name


@pytest.mark.parametrize("scheme", ["exp", "cosine", "noam", "sqrt"])
def test_a_decay_scheme_reads_exactly_what_is_said(scheme):
    settings = {"learning_rate_schedule": "legacy", "learning_rate_decay_scheme": scheme,
                "learning_rate_warmup_steps": 10}
    dead = [name for name in live_hparams.without_effect("transformer", new_hparams(**settings))
            if name.startswith("learning_rate")]
    graph = rate_graph(new_hparams(**settings))
    assert rate_graph(changed(new_hparams(**settings), dead)) == graph
    for name in live_hparams._DECAY_SCHEMES.get(scheme, ()):
        assert rate_graph(changed(new_hparams(**settings), [name])) != graph, name


def training_graph(hparams, model="rpr_transformer", has_source=True):
    """The operations of a training step, without texts: hparams and addresses of objects."""
    ids = tiny_models.sentences([4, 3])
    with tf.Graph().as_default() as graph:
        tf.set_random_seed(1)
        tf.train.create_global_step()
        model = tiny_models.make(hparams, "train", model)
        features = tiny_models.features(ids, ids)
        if not has_source:
            del model._problem_hparams.modality["inputs"], features["inputs"]
        _, losses = model(features)
        model.optimize(losses["training"])
    nodes = graph.as_graph_def().node
    for node in nodes:
        node.attr.pop("_gradient_op_type", None)      # a new name for each gradient function
    return [node for node in nodes if node.attr["dtype"].type != tf.string.as_datatype_enum]


@pytest.mark.parametrize(("position", "optimizer"), [
    ("sinusoid", "adam"), ("relative", "adafactor")])
def test_what_has_no_effect_leaves_the_graph_of_a_training_alone(position, optimizer):
    settings = {"position": position, "optimizer": optimizer, "num_hidden_layers": 1}
    dead = live_hparams.without_effect("rpr_transformer", new_hparams(**settings))
    assert {"dropout", "t5_num_buckets", "scheduled_sampling_num_passes", "mlperf_mode",
            "attention_dropout_broadcast_dims", "shared_embedding", "use_custom_ops",
            "mixed_precision_optimizer_init_loss_scale"} <= dead.keys()
    assert ("max_relative_position" in dead) == (position != "relative")
    assert ("optimizer_adam_beta1" in dead) == (optimizer != "adam")
    before = training_graph(new_hparams(**settings))
    after = training_graph(changed(new_hparams(**settings), dead))
    assert [node.name for node in after] == [node.name for node in before]
    assert not [node.name for node, other in zip(before, after, strict=True) if node != other]


@pytest.mark.parametrize(("settings", "names"), [
    ({"position": "rotary", "num_encoder_layers": 1, "num_decoder_layers": 1},
     ("rotary_trained_length", "rotary_long_factors", "num_hidden_layers",
      "add_relative_to_values")),
    ({"encoder_position": "none", "decoder_position": "coupling+alibi+graph",
      "max_relative_position_left": 3, "max_relative_position_right": 3, "num_hidden_layers": 1},
     ("alibi_directions", "coupling_lowest_first", "num_edge_labels", "max_relative_position")),
    ({"position": "relative", "relative_keys": False, "relative_values": False,
      "num_hidden_layers": 1},
     ("max_relative_position", "max_relative_position_left", "max_relative_position_right",
      "heads_share_relative_embedding")),
    ({"encoder_position": "relative+graph", "decoder_position": "relative_unclipped",
      "relative_keys": False, "relative_values": False, "num_hidden_layers": 1, "max_length": 9},
     ("max_relative_position", "num_edge_labels")),
    ({"decoder_only": True, "shared_embedding_and_softmax_weights": True, "num_hidden_layers": 1},
     ("unidirectional_encoder", "use_target_space_embedding"))])
def test_a_setting_that_another_one_makes_useless_is_named(settings, names):
    dead = live_hparams.without_effect("rpr_transformer", new_hparams(**settings))
    assert set(names) <= dead.keys()
    before = training_graph(new_hparams(**settings))
    assert training_graph(changed(new_hparams(**settings), names)) == before


def test_a_language_model_names_the_settings_of_a_source():
    settings = {"num_hidden_layers": 1, "shared_embedding_and_softmax_weights": True}
    dead = live_hparams.without_effect("rpr_transformer", new_hparams(**settings),
                                       registration.find_problem("lm_text_files_characters"))
    names = ("unidirectional_encoder", "use_target_space_embedding", "decoder_only",
             "max_input_seq_length")
    assert {dead[name] for name in names} == {"in a language model"}
    before = training_graph(new_hparams(**settings), has_source=False)
    assert training_graph(changed(new_hparams(**settings), names), has_source=False) == before


def test_the_heads_share_the_vectors_of_relative_unclipped_whatever_relative_does():
    settings = {"relative_keys": False, "relative_values": False}
    for position, is_read in (("relative", False), ("relative+relative_unclipped", True)):
        assert is_read != ("heads_share_relative_embedding" in live_hparams.without_effect(
            "rpr_transformer", new_hparams(position=position, **settings)))


def test_a_recurrent_model_names_the_settings_of_a_transformer():
    settings = {"hparams_set": "qkv_seq2seq_tiny", "num_encoder_layers": 1,
                "encoder_position": "none", "decoder_position": "none"}
    dead = live_hparams.without_effect("qkv_seq2seq", new_hparams(**settings))
    assert {"num_hidden_layers", "kernel_width", "position", "norm_type",
            "layer_prepostprocess_dropout"} <= dead.keys()
    assert not {"dropout", "num_encoder_layers", "hidden_size"} & dead.keys()
    before = training_graph(new_hparams(**settings), "qkv_seq2seq")
    assert training_graph(changed(new_hparams(**settings), dead), "qkv_seq2seq") == before
    assert "kernel_width" not in live_hparams.without_effect(
        "qkv_seq2seq", new_hparams(**settings, encoder="cnn"))


def test_without_a_decoder_the_position_of_the_encoder_decides():
    settings = {"answer_symbol": 2, "encoder_position": "sinusoid"}
    dead = live_hparams.without_effect("rpr_transformer", new_hparams(**settings))
    assert dead["position"] == "with encoder_position"
    assert dead["decoder_position"] == "with answer_symbol=2"
    settings |= {"encoder_position": "randomized+sinusoid", "randomized_evaluation": True}
    transformer.checked_hparams(new_hparams(**settings))     # a decoder would refuse it


def test_no_position_hparam_is_missing_from_those_that_models_of_t2t_do_not_read():
    assert live_hparams._OWN == tuple(each.name for each in declarations.POSITION_HPARAMS)


def new_runs(folder, *hparams, **settings):
    """Runs that have not begun, as `check_new_runs` takes them: 1, 2, ..."""
    settings = {"problem": "toy_reverse_repeats_5", "hparams_set": "rpr_tiny", "train_steps": 10,
                "checkpoint_steps": 10, **settings}
    return [(config.Run(hparams=each, **settings),
             run_directory.RunDirectory(str(folder / str(number)), ""))
            for number, each in enumerate(hparams, 1)]


def test_the_arms_that_are_one_training_are_named(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(run, "say", lambda line, style: said.append(line))
    run.check_new_runs(new_runs(tmp_path, *(f"position={position},max_relative_position={k}"
                                            for position in ("sinusoid", "relative")
                                            for k in (4, 8))))
    assert len(said) == 1 and said[0].startswith("1, 2 are the same training")


def test_a_new_run_has_its_own_test_set_once(tmp_path):
    runs = new_runs(tmp_path, "", test_set="mine", language_pair="en-de",
                    test_sets=("mine:fr-de", "mine:en-de"))
    with pytest.raises(UserError, match="run.test_sets: mine:en-de is run.test_set already"):
        run.check_new_runs(runs)


@pytest.mark.parametrize("hparams, settings, line", [
    (("position=sinusoid", "position=alibi,rotary_base=7.0"), {},
     "rotary_base=7.0 has no effect with position=alibi; leave it out"),
    (("learning_rate=9.0", ""), {}, "learning_rate=9.0 has no effect with learning_rate_schedule"),
    (("encoder_position=rotary",),
     {"problem": "lm_text_files_characters", "metrics": ("perplexity",)},
     "encoder_position=rotary has no effect in a language model"),
    (("position=alibi",), {"model": "transformer"},
     "position=alibi has no effect with transformer, a model of T2T"),
    (("",), {"model": "transformer"}, "position=relative has no effect with transformer"),
])
def test_what_no_training_reads_is_refused_where_all_runs_are_new(tmp_path, hparams, settings,
                                                                  line):
    runs = new_runs(tmp_path, *hparams, **settings)
    with pytest.raises(UserError, match=f"^hparams: {line}"):
        run.check_new_runs(runs)
    begun = new_runs(tmp_path / "begun", "position=rotary")[0]
    (tmp_path / "begun" / "1").mkdir(parents=True)
    Path(begun[1].config).write_text(gin_files.as_gin(begun[0]))
    run.check_new_runs([begun, *runs])


def test_a_training_says_which_settings_it_does_not_read(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(console, "say", lambda line, style: said.append(line))
    trained_model.build_hparams(interfaces.ModelRequest(
        model="rpr_transformer", hparams_set="rpr_tiny", output_dir=str(tmp_path),
        hparams="position=sinusoid,max_relative_position=4,learning_rate=5.0,dropout=0.2"))
    assert [line.split(" with ")[0] for line in said] == [
        "learning_rate=5.0 has no effect", "dropout=0.2 has no effect",
        "max_relative_position=4 has no effect"]
    assert "which reads learning_rate_constant" in said[0]
    trained_model.build_hparams(interfaces.ModelRequest(
        model="rpr_transformer", hparams_set="rpr_tiny", output_dir=str(tmp_path),
        problem="lm_text_files_characters", hparams="encoder_position=rotary"))
    assert said[3:] == ["encoder_position=rotary has no effect in a language model"]


@pytest.mark.parametrize("hparams_set, read", [
    ("transformer_base", False), ("transformer_relative", True)])
def test_a_set_of_t2t_is_read_with_its_own_positions(hparams_set, read, tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(console, "say", lambda line, style: said.append(line))
    trained_model.build_hparams(interfaces.ModelRequest(
        model="rpr_transformer", hparams_set=hparams_set, output_dir=str(tmp_path / "model"),
        hparams="max_relative_position=4"))
    assert said == [] if read else said == [
        "max_relative_position=4 has no effect with position=sinusoid"]
    run.check_new_runs(new_runs(tmp_path, "", hparams_set=hparams_set))


@pytest.mark.parametrize("settings, is_read", [({}, False), ({"pack_dataset": True}, True),
                                               ({"split_to_length": 8}, True)])
def test_batches_are_shuffled_again_only_where_t2t_reads_them(settings, is_read):
    hparams = registration.registered_hparams("rpr_tiny")
    hparams.override_from_dict(settings)
    problem = registration.find_problem("toy_reverse_repeats_5")
    dead = live_hparams.without_effect("rpr_transformer", hparams, problem)
    assert ("batch_shuffle_size" not in dead) == is_read
