"""T2T's programs that do not run on TensorFlow 2.15: each names what to use instead.

They are installed under T2T's names, in place of the programs of its wheel, which end in a
traceback.
"""
import os
import sys

INSTEAD = {
    "t2t-attack": "adversarial attacks are not supported (T2T's need cleverhans and TensorFlow 1)",
    "t2t-exporter": "use rpr export RUN --format=saved_model --to=DIR (docs/export.md)",
    "t2t-insights-server": "use rpr translate RUN --show_attention=DIR, which draws the attention "
                           "weights",
    "t2t-make-tf-configs": "parameter servers are not supported; scripts/tf_config prints the "
                           "TF_CONFIG of each worker (docs/training.md)",
    "t2t-query-server": "no server is needed: use rpr translate RUN, which translates what is "
                        "typed, or lines from a pipe",
    "t2t-translate-all": "use run.bleu_frequency of rpr run, which scores checkpoints on the "
                         "development set, or rpr decode with --checkpoint_path",
}


def main() -> int:
    """Prints the line of the program that was started; returns the exit code 1."""
    name = os.path.basename(sys.argv[0])
    print(f"{name}: {INSTEAD[name]}", file=sys.stderr)
    return 1
