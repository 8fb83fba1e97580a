"""The structure that docs/architecture.md describes: layers, import rules, size."""
import ast
import graphlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("rpr", "problems", "hparams")
MOST_LINES = 400

# What each package imports, besides itself. The top module rpr/__init__.py may import any.
ALLOWED = {
    "utils": set(),
    "evaluation": {"utils"},
    "experiments": {"evaluation", "utils"},
    "nn": set(),
    "positions": {"nn", "utils"},
    "models": {"positions", "nn", "problems", "utils"},
    "problems": {"utils"},
    "hparams": {"models"},
    "t2t": {"models", "problems", "hparams", "utils"},
    "training": {"t2t", "nn", "problems", "utils"},
    "inference": {"t2t", "models", "positions", "utils"},
    "export": {"t2t", "positions", "utils"},
    "report": {"experiments", "inference", "evaluation", "t2t", "positions", "utils"},
    "conformance": {"positions", "nn", "models", "utils"},
    "api": {"conformance", "export", "inference", "report", "experiments", "t2t", "utils"},
    "cli": {"conformance", "export", "report", "experiments", "inference", "training", "evaluation",
            "t2t", "models", "positions", "problems", "utils"},
}


def modules():
    """{dotted name: path} of every module of the distribution."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = ("rpr", *path.relative_to(ROOT).with_suffix("").parts)[package == "rpr":]
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()
TREES = {module: ast.parse(path.read_text(encoding="utf-8")) for module, path in MODULES.items()}


def package_of(module):
    """The layer that a module belongs to: `positions` of `rpr.positions.rotary`."""
    parts = module.split(".")
    return parts[-1] if len(parts) == 1 else parts[1]


def imports(module):
    """The modules of ours that a module imports, at any depth of its code."""
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            names = [f"{node.module}.{alias.name}" if f"{node.module}.{alias.name}" in MODULES
                     else node.module for alias in node.names]
        else:
            continue
        yield from (name for name in names if name in MODULES and name != module)


IMPORTS = {module: set(imports(module)) for module in MODULES}


@pytest.mark.parametrize("module", [name for name in MODULES if name != "rpr"])
def test_a_module_imports_lower_layers_only(module):
    package = package_of(module)
    allowed = ALLOWED[package] | {package}
    above = {name for name in IMPORTS[module] if package_of(name) not in allowed}
    assert not above, f"{module} ({package}) may not import {sorted(above)}"


def test_each_allowed_import_is_used():
    used = {package: set() for package in ALLOWED}
    for module in MODULES.keys() - {"rpr"}:
        used[package_of(module)] |= set(map(package_of, IMPORTS[module]))
    unused = {package: sorted(allowed - used[package]) for package, allowed in ALLOWED.items()}
    assert not any(unused.values()), unused


def below(package):
    """The packages that a package imports, directly or through others."""
    return ALLOWED[package].union(*map(below, ALLOWED[package]))


def diagram():
    """The mermaid diagram of the imports, without those that a longer path implies."""
    arrows = [f"  {package} --> {name}" for package in reversed(ALLOWED)
              for name in sorted(ALLOWED[package])
              if not any(name in below(other) for other in ALLOWED[package])]
    return "\n".join(["```mermaid", "graph TD", *arrows, "```"])


def test_the_documentation_shows_these_imports():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert diagram() in page, f"{__file__} prints the diagram for docs/architecture.md"


def test_there_is_no_import_cycle():
    try:
        list(graphlib.TopologicalSorter(
            {module: names - {"rpr"} for module, names in IMPORTS.items() if module != "rpr"}
        ).static_order())
    except graphlib.CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_there_are_at_most_eight_layers():
    def layer(package):
        return 1 + max(map(layer, ALLOWED[package]), default=0)

    assert max(map(layer, ALLOWED)) <= 8


@pytest.mark.parametrize("path", [*MODULES.values(), *sorted((ROOT / "scripts").glob("*.py"))],
                         ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_has_at_most_400_lines_and_a_docstring(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MOST_LINES
    assert not text.strip() or ast.get_docstring(ast.parse(text)), "no module docstring"


def loaded_by(names):
    """The modules that a new process has loaded after importing these."""
    code = f"import sys, {', '.join(names)}; print(*sys.modules)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          cwd=ROOT).stdout.split()


def test_the_command_line_and_experiments_import_no_tensorflow():
    names = [module for module in MODULES
             if package_of(module) in ("utils", "evaluation", "experiments")]
    loaded = loaded_by(["rpr", "rpr.cli", *names])
    assert not {"tensorflow", "tensor2tensor"} & set(loaded)


def test_help_shows_the_functions_of_rpr_and_imports_no_tensorflow():
    code = """import pydoc, sys, rpr
assert {"build", "load", "register", "results"} <= set(dir(rpr))
print(pydoc.plain(pydoc.render_doc(rpr)),
      bool({"tensorflow", "tensor2tensor", "pandas"} & set(sys.modules)))"""
    text = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          cwd=ROOT).stdout
    assert all(f"    {name}(" in text for name in ("build", "load", "register", "results"))
    assert text.rstrip().endswith("False")


def test_nn_and_positions_import_no_tensor2tensor():
    names = [module for module in MODULES if package_of(module) in ("nn", "positions")]
    assert "tensor2tensor" not in loaded_by(names)


def test_only_gin_files_imports_gin():
    importing = {module for module, tree in TREES.items() for node in ast.walk(tree)
                 if (isinstance(node, ast.Import) and any(n.name == "gin" for n in node.names))
                 or (isinstance(node, ast.ImportFrom) and node.module == "gin")}
    assert importing == {"rpr.experiments.gin_files"}


def test_every_module_is_found_by_setuptools():
    walked = {info.name for info in pkgutil.walk_packages([str(ROOT / "rpr")], "rpr.")}
    assert walked == MODULES.keys() - {"rpr"}, "a folder lacks __init__.py"


# Where command lines of child processes, and XLA's, are built.
COMMAND_LINES = {"experiments.pipeline", "experiments.run_directory", "experiments.scheduler",
                 "experiments.verification", "experiments.provenance", "utils.processes",
                 "t2t.compat", "export.translator"}           # the last is a program itself


@pytest.mark.parametrize("module", [name for name in MODULES if package_of(name) != "cli"
                                    and name.removeprefix("rpr.") not in COMMAND_LINES])
def test_no_message_below_the_command_line_names_a_flag(module):
    tree = TREES[module]
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docstrings = {id(node.body[0].value) for node in ast.walk(tree)
                  if isinstance(node, documented) and ast.get_docstring(node) is not None}
    named = [node.value for node in ast.walk(tree)
             if isinstance(node, ast.Constant) and isinstance(node.value, str)
             and id(node) not in docstrings
             and re.search(r"--[a-z]", node.value.replace("sacrebleu --list", ""))]
    assert not named, f"{module}: a check names the setting; rpr.cli turns it into a flag"


if __name__ == "__main__":
    print(diagram())
