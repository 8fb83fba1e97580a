"""Sequences with labelled edges between their words, and the paths of random graphs.

A line of text holds the words and, after a tab each, the edges between them: the place of the word
that an edge leaves, that of the word that it enters, both counted from 0, and the edge's label.

    it rains<TAB>1 0 subject
"""
import os

import tensorflow.compat.v1 as tf
from tensor2tensor.data_generators import text_encoder
from tensor2tensor.utils import registry

from problems import text_files, toy
from rpr.nn import edges
from rpr.utils import files
from rpr.utils.errors import UserError


class GraphEncoder(text_encoder.TextEncoder):
    """Words and edges of a line as one list of ids, as `rpr.positions.distances.split_edges` reads it.

    An edge from i to j is also one from j to i, with a label of its own, unless the line has one
    there. Where a word has several ids, its edges are those of each.

    Args:
      words: the encoder of a word.
      labels: the names of the labels; the first has the number 1, its opposite follows the last.
    """

    def __init__(self, words, labels):
        super().__init__()
        self._words, self._labels = words, labels

    def encode(self, s):
        words, edges = self.words_and_edges(s)
        if not edges:
            return words
        return words + [text_encoder.EOS_ID] + [2 + number for edge in edges for number in edge]

    def words_and_edges(self, line):
        """The ids of a line's words, and its edges.

        Returns:
          a list of ids, and a list of (i, j, label) with the places of ids.

        Raises:
          UserError: an edge that is not three words, a place where the line has no word, an unknown
            label, a second edge between two places.
        """
        text, *given = line.strip().split("\t")
        ids, places = [], []
        for word in text.split():
            pieces = self._words.encode(word)
            places.append(range(len(ids), len(ids) + len(pieces)))
            ids += pieces
        edges = {}
        for edge in given:
            start, end, label = self._edge(edge, len(places), line)
            if (start, end) in edges:
                raise UserError(f"'{line[:60]}': two edges from {start} to {end}")
            edges[start, end] = label
        for (start, end), label in list(edges.items()):
            edges.setdefault((end, start), label + len(self._labels))
        return ids, [(i, j, label) for (start, end), label in edges.items()
                     for i in places[start] for j in places[end]]

    def _edge(self, edge, count, line):
        parts = edge.split()
        if len(parts) != 3 or not (parts[0].isdecimal() and parts[1].isdecimal()):
            raise UserError(f"'{line[:60]}': the edge '{edge}' is not two places and a label")
        start, end = int(parts[0]), int(parts[1])
        if max(start, end) >= count:
            raise UserError(f"'{line[:60]}': the edge '{edge}' leaves its {count} words")
        if parts[2] not in self._labels:
            raise UserError(f"'{line[:60]}': the edge '{edge}' has none of the labels "
                            f"{', '.join(self._labels)}")
        return start, end, 1 + self._labels.index(parts[2])

    def decode(self, ids, strip_extraneous=False):
        """The words alone."""
        return self._words.decode(ids, strip_extraneous)

    @property
    def vocab_size(self):
        return self._words.vocab_size

    @property
    def num_edge_labels(self):
        """How many labels there are: none, and each in both directions."""
        return 1 + 2 * len(self._labels)


class GraphProblem:
    """What makes a text problem one of graphs; stands before the text problem among the bases.

    The TFRecords hold the edges sparse, `edges`: i, j, label, i, j, label, ...; the model gets them
    as a matrix. `rpr decode` takes lines with edges.
    """

    def edge_names(self, data_dir):
        """The labels' names, a list or tuple."""
        raise NotImplementedError

    def feature_encoders(self, data_dir):
        encoders = super().feature_encoders(data_dir)
        return {**encoders, "inputs": GraphEncoder(encoders["inputs"], self.edge_names(data_dir))}

    def generate_encoded_samples(self, data_dir, tmp_dir, dataset_split):
        words = self.get_or_create_vocab(data_dir, tmp_dir)
        encoder = GraphEncoder(words, self.edge_names(data_dir))
        for sample in self.generate_samples(data_dir, tmp_dir, dataset_split):
            ids, edges = encoder.words_and_edges(sample["inputs"])
            encoded = {"inputs": ids + [text_encoder.EOS_ID],
                       "targets": words.encode(sample["targets"]) + [text_encoder.EOS_ID]}
            if edges:                                 # a feature without numbers is refused
                encoded["edges"] = [number for edge in edges for number in edge]
            yield encoded

    def example_reading_spec(self):
        fields, decoders = super().example_reading_spec()
        return {**fields, "edges": tf.VarLenFeature(tf.int64)}, decoders

    def preprocess_example(self, example, mode, hparams):
        example = super().preprocess_example(example, mode, hparams)
        length = tf.shape(example["inputs"])[0]
        example["edges"] = edges.dense_edges(example["edges"][None], length)[0]
        return example

    def hparams(self, defaults, model_hparams):
        super().hparams(defaults, model_hparams)
        defaults.add_hparam("edges_in_text", True)
        needed, given = self._encoders["inputs"].num_edge_labels, model_hparams.get("num_edge_labels", 1)
        position = model_hparams.get("encoder_position") or model_hparams.get("position", "")
        if "graph" in position and given < needed:
            raise UserError(f"num_edge_labels={given}: --problem={self.name} needs {needed}: one for "
                            f"no edge, and {needed // 2} labels in both directions")


@registry.register_problem("graph_text_files")
class GraphTextFiles(GraphProblem, text_files.TranslateTextFiles):
    """Your own line-aligned files with edges between the words of the source: RPR_TEXT_SOURCE, ...

    The files are given as for translate_text_files. The labels are those of the training text.
    """

    vocab_filename = "vocab.graph_text_files.subwords"
    labels_filename = "vocab.graph_text_files.labels"

    def edge_names(self, data_dir):
        with open(os.path.join(data_dir, self.labels_filename), encoding="utf-8") as lines:
            return lines.read().split()

    def generate_text_for_vocab(self, data_dir, tmp_dir):
        for line in super().generate_text_for_vocab(data_dir, tmp_dir):
            yield line.split("\t")[0]

    def get_or_create_vocab(self, data_dir, tmp_dir, force_get=False):
        path = os.path.join(data_dir, self.labels_filename)
        if not force_get and not os.path.exists(path):
            labels = {edge.split()[-1] for source, _ in self.text_pairs("train", tmp_dir)
                      for edge in source.split("\t")[1:] if edge.strip()}
            files.write_atomically(path, "".join(label + "\n" for label in sorted(labels)))
        return super().get_or_create_vocab(data_dir, tmp_dir, force_get)


@registry.register_problem("graph_paths")
class GraphPaths(GraphProblem, toy.GeneratedProblem):
    """The labels along the only path between two nodes of a labelled graph, or none; 6-20 nodes.

    Directed trees of 6 to 12 nodes to train and develop on, of 13 to 20 to test, their nodes in
    random order. The two nodes are marked, the others all alike: only edges tell them apart.
    """

    labels = ("a", "b", "c", "d")
    tokens = ("node", "from", "to", "none", *labels)
    sizes = {"train": 100000, "dev": 500, "test": 1000}
    nodes = {"train": (6, 12), "dev": (6, 12), "test": (13, 20)}
    longest = 4                                       # edges of a path
    roots = 0.1                                       # share of nodes that no edge enters

    def settings(self):
        return {**super().settings(), "nodes": self.nodes, "longest": self.longest,
                "roots": self.roots}

    def edge_names(self, data_dir):
        del data_dir
        return self.labels

    def example(self, rng, split):
        count = rng.randint(*self.nodes[split])
        parents = [None] + [None if rng.random() < self.roots else rng.randrange(max(0, node - 3),
                                                                                 node)
                            for node in range(1, count)]
        labels = rng.choices(self.labels, k=count)        # of the edge that enters a node
        paths = {length: [] for length in range(self.longest + 1)}     # 0: there is none
        for end in range(count):
            above, node = [end], end
            while parents[node] is not None:
                node = parents[node]
                above.append(node)
            for length in range(1, min(self.longest, len(above) - 1) + 1):
                paths[length].append((above[length], end))
            paths[0] += [(start, end) for start in range(count) if start not in above]
        start, end = rng.choice(paths[rng.choice([length for length in paths if paths[length]])])
        path = []
        if (start, end) not in paths[0]:
            node = end
            while node != start:
                path.append(labels[node])
                node = parents[node]
        order = rng.sample(range(count), count)               # place of each node
        words = ["node"] * count
        words[order[start]], words[order[end]] = "from", "to"
        edges = [f"{order[parent]} {order[node]} {labels[node]}"
                 for node, parent in enumerate(parents) if parent is not None]
        rng.shuffle(edges)
        return "\t".join([" ".join(words), *edges]), " ".join(path[::-1]) or "none"
