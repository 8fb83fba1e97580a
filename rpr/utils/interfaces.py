"""What the packages hand to each other: the model that a command asks for."""
import dataclasses


@dataclasses.dataclass(frozen=True)
class ModelRequest:
    """A trained model, as T2T's flags of these names give it; empty: not given.

    Attributes:
      model, problem, hparams_set: registered names.
      hparams: overrides, "name=value,...".
      data_dir: the directory of the vocabulary and the TFRecords.
      output_dir: the directory in which the model was trained.
      checkpoint_path: path without suffix, or a directory; empty: the last one of `output_dir`.
      t2t_usr_dir: the user's own code.
    """
    model: str = ""
    problem: str = ""
    hparams_set: str = ""
    hparams: str = ""
    data_dir: str = ""
    output_dir: str = ""
    checkpoint_path: str = ""
    t2t_usr_dir: str = ""

    @classmethod
    def of(cls, flags: object) -> "ModelRequest":
        """The model that parsed flags name, T2T's or argparse's."""
        return cls(**{field.name: getattr(flags, field.name, None) or ""
                      for field in dataclasses.fields(cls)})
