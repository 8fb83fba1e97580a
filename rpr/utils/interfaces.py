"""Types that all packages share: a model request, and protocols of T2T's hparams and problems.

The protocols declare what the code here uses of T2T's objects.
"""
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

# In the record of a generated problem's data: the digest of its first examples. Older ones lack it.
EXAMPLES = "examples"


@dataclasses.dataclass(frozen=True)
class ModelRequest:
    """A trained model, by T2T's flags of these names; empty: not given."""
    model: str = ""                                   # registered names
    problem: str = ""
    hparams_set: str = ""
    hparams: str = ""                                 # overrides, "name=value,..."
    data_dir: str = ""                                # of the vocabulary and the TFRecords
    output_dir: str = ""                              # in which the model was trained
    checkpoint_path: str = ""                         # no suffix; empty: that of `output_dir`
    t2t_usr_dir: str = ""                             # of the user's code

    @classmethod
    def of(cls, flags: object) -> "ModelRequest":
        """The model that parsed flags of T2T or argparse name."""
        return cls(**{field.name: getattr(flags, field.name, None) or ""
                      for field in dataclasses.fields(cls)})


class Vocabulary(Protocol):
    """A T2T `TextEncoder`."""

    @property
    def vocab_size(self) -> int: ...
    def encode(self, s: str) -> list[int]: ...
    def decode(self, ids: Iterable[int]) -> str: ...
    def decode_list(self, ids: Iterable[int]) -> list[str]: ...


class ProblemHParams(Protocol):
    """`problem_hparams`: what a problem says of its features, each by name."""
    modality: dict[str, Any]
    vocabulary: dict[str, Vocabulary]
    vocab_size: dict[str, int]
    target_space_id: int
    batch_size_multiplier: int
    loss_multiplier: float

    def get(self, name: str, default: Any = None) -> Any: ...


class Problem(Protocol):
    """A T2T `Problem`."""
    name: str
    has_inputs: bool
    decode_hooks: Sequence[Any]
    dataset: Callable[..., Any]
    input_fn: Callable[..., Any]
    preprocess: Callable[..., Any]
    preprocess_example: Callable[..., Any]
    decode_example: Callable[[Any], dict[str, Any]]
    maybe_reverse_and_copy: Callable[[dict[str, Any]], dict[str, Any]]
    example_reading_spec: Callable[[], tuple[dict[str, Any], Any]]

    def dataset_filename(self) -> str: ...
    def filepattern(self, data_dir: str, mode: str) -> str: ...
    def generate_data(self, data_dir: str, tmp_dir: str) -> None: ...
    def get_feature_encoders(self, data_dir: str | None = None) -> dict[str, Vocabulary]: ...
    def get_hparams(self, model_hparams: "HParams | None" = None) -> ProblemHParams: ...
    def max_length(self, model_hparams: "HParams") -> int: ...
    def make_estimator_input_fn(self, mode: str, hparams: "HParams", **options: Any) -> Any: ...


class TextProblem(Problem, Protocol):
    """A problem of parallel text, such as `rpr.problems.translation.TranslationProblem`."""
    extra_test_sets: Sequence[str]
    was_reversed: bool
    packed_length: int | None
    get_or_create_vocab: Callable[..., Any]
    generate_samples: Callable[..., Iterator[dict[str, str]]]
    generate_encoded_samples: Callable[..., Iterator[dict[str, Any]]]
    _maybe_pack_examples: Callable[[Iterator[dict[str, Any]]], Iterator[dict[str, Any]]]

    def sources(self, tmp_dir: str) -> dict[str, str]: ...
    def documents(self, split: str, tmp_dir: str) -> list[str] | None: ...
    def write_text(self, split: str, tmp_dir: str, source_path: str, target_path: str) -> int: ...


class HParams(Protocol):
    """T2T's `HParams`: values by name, as attributes.

    A set has those of its model only: `get` is for the ones that another model lacks.
    """
    problem: Problem
    problem_hparams: ProblemHParams
    data_dir: str
    model_dir: str
    mode: str
    # The body of the model.
    hidden_size: int
    filter_size: int
    kernel_width: int
    num_heads: int
    num_hidden_layers: int
    num_encoder_layers: int
    num_decoder_layers: int
    attention_key_channels: int
    attention_value_channels: int
    self_attention_type: str
    layer_preprocess_sequence: str
    layer_postprocess_sequence: str
    norm_type: str
    norm_epsilon: float
    use_pad_remover: bool
    encoder: str
    attention_flavour: str
    compatibility: str
    prepend_mode: str
    scheduled_sampling_prob: float
    sampling_method: str
    sampling_temp: float
    activation_dtype: str
    weight_dtype: str
    gpu_automatic_mixed_precision: bool
    # Positions.
    pos: str
    position: str
    encoder_position: str
    decoder_position: str
    max_relative_position: int
    heads_share_relative_embedding: bool
    relative_keys: bool
    relative_values: bool
    num_edge_labels: int
    rotary_base: float
    rotary_fraction: float
    deberta_num_buckets: int
    deberta_max_distance: int
    t5_num_buckets: int
    t5_max_distance: int
    t5_share_layers: bool
    # Embeddings and logits; functions by feature in the dicts.
    shared_embedding_and_softmax_weights: bool
    symbol_modality_num_shards: int
    multiply_embedding_mode: str
    factored_logits: bool
    bottom: dict[str, Any]
    top: dict[str, Any]
    loss: dict[str, Any]
    name: dict[str, Any]
    # Dropout: shares of what is dropped.
    dropout: float
    attention_dropout: float
    layer_prepostprocess_dropout: float
    relu_dropout: float
    symbol_dropout: float
    # Batches; lengths in sub-words.
    batch_size: int
    use_fixed_batch_size: bool
    no_data_parallelism: bool
    pack_dataset: bool
    min_length: int
    max_length: int
    max_input_seq_length: int
    max_target_seq_length: int
    split_to_length: int
    # Training.
    label_smoothing: float
    clip_grad_norm: float
    optimizer: str
    optimizer_multistep_accumulate_steps: int
    learning_rate_schedule: str
    learning_rate_decay_scheme: str
    learning_rate_warmup_steps: int
    learning_rate_restart_steps: int
    learning_rate_restart_t_mul: float
    learning_rate_restart_m_mul: float
    learning_rate_restart_alpha: float

    def __contains__(self, name: str) -> bool: ...
    def get(self, name: str, default: Any = None) -> Any: ...
    def values(self) -> dict[str, Any]: ...
    def parse(self, values: str) -> "HParams":
        """Applies overrides, "name=value,..."."""

    def add_hparam(self, name: str, value: Any) -> None: ...
    def set_hparam(self, name: str, value: Any) -> None: ...


class DecodeHParams(Protocol):
    """T2T's decode hparams: those of the beam search and of its input and output."""
    beam_size: int
    alpha: float
    extra_length: int
    batch_size: int
    max_input_size: int
    return_beams: bool
    write_beam_scores: bool
    delimiter: str
    log_results: bool
    skip_eos_postprocess: bool
    shards: int
    shard_id: int

    def get(self, name: str, default: Any = None) -> Any: ...
    def values(self) -> dict[str, Any]: ...
    def parse(self, values: str) -> Any: ...
