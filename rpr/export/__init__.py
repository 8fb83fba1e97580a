"""Trained models in the formats of other programs: safetensors, CTranslate2, SavedModel."""
import importlib.util

from rpr.utils.errors import InvalidValue

QUANTIZATIONS = ("float32", "int8", "int16", "float16", "bfloat16")


def check_installed(setting: str, name: str) -> None:
    """Refuses the value `name` of a setting if there is no package of this name."""
    if importlib.util.find_spec(name) is None:
        raise InvalidValue(setting, name, "needs the package of this name: pip install "
                           f"{name}")
