"""Every test runs in the mode that the launchers run in: TF1 graphs, T2T patched."""
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import rpr.compat  # noqa: E402

rpr.compat.install()
