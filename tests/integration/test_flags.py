"""Every flag that a command shows has a reader; every other flag of T2T is refused."""
import inspect
import re
from pathlib import Path

import pytest
from absl import flags
from conftest import refused
from tensor2tensor.bin import t2t_decoder, t2t_trainer

import rpr
from rpr.cli import launcher

# Functions of T2T that a command calls, and that read flags by themselves.
CALLED = (t2t_trainer.create_run_config, t2t_trainer.create_experiment_fn,
          t2t_trainer.set_hparams_from_args,
          t2t_trainer.generate_data, t2t_trainer.save_metadata, t2t_decoder.create_decode_hparams,
          t2t_decoder.decode, t2t_decoder.score_file)


def test_a_flag_that_is_shown_is_read():
    ours = [path.read_text(encoding="utf-8") for path in Path(rpr.__file__).parent.rglob("*.py")
            if path.name != "launcher.py"]            # which lists names and ranges
    sources = "\n".join([*ours, *map(inspect.getsource, CALLED)])
    # Another test may have imported T2T's problems, some of which define flags of their own.
    shown = [name for name in launcher._shown("$") if "data_generators" not in (
        flags.FLAGS.find_module_defining_flag(name))]
    unread = [name for name in shown
              if not re.search(rf"\b(FLAGS|flags|request)\.{name}\b|[\"']{name}[\"']", sources)]
    assert unread == []


@pytest.mark.parametrize("command, flag", [
    ("evaluate", "eval_run_autoregressive"), ("decode", "use_tpu"), ("evaluate", "ps_replicas=2"),
    ("decode", "eval_early_stopping_metric_minimize=false")])
def test_a_flag_that_nothing_reads_is_refused(command, flag, tmp_path):
    line = refused(command, f"--{flag}", "--problem=translate_ende_libreoffice", cwd=tmp_path)
    assert line.startswith(f"rpr {command}: --{flag.partition('=')[0]}=")
    assert not list(tmp_path.iterdir())


def test_a_single_bleu_reads_no_source():
    assert "--source=x" in refused("bleu", "--source=x")
