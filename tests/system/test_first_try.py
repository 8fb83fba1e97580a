"""A rejected first try leaves the directory as it was; the corrected command then trains."""
from conftest import refused, train


def test_a_graph_that_cannot_be_built_leaves_no_directory(text, tmp_path):
    """T2T raises for this schedule while it builds the graph."""
    output_dir = tmp_path / "model"
    flags = [*text.flags, "--model=rpr_transformer", "--hparams_set=rpr_tiny",
             f"--output_dir={output_dir}", "--train_steps=10", "--schedule=train"]
    line = refused("train", *flags, "--hparams=learning_rate_schedule=single_cycle_cos_decay")
    assert "single_cycle_cos_decay" in line and not output_dir.exists()
    for hparams in ("optimizer=foo", "filter_size=-1", "vocab_divisor=0", "max_length=1"):
        assert hparams in refused("train", *flags, f"--hparams={hparams}")
        assert not output_dir.exists()
    train(text, output_dir, "--hparams=label_smoothing=0.2,num_hidden_layers=1", steps=10)
    files = {path.name for path in output_dir.iterdir()}
    assert {"hparams.json", "rpr.json", "train.log", "model.ckpt-10.index"} <= files


def test_a_rejected_resumption_changes_nothing(text, trained, tmp_path):
    def content():
        return {path.name: path.read_bytes() for path in trained.output_dir.iterdir()
                if path.is_file() and path.name != ".train.lock"}

    before = content()
    for change in ("optimizer=foo", "num_heads=4"):
        refused("train", *trained.flags, "--train_steps=30",
                f"--hparams=num_hidden_layers=1,{change}")
    assert content() == before
