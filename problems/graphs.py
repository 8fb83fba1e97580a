"""Sentences with labelled edges between their words, and a toy problem of paths in random graphs.

A line of text contains the words and, after a tab each, the edges: the position of the word where
the edge starts, the position of the word where it ends (both counted from 0), and the edge's label.

    it rains<TAB>1 0 subject
"""
import os
import random
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow.compat.v1 as tf
from tensor2tensor.data_generators import text_encoder
from tensor2tensor.layers import common_layers
from tensor2tensor.utils import registry

from rpr.problems import text_files, toy
from rpr.utils import files
from rpr.utils.errors import UserError
from rpr.utils.interfaces import HParams

Edge = tuple[int, int, int]                           # start, end, label


class GraphEncoder(text_encoder.TextEncoder):
    """Encodes a line's words and edges as one list of ids, which `split_edges` reads.

    Every edge from i to j implies one from j to i with a label of its own, unless the line has an
    edge there. Every sub-word of a word gets the word's edges. Label number 0 means "no edge"; the
    labels are numbered from 1, then come their reverse labels in the same order.
    """

    def __init__(self, words: text_encoder.TextEncoder, labels: Sequence[str]) -> None:
        super().__init__()
        self._words, self._labels = words, labels

    def encode(self, s: str) -> list[int]:
        ids, edges = self.words_and_edges(s)
        if not edges:
            return ids
        return ids + [text_encoder.EOS_ID] + [2 + number for edge in edges for number in edge]

    def words_and_edges(self, line: str) -> tuple[list[int], list[Edge]]:
        """The ids of a line's words, and its edges (i, j, label) with positions among the ids.

        An edge is refused if its form, a position or its label is wrong, or if it is the second one
        from a word to another.
        """
        text, *edge_texts = line.strip(" \t\r\n").split("\t")
        ids: list[int] = []
        positions = []                                # of each word's sub-words
        for word in filter(None, text.split(" ")):    # a no-break space belongs to a word
            pieces = self._words.encode(word)
            positions.append(range(len(ids), len(ids) + len(pieces)))
            ids += pieces
        labels: dict[tuple[int, int], int] = {}
        for edge_text in edge_texts:
            start, end, label = self._parse_edge(edge_text, len(positions), line)
            if (start, end) in labels:
                raise UserError(f"'{_shown(line)}': two edges from {start} to {end}")
            labels[start, end] = label
        for (start, end), label in list(labels.items()):
            labels.setdefault((end, start), label + len(self._labels))
        return ids, [(i, j, label) for (start, end), label in labels.items()
                     for i in positions[start] for j in positions[end]]

    def _parse_edge(self, edge: str, word_count: int, line: str) -> Edge:
        parts = edge.split()
        # Nine digits: Python refuses to convert numbers of thousands of digits.
        if len(parts) != 3 or not all(part.isdecimal() and len(part) < 10 for part in parts[:2]):
            raise UserError(f"'{_shown(line)}': the edge '{edge[:60]}' is not two positions and a "
                            "label")
        start, end = int(parts[0]), int(parts[1])
        if max(start, end) >= word_count:
            raise UserError(f"'{_shown(line)}': the edge '{edge[:60]}' is outside the line's "
                            f"{word_count} words")
        if parts[2] not in self._labels:
            raise UserError(f"'{_shown(line)}': the edge '{edge[:60]}' has an unknown label; "
                            f"known: {', '.join(self._labels[:20])}")
        return start, end, 1 + self._labels.index(parts[2])

    def decode(self, ids: Sequence[int], strip_extraneous: bool = False) -> str:
        """The words, without the edges."""
        return self._words.decode(ids, strip_extraneous)

    @property
    def vocab_size(self) -> int:
        return self._words.vocab_size

    @property
    def num_edge_labels(self) -> int:
        """The number of labels: "no edge", and each label in both directions."""
        return 1 + 2 * len(self._labels)


def split_edges(ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Separates words and edges that were encoded as one row of ids, as for a line of text.

    A row of int32 [batch, length] consists of the ids of the words, the end of sentence (1), three
    ids for each edge (the positions of its two ends and its label, each plus 2), another 1, and
    zeros. Returns the words with their 1, int32 [batch, words], and the labels of the edges between
    them, int32 [batch, words, words].
    """
    ends = tf.equal(ids, 1)
    word = tf.equal(tf.cumsum(tf.cast(ends, tf.int32), axis=1, exclusive=True), 0) & (ids > 0)
    words = tf.ragged.boolean_mask(ids, word).to_tensor()
    edges = tf.ragged.boolean_mask(ids, ~word & (ids > 1)).to_tensor(default_value=2) - 2
    return words, dense_edges(edges, common_layers.shape_list(words)[1])


def dense_edges(triples: tf.Tensor, length: int | tf.Tensor) -> tf.Tensor:
    """The matrix of edges that are given as triples, int32 [batch, length, length], else 0.

    Triples are integers [batch, 3 * edges]: (i, j, label) for each edge, one after the other. Each
    (i, j) occurs at most once. A triple with label 0 or a position >= length is ignored.
    """
    batch = common_layers.shape_list(triples)[0]
    triples = tf.reshape(tf.cast(triples, tf.int32), [batch, -1, 3])
    example = tf.broadcast_to(tf.range(batch)[:, None, None], tf.shape(triples[..., :1]))
    indices = tf.concat([example, triples[..., :2]], axis=2)         # [batch, edges, 3]
    valid = tf.reduce_max(triples[..., :2], axis=2) < length
    return tf.scatter_nd(tf.boolean_mask(indices, valid),
                         tf.boolean_mask(triples[..., 2], valid), [batch, length, length])


def _shown(line: str) -> str:
    return line[:60].strip().replace("\t", "<TAB>")


class GraphProblem:
    """Mixin that makes a text problem one of graphs; list it before the text problem's class.

    The TFRecords store the edges as a flat list `edges` of i, j, label, i, j, label, ...; the model
    gets them as a matrix. `rpr decode` takes lines with edges.
    """

    def edge_names(self, data_dir: str) -> Sequence[str]:
        """The names of the labels."""
        raise NotImplementedError

    def feature_encoders(self, data_dir: str) -> dict[str, Any]:
        encoders = super().feature_encoders(data_dir)             # type: ignore[misc]
        return {**encoders, "inputs": GraphEncoder(encoders["inputs"], self.edge_names(data_dir))}

    def generate_encoded_samples(self, data_dir: str, tmp_dir: str,
                                 dataset_split: str) -> Iterator[dict[str, list[int]]]:
        problem: Any = self
        words = problem.get_or_create_vocab(data_dir, tmp_dir)
        encoder = GraphEncoder(words, self.edge_names(data_dir))
        for sample in problem.generate_samples(data_dir, tmp_dir, dataset_split):
            ids, edges = encoder.words_and_edges(sample["inputs"])
            encoded = {"inputs": ids + [text_encoder.EOS_ID],
                       "targets": words.encode(sample["targets"]) + [text_encoder.EOS_ID]}
            if edges:                                 # T2T refuses an empty feature
                encoded["edges"] = [number for edge in edges for number in edge]
            yield encoded

    def example_reading_spec(self) -> tuple[dict[str, Any], Any]:
        fields, decoders = super().example_reading_spec()         # type: ignore[misc]
        return {**fields, "edges": tf.VarLenFeature(tf.int64)}, decoders

    def preprocess_example(self, example: dict[str, tf.Tensor], mode: str,
                           hparams: HParams) -> dict[str, tf.Tensor]:
        example = super().preprocess_example(example, mode, hparams)    # type: ignore[misc]
        length = tf.shape(example["inputs"])[0]
        example["edges"] = dense_edges(example["edges"][None], length)[0]
        return example

    def hparams(self, defaults: Any, model_hparams: Any) -> None:
        super().hparams(defaults, model_hparams)                  # type: ignore[misc]
        defaults.add_hparam("edges_in_text", True)
        problem: Any = self
        needed = problem._encoders["inputs"].num_edge_labels
        num_edge_labels = model_hparams.get("num_edge_labels", 1)
        position = model_hparams.get("encoder_position") or model_hparams.get("position", "")
        if "graph" in position and num_edge_labels < needed:
            raise UserError(f"num_edge_labels={num_edge_labels}: the problem {problem.name} needs "
                            f"{needed}: one for \"no edge\", and {needed // 2} labels in both "
                            "directions")


def _labels_of(source: str) -> list[str]:
    return [edge.split()[-1] for edge in source.split("\t")[1:] if edge.strip()]


@registry.register_problem("graph_text_files")
class GraphTextFiles(GraphProblem, text_files.TranslateTextFiles):
    """Your own line-aligned files with edges between the words of the source: RPR_TEXT_SOURCE, ...

    The files are given as for translate_text_files. The labels are those of RPR_TEXT_SOURCE.
    """

    vocab_filename = "vocab.graph_text_files.subwords"
    labels_filename = "vocab.graph_text_files.labels"

    has_edges = True
    _labels: set[str] | None = None                   # known after a pass over the training text

    def edge_names(self, data_dir: str) -> list[str]:
        with open(os.path.join(data_dir, self.labels_filename), encoding="utf-8") as lines:
            return lines.read().split()

    def vocabulary_text(self, tmp_dir: str) -> Iterator[str]:
        text = super().vocabulary_text(tmp_dir)
        for source, target in zip(text, text, strict=True):
            yield from (source.split("\t")[0], target)

    def text_pairs(self, split: str, tmp_dir: str) -> Iterator[tuple[str, str]]:
        labels: set[str] = set()
        for source, target in super().text_pairs(split, tmp_dir):
            labels.update(_labels_of(source))
            yield source, target
        if split == "train":
            for held_out in self._training_text.shares:              # of the same files
                labels.update(*(_labels_of(source)
                                for source, _ in self._training_text.pairs(held_out)))
            self._labels = labels

    def get_or_create_vocab(self, data_dir: str, tmp_dir: str, force_get: bool = False) -> Any:
        encoder = super().get_or_create_vocab(data_dir, tmp_dir, force_get)
        path = os.path.join(data_dir, self.labels_filename)
        if not force_get and not os.path.exists(path):
            if self._labels is None:                  # the vocabulary was there before
                for _ in self.text_pairs("train", tmp_dir):
                    pass
            assert self._labels is not None
            files.write_atomically(path, "".join(f"{label}\n" for label in sorted(self._labels)))
        return encoder


@registry.register_problem("graph_paths")
class GraphPaths(GraphProblem, toy.GeneratedProblem):
    """The labels along the only path between two marked nodes of a labelled graph, or "none".

    Directed trees of 6 to 12 nodes for training and development, of 13 to 20 for testing, with the
    nodes in random order. Two nodes are marked; only edges distinguish the others.
    """

    labels = ("a", "b", "c", "d")
    tokens = ("node", "from", "to", "none", *labels)
    sizes = {"train": 100000, "dev": 500, "test": 1000}
    nodes = {"train": (6, 12), "dev": (6, 12), "test": (13, 20)}
    longest = 4                                       # edges in a path
    roots = 0.1                                       # share of nodes without an incoming edge

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "nodes": self.nodes, "longest": self.longest,
                "roots": self.roots}

    def edge_names(self, data_dir: str) -> Sequence[str]:
        del data_dir
        return self.labels

    def example(self, rng: random.Random, split: str) -> tuple[str, str]:
        count = rng.randint(*self.nodes[split])
        parents = [None] + [None if rng.random() < self.roots else rng.randrange(max(0, node - 3),
                                                                                 node)
                            for node in range(1, count)]
        labels = rng.choices(self.labels, k=count)    # of the edge that enters a node
        pairs = self._pairs_by_distance(parents)
        start, end = rng.choice(pairs[rng.choice([length for length in pairs if pairs[length]])])
        path = []
        if (start, end) not in pairs[0]:
            node: Any = end
            while node != start:
                path.append(labels[node])
                node = parents[node]
        order = rng.sample(range(count), count)       # the position of each node
        words = ["node"] * count
        words[order[start]], words[order[end]] = "from", "to"
        edges = [f"{order[parent]} {order[node]} {labels[node]}"
                 for node, parent in enumerate(parents) if parent is not None]
        rng.shuffle(edges)
        return "\t".join([" ".join(words), *edges]), " ".join(path[::-1]) or "none"

    def _pairs_by_distance(self, parents: Sequence[Any]) -> dict[int, list[tuple[int, int]]]:
        """Pairs of nodes by the length of the path between them; 0: there is no path."""
        count = len(parents)
        pairs: dict[int, list[tuple[int, int]]] = {
            length: [] for length in range(self.longest + 1)}
        for end in range(count):
            ancestors, node = [end], parents[end]
            while node is not None:
                ancestors.append(node)
                node = parents[node]
            for length, start in enumerate(ancestors[1:self.longest + 1], start=1):
                pairs[length].append((start, end))
            pairs[0] += [(start, end) for start in range(count) if start not in ancestors]
        return pairs
