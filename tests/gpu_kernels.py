"""What a GPU would run of a graph, by the table of kernels that scripts/gpu_placement.py writes."""
import functools
import json
import math
import pathlib

import gpu_placement
import tensorflow.compat.v1 as tf

TABLE = pathlib.Path(__file__).parent / "data" / f"gpu_kernels-{tf.__version__}.json"


@functools.cache
def table():
    return json.loads(TABLE.read_text(encoding="utf-8"))


def lacking(graph):
    """Operations of a graph, with their types, that have no GPU kernel; the host's are left out."""
    return gpu_placement.lacking(graph, table())


def lacking_in(directory):
    """`lacking` of all graphs that a training or an evaluation wrote for TensorBoard."""
    names, graphs = set(), 0
    for path in pathlib.Path(directory).glob("events.*"):
        for event in tf.train.summary_iterator(str(path)):
            if event.graph_def:
                with tf.Graph().as_default() as graph:
                    tf.import_graph_def(tf.GraphDef.FromString(event.graph_def), name="")
                names.update(lacking(graph))
                graphs += 1
    assert graphs, f"no graph in {directory}"
    return sorted(names)


def large_copies(graph, positions, sentences=None):
    """Tensors that are copied between host and device and have more than two values per position
    of the batch. A dimension that is not known counts as all positions; with `sentences`, a first
    one counts as these, and any other as the positions of one."""
    first, other = (sentences, positions // sentences) if sentences else (positions, positions)
    large = []
    for tensor, consumer, to_host in gpu_placement.crossings(graph, table()):
        shape = [math.inf] if tensor.shape.rank is None else [
            (other if axis else first) if size is None else size
            for axis, size in enumerate(tensor.shape.as_list())]
        if math.prod(shape) > 2 * positions and not _is_input(tensor, consumer):
            large.append(f"{tensor.dtype.name} {tensor.shape} to {'host' if to_host else 'device'}:"
                         f" {tensor.op.type} {tensor.op.name} -> {consumer.type} {consumer.name}")
    return large


def _is_input(tensor, consumer):
    """Whether it comes from the host: features, also split for towers; statistics of features."""
    return ("Split" in (tensor.op.type, consumer.type) or "input_stats" in tensor.op.name
            or tensor.op.type in ("Const", "Identity") and consumer.type == "Cast")
