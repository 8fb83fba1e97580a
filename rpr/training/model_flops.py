"""Model FLOPs of a training step and the peak of a card: model FLOPs utilization (MFU)."""
import re
from collections.abc import Callable

import tensorflow.compat.v1 as tf
from tensor2tensor.layers.modalities import ModalityType

from rpr.utils.interfaces import HParams

# TFLOP/s of dense products by NVIDIA's data sheets: in TF32, which TensorFlow uses for float32, and
# in bfloat16 or float16. The first that a device's name contains as words decides.
PEAKS = {"H100 PCIe": (378, 756), "H100": (495, 989), "H200": (495, 989), "A100": (156, 312),
         "L4": (60, 121)}

Flops = Callable[[int, int, int], int]                # of sentences, source and target


def model_flops(hparams: HParams, symbols: int, sentences: int, source: int, target: int) -> int:
    """FLOPs that a training step of a Transformer needs, by the formula of MFU.

    6 FLOPs per weight and position and 12 per pair of positions and channel (Chowdhery et al. 2022,
    appendix B), for encoder and decoder. Padding counts; normalization, softmax and position
    schemes do not. A model with the hparam `answer_symbol` has no decoder, one with `decoder_only`
    no encoder.

    Args:
      hparams: the model's hyperparameters.
      symbols: size of the vocabulary.
      sentences: in the batch.
      source, target: lengths in positions; a language model has a source of 0.
    """
    hidden, layers = hparams.hidden_size, hparams.num_hidden_layers
    channels = sum(hparams.get(f"attention_{name}_channels") or hidden for name in ("key", "value"))

    def layer(length: int) -> int:
        weights = 2 * hidden * (channels + hparams.filter_size)
        return length * weights + length * length * channels

    total = target * symbols * hidden
    if hparams.get("decoder_only"):                          # one sequence
        source, target = 0, source + target
    total += layer(source) * (hparams.get("num_encoder_layers") or layers)
    if not hparams.get("answer_symbol"):
        cross = ((source + target) * hidden + source * target) * channels if source else 0
        total += (layer(target) + cross) * (hparams.get("num_decoder_layers") or layers)
    return 6 * sentences * total


def of_batches(model: str, hparams: HParams) -> Flops | None:
    """`model_flops` of batches for a model in training; None where the formula does not apply."""
    problem = hparams.problem_hparams
    models = ["rpr_transformer"]
    if not (hparams.get("answer_symbol") or hparams.get("decoder_only")):
        models.append("transformer")
    sides = [problem.modality[side] for side in ("inputs", "targets") if side in problem.modality]
    if (model not in models or set(sides) != {ModalityType.SYMBOL}
            or hparams.get("ffn_layer") not in ("dense_relu_dense", "conv_hidden_relu")):
        return None
    symbols = problem.vocab_size["targets"]
    symbols += -symbols % hparams.get("vocab_divisor", 1)
    return lambda sentences, source, target: model_flops(
        hparams, symbols, sentences, source if len(sides) > 1 else 0, target)


def dense_peak(is_half: bool) -> float | None:
    """FLOP/s of the first GPU by `PEAKS`; None without a GPU, or for a card that is not listed."""
    for gpu in tf.config.list_physical_devices("GPU")[:1]:
        name = tf.config.experimental.get_device_details(gpu).get("device_name", "")
        for card, teraflops in PEAKS.items():
            # Not a part of a card, nor the slower NVL cards.
            if re.search(rf"\b{card}\b(?!.*\b(MIG|NVL)\b)", name):
                return teraflops[is_half] * 1e12
    return None


def peak_of(hparams: HParams, gpus: int) -> float | None:
    """FLOP/s of so many GPUs in the precision of a training; None if not known."""
    is_half = hparams.activation_dtype != "float32" or hparams.gpu_automatic_mixed_precision
    return gpus * (dense_peak(bool(is_half)) or 0) or None
