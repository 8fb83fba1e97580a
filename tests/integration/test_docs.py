"""The documentation: links resolve, pages stay short, the commands in it exist with their flags."""
import functools
import pkgutil
import re
import shlex
from pathlib import Path

import pytest
from conftest import rpr_command

ROOT = Path(__file__).parents[2]
# Without the tables that `rpr report` writes into a record.
PAGES = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")}
               - {*(ROOT / "docs" / "results").rglob("results.md")})
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
LAUNCHERS = {"t2t-datagen": "datagen", "t2t-trainer": "train", "t2t-decoder": "decode",
             "t2t-eval": "evaluate", "t2t-avg-all": "average", "t2t-bleu": "bleu"}
# Pages whose Python blocks a test of their own runs.
RUN_ELSEWHERE = {"docs/export.md", "docs/python.md", "docs/your_own_scheme.md",
                 "docs/length_generalisation.md"}


def blocks(page, language):
    """The fenced code blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"),
                      re.MULTILINE | re.DOTALL)


def commands(page):
    """The commands of a page's shell blocks, each as a list of words without comments."""
    for block in blocks(page, "(?:bash|sh|console)"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                words = words[1:]                     # environment variables
            if words:
                yield words[:next((place for place, word in enumerate(words)
                                   if word in ("|", "&&", ">", ";")), len(words))]


def anchors(page):
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ +(.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_relative_links_resolve(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{page.name}: no {target}"
        if anchor:
            assert anchor in anchors(linked), f"{page.name}: {linked.name} has no heading #{anchor}"


@functools.cache
def all_tests():
    """The text of all tests."""
    return "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))


def lacks(name):
    """Why a name of ours in backticks is neither a file nor an object; None for all other text."""
    if re.search(r"\b[A-Z]{2,}\b", name):
        return None                                   # a place to fill in: docs/results/NAME
    if re.fullmatch(r"test_\w{20,}", name):
        return None if f"def {name}(" in all_tests() else "no such test"
    if re.fullmatch(r"(?:rpr|problems|hparams|gin|scripts|tests|docs)/[\w./*-]*", name):
        return None if any(ROOT.glob(name.rstrip("/"))) else "no such file"
    if re.fullmatch(r"rpr(?:\.\w+)+(?:\(\))?", name) and not name.endswith(".json"):
        try:
            pkgutil.resolve_name(name.removesuffix("()"))
        except (ImportError, AttributeError) as error:
            return str(error)
    return None


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_names_of_files_and_modules_exist(page):
    if page.name == "CHANGELOG.md":
        pytest.skip("a changelog names what was removed")
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    wrong = {name: why for name in re.findall(r"`([^`\s]+)`", text) if (why := lacks(name))}
    assert not wrong


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_pages_are_short(page):
    most = 150 if page == ROOT / "README.md" else 200
    if page.name == "CHANGELOG.md":
        pytest.skip("a changelog grows")
    text = re.sub("<!-- Generated .*?<!-- End ", "", page.read_text(encoding="utf-8"),
                  flags=re.DOTALL)
    assert len(text.splitlines()) <= most


def test_every_page_is_reachable_from_the_readme():
    seen, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        todo += [(page.parent / target.partition("#")[0]).resolve()
                 for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
                 if not re.match(r"[a-z]+:|#", target)]
    assert set(PAGES) <= seen


@pytest.fixture(scope="module")
def flags_of():
    """A function: the flags that `rpr COMMAND --help` lists."""
    known = {}

    def flags(command):
        if command not in known:
            known[command] = set(re.findall(r"--[a-z0-9_]+",
                                            rpr_command(*command.split(), "--help").stdout))
        return known[command]
    return flags


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_commands_exist_with_their_flags(page, flags_of):
    from rpr.cli import COMMANDS
    for words in commands(page):
        name = words[0].removeprefix(".venv/bin/")
        if name.startswith("scripts/"):
            assert (ROOT / name).exists(), f"no {name}"
        if name == "rpr" and len(words) > 1 and not words[1].startswith("-"):
            name, words = words[1], words[1:]
            assert name in COMMANDS, f"rpr has no command {name}"
            if name == "test-set":
                name = f"{name} {words[1]}"           # its subcommand
        elif name in LAUNCHERS:
            name = LAUNCHERS[name]
        else:
            continue
        for word in words[1:]:
            if re.match(r"--[a-z]", word):
                flag = word.partition("=")[0]
                assert flag in flags_of(name) | {"--verbose", "--help"}, f"{name} has no {flag}"
            if word.startswith("gin/"):
                assert (ROOT / word).exists(), f"no {word}"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_python_blocks_run(page):
    if str(page.relative_to(ROOT)) in RUN_ELSEWHERE:
        pytest.skip("run by the tests of its subject")
    for block in blocks(page, "python"):
        exec(compile(block, str(page), "exec"), {})
