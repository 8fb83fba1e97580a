"""scripts/cost.py: its count of a step is that of the papers' matrix products."""
import importlib.util
import pathlib

from tensor2tensor.utils import registry

SCRIPT = pathlib.Path(__file__).parents[2] / "scripts" / "cost.py"


def load():
    spec = importlib.util.spec_from_file_location("cost", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_flops_and_parameters_are_those_counted_by_hand():
    """Vaswani et al. 2017: 2 m n k a product, and as much again for either factor's gradient."""
    cost = load()
    hparams = registry.hparams("rpr_tiny_absolute")
    d, f, layers = hparams.hidden_size, hparams.filter_size, hparams.num_hidden_layers
    tokens, length = hparams.batch_size // cost.LENGTH * cost.LENGTH, cost.LENGTH
    attention = 4 * d * d + 2 * length * d            # projections; logits and their application
    feed_forward = 2 * d * f
    encoder, decoder = attention + feed_forward, 2 * attention + feed_forward
    products = layers * (encoder + decoder) + d * cost.VOCABULARY
    parameters, flops, kept = cost.count("rpr_tiny_absolute")
    assert flops == 3 * 2 * tokens * products
    norms, biases = layers * 5 + 2, layers * 2
    assert parameters == (layers * (4 * d * d + feed_forward + 8 * d * d + feed_forward)
                          + norms * 2 * d + biases * (f + d) + (cost.VOCABULARY + 32) * d)
    assert kept > 4 * tokens * cost.VOCABULARY        # the logits at least
