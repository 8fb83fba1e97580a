"""Every test runs in the mode that the launchers run in: TF1 graphs, T2T patched.

The fixtures here go through the real command line, on a few hundred pairs of the embedded corpus.
"""
import contextlib
import fcntl
import functools
import gc
import gzip
import itertools
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
from typing import NamedTuple
from xml.sax.saxutils import escape

import command_server
import pytest
from hypothesis import settings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import rpr.t2t.compat  # noqa: E402

rpr.t2t.compat.install()

import tensorflow.compat.v1 as tf  # noqa: E402

# Sessions that are given no configuration run a graph as it was built: to rewrite a graph takes
# longer than to run it once. Commands are processes of their own, which rewrite theirs.
_AS_BUILT = tf.ConfigProto()
_AS_BUILT.graph_options.rewrite_options.disable_meta_optimizer = True
tf.Session.__init__ = functools.partialmethod(tf.Session.__init__, config=_AS_BUILT)

gc.set_threshold(100_000)                             # as in commands

# Tests measure no time. Hypothesis fails an example that takes 200 ms, as on a busy machine.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

ROOT = pathlib.Path(__file__).parent.parent
CORPUS = ROOT / "problems" / "libreoffice_help"
NEWSTEST = ROOT.parent / "shared" / "corpora" / "newstest2021"


# Commands that import much, which takes most of their time, or check in a fork what they start.
FORKED = {"datagen", "train", "decode", "evaluate", "average", "bleu", "translate", "list",
          "report", "run", "study", "score", "export", "benchmark", "verify", "perplexity",
          "check-scheme", "judge", "test-set"}


@functools.cache
def server():
    """The process that runs commands of FORKED and scripts for the tests of this one."""
    return command_server.CommandServer()


def rpr_command(*argv, check=True, launcher=None, cwd=None, env=None, stdin="", forked=True):
    """Runs `rpr ARGV`, or a launcher by name.

    Args:
      *argv: arguments.
      check: fail unless the exit code is 0.
      launcher: such as "t2t-trainer".
      cwd, env: of `subprocess.run`.
      stdin: text of the standard input.
      forked: run commands of FORKED in a fork of `server`. False: as users do, in a new process.

    Returns:
      An object with returncode, stdout and stderr.
    """
    argv = [str(arg) for arg in argv]
    if forked and not launcher and argv and argv[0] in FORKED:
        done = server().run(argv, cwd=cwd, env=env, stdin=stdin)
    else:
        program = ([os.path.join(os.path.dirname(sys.executable), launcher)] if launcher
                   else [sys.executable, "-m", "rpr.cli"])
        done = subprocess.run([*program, *argv], capture_output=True, text=True, timeout=300,
                              cwd=cwd, env=env, input=stdin)
    if check and done.returncode != 0:
        raise AssertionError(f"{argv} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done


def started(*argv):
    """Starts `rpr ARGV`, a command of FORKED, in a fork of `server`: a `command_server.Command`."""
    return server().start(argv)


def python_script(name, *argv, cwd=None):
    """Runs scripts/NAME, or the script of an absolute path, in a fork of `server`.

    Returns:
      What `rpr_command` does.
    """
    return server().run([str(arg) for arg in argv], script=ROOT / "scripts" / name, cwd=cwd)


def refused(*argv, **kwargs):
    """Runs a command that must fail; returns the one line that it answers with."""
    done = rpr_command(*argv, check=False, **kwargs)
    lines = done.stderr.strip().splitlines()
    assert done.returncode not in (0, None) and len(lines) == 1, (done.returncode, done.stderr)
    return lines[0]


class Text(NamedTuple):
    """A small corpus as text files, and its data directory."""
    folder: pathlib.Path
    data_dir: pathlib.Path
    problem: str = "translate_text_files"

    @property
    def flags(self):
        return [f"--problem={self.problem}", f"--data_dir={self.data_dir}"]

    def give(self, folder):
        """Copies the data to where the study of this folder, and runs in it, would make them."""
        shutil.copytree(self.data_dir, folder / "data")


@contextlib.contextmanager
def killed_before_the_index(monkeypatch):
    """Ends the process, as far as the code sees, before it renames the index of a checkpoint."""
    replace = os.replace

    def dying_replace(source, target):
        if target.endswith(".index"):
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "replace", dying_replace)
        yield


def made_once(tmp_path_factory, name, make):
    """A folder for all processes of pytest-xdist: the first to need it makes it, others wait.

    Args:
      tmp_path_factory: of pytest.
      name: of the folder.
      make: fills the folder, which it is given.
    """
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    folder, done = root / name, root / f"{name}.done"
    with open(root / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)        # of a process that failed to make it
            folder.mkdir()
            make(folder)
            done.touch()
    return folder


PAIRS = {"train": 300, "dev": 20, "test": 12}
TEXT_FILES = {f"RPR_TEXT_{part}{side}": f"{split}.{language}"
              for split, part in (("train", ""), ("dev", "DEV_"), ("test", "TEST_"))
              for language, side in (("en", "SOURCE"), ("de", "TARGET"))}


def lines_of(path):
    """The stripped lines of a text file, decompressed if its name ends in .gz."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as text:
        return [line.strip() for line in text]


def without_text(patch):
    """Takes what the fixture `text` sets out of the environment."""
    for name in [name for name in os.environ if name.startswith("RPR_TEXT_")]:
        patch.delenv(name)


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    """300 training pairs, 20 for development, 12 for test, through `rpr datagen`."""
    def set_environment(folder):
        for variable, name in TEXT_FILES.items():
            os.environ[variable] = str(folder / name)
        os.environ["RPR_TEXT_VOCAB_SIZE"] = "300"

    def make(folder):
        for name in TEXT_FILES.values():
            split, language = name.split(".")
            packed = CORPUS / f"{split}.en-de.{language}.gz"
            with gzip.open(packed, "rt", encoding="utf-8") as lines:
                (folder / name).write_text("".join(itertools.islice(lines, PAIRS[split])),
                                           encoding="utf-8")
        set_environment(folder)
        rpr_command("datagen", *Text(folder, folder / "data").flags, f"--tmp_dir={folder}/tmp")

    folder = made_once(tmp_path_factory, "text", make)
    set_environment(folder)
    return Text(folder, folder / "data")


class Trained(NamedTuple):
    """A tiny relative model of one layer and a few steps."""
    text: Text
    output_dir: pathlib.Path
    steps: int

    @property
    def flags(self):
        return [*self.text.flags, "--model=rpr_transformer", "--hparams_set=rpr_tiny",
                f"--output_dir={self.output_dir}"]


def train(text, output_dir, *more, steps=20, launcher=None, check=True):
    """Trains a tiny model, of one layer unless a flag says otherwise, through the command line."""
    verb = [] if launcher else ["train"]
    if not any("num_hidden_layers" in flag for flag in more):
        more = (*more, "--hp_num_hidden_layers", "1")
    return rpr_command(
        *verb, *text.flags, "--model=rpr_transformer", "--hparams_set=rpr_tiny",
        f"--output_dir={output_dir}", f"--train_steps={steps}", "--schedule=train",
        "--local_eval_frequency=10", "--iterations_per_loop=10", "--random_seed=1", *more,
        launcher=launcher, check=check)


@pytest.fixture(scope="session")
def trained(text, tmp_path_factory):
    """A tiny relative model, 20 steps, checkpoints at 10 and 20. Each process has a copy."""
    made = made_once(tmp_path_factory, "trained", lambda folder: train(text, folder / "model"))
    output_dir = tmp_path_factory.mktemp("copy") / "model"
    shutil.copytree(made / "model", output_dir)
    return Trained(text, output_dir, 20)


@pytest.fixture(scope="session")
def lively(trained, tmp_path_factory):
    """A checkpoint of the tiny model with random weights: its sentences differ, and end."""
    import numpy as np

    from rpr.training import averaging
    reader = tf.train.load_checkpoint(str(trained.output_dir / "model.ckpt-20"))
    random = np.random.RandomState(7)
    values = {"global_step": np.int64(20)}
    for name, shape in sorted(reader.get_variable_to_shape_map().items()):
        if not name.startswith("transformer/"):
            continue
        scale = 0.1 if "symbol_modality" in name else 2 * max(shape[0], 1) ** -0.5
        values[name] = (scale * random.randn(*shape) + ("layer_norm_scale" in name)).astype("f")
        if name.endswith("weights_0"):
            values[name][0] = 0          # of padding: else it is chosen as a symbol
            values[name][1] *= 4         # of the end mark: else none ends
    path = str(tmp_path_factory.mktemp("lively") / "model.ckpt-20")
    averaging.write_checkpoint(path, values)
    return path


@pytest.fixture(scope="session")
def sacrebleu_cache(tmp_path_factory):
    """A sacreBLEU cache that holds WMT21 English-German, in the layout of its XML archive."""
    if not NEWSTEST.exists():
        pytest.skip(f"{NEWSTEST} is not there")
    cache = tmp_path_factory.mktemp("sacrebleu")
    source, a, c = ((NEWSTEST / f"newstest2021.en-de.{name}").read_text(encoding="utf-8")
                    .splitlines() for name in ("src.en", "ref.A.de", "ref.C.de"))

    def segments(tag, lines):
        return f"<{tag}><p>" + "".join(
            f'<seg id="{number}">{escape(line)}</seg>' for number, line in enumerate(lines, 1)
        ) + f"</p></{tag.split()[0]}>"

    xml = ('<?xml version="1.0" encoding="utf-8"?><dataset id="newstest2021">'
           '<doc origlang="en" id="all">' + segments('src lang="en"', source)
           + segments('ref lang="de" translator="A"', a)
           + segments('ref lang="de" translator="C"', c) + "</doc></dataset>")
    for name in ("wmt21", "wmt21/C", "wmt21/AC"):
        raw = cache / name / "raw"
        (raw / "test").mkdir(parents=True)
        path = raw / "test" / "newstest2021.en-de.xml"
        path.write_text(xml, encoding="utf-8")
        with tarfile.open(raw / (name.replace("/", "_") + ".test.tgz"), "w:gz") as archive:
            archive.add(path, "test/newstest2021.en-de.xml")
    return cache


@pytest.fixture(scope="session")
def clipping_study(tmp_path_factory):
    """A study of clipping distances with invented translations: its directory and results."""
    import report_runs
    folder = tmp_path_factory.mktemp("studies") / "clip_50%"
    report_runs.write_clipping_study(folder)
    return folder, report_runs.read_scored(folder)


@pytest.fixture(scope="session")
def clipping(clipping_study):
    """The results of that study."""
    return clipping_study[1]
