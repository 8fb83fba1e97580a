"""scripts/cost.py: its count of a step is that of the papers' matrix products."""
import cost
import pytest
import step_trace
import tensorflow.compat.v1 as tf
from tensor2tensor.utils import registry


def test_flops_and_parameters_are_those_counted_by_hand():
    """Vaswani et al. 2017: 2 m n k a product, and as much again for either factor's gradient."""
    hparams = registry.hparams("rpr_tiny_absolute")
    d, f, layers = hparams.hidden_size, hparams.filter_size, hparams.num_hidden_layers
    tokens, length = hparams.batch_size // cost.LENGTH * cost.LENGTH, cost.LENGTH
    attention = 4 * d * d + 2 * length * d            # projections; logits and their application
    feed_forward = 2 * d * f
    encoder, decoder = attention + feed_forward, 2 * attention + feed_forward
    logits = (tokens + 1) * d * cost.VOCABULARY       # the loss appends a row
    parameters, flops, kept = cost.count("rpr_tiny_absolute")
    assert flops == 3 * 2 * (tokens * layers * (encoder + decoder) + logits)
    norms, biases = layers * 5 + 2, layers * 2
    assert parameters == (layers * (4 * d * d + feed_forward + 8 * d * d + feed_forward)
                          + norms * 2 * d + biases * (f + d) + (cost.VOCABULARY + 32) * d)
    assert kept > 4 * tokens * cost.VOCABULARY        # the logits at least


def test_counts_are_near_what_a_step_computes_and_allocates(monkeypatch, capsys):
    monkeypatch.setattr(cost, "MODELS", {"tiny": ("rpr_tiny", 1)})
    (record,) = cost.compare(64)
    assert 0.98 < record["measured_flops"] / record["flops"] < 1.1
    assert 0.5 < record["measured_bytes"] / record["bytes"] < 2
    assert "| tiny |" in capsys.readouterr().out


@pytest.mark.parametrize("flag", ["--utilisation=0.4,0.1", "--utilisation=0.2", "--utilisation=0,1",
                                  "--measure=8"])
def test_bad_flags_are_refused(monkeypatch, capsys, flag):
    monkeypatch.setattr("sys.argv", ["cost.py", flag])
    with pytest.raises(SystemExit):
        cost.main()
    assert flag.partition("=")[0] in capsys.readouterr().err


def test_memory_of_a_gpu_is_what_its_allocator_holds_not_what_one_operation_takes():
    metadata = tf.RunMetadata()
    device = metadata.step_stats.dev_stats.add()
    for name, one_operation, all_of_them in (("GPU_0_bfc", 900, 1000), ("GPU_0_bfc", 10, 1300),
                                             ("cpu", 5000, 9000)):
        device.node_stats.add().memory.add(
            allocator_name=name, peak_bytes=one_operation, allocator_bytes_in_use=all_of_them)
    assert step_trace.peak_bytes(metadata, "gpu") == 1300
