"""Trained models in the formats of other programs: safetensors, CTranslate2, SavedModel."""
import importlib.util

from rpr.utils.errors import InvalidValue

QUANTIZATIONS = ("float32", "int8", "int16", "float16", "bfloat16")


def check_installed(setting: str, name: str) -> None:
    """Refuses a setting's value `name` if the Python package of that name is not installed."""
    if importlib.util.find_spec(name) is None:
        raise InvalidValue(setting, name, "needs the package of this name: pip install "
                           f"{name}")
