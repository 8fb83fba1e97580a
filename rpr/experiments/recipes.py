"""The experiment files that ship with the project, which `recipe:NAME` names.

In a checkout they are in gin/, in an installed wheel in the package's folder `recipes`.
"""
import difflib
import glob
import os

from rpr.utils.errors import UserError

PREFIX = "recipe:"


def resolve(path: str) -> str:
    """The path of a gin file that may be named as `recipe:NAME`; other paths are returned as is.

    Raises:
      UserError: there is no such recipe.
    """
    if not path.startswith(PREFIX):
        return path
    paths = _paths()
    name = path.removeprefix(PREFIX).removesuffix(".gin")
    if name not in paths:
        near = difflib.get_close_matches(name, paths, n=3) or sorted(paths)
        raise UserError(f"{path}: no such recipe; {', '.join(near)}")
    return paths[name]


def hint(path: str) -> str:
    """What to add to the message that a gin file does not exist, if it is the name of a recipe."""
    name = os.path.basename(path).removesuffix(".gin")
    return f"; {PREFIX}{name} is the one that ships with rpr" if name in _paths() else ""


def _paths() -> dict[str, str]:
    """{name: path} of all recipes."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    folder = os.path.join(package, "recipes")
    if not os.path.isdir(folder):
        folder = os.path.join(os.path.dirname(package), "gin")
    return {os.path.basename(path).removesuffix(".gin"): path
            for path in sorted(glob.glob(os.path.join(glob.escape(folder), "*.gin")))}
