"""Which operations of a graph have a GPU kernel, by the table of scripts/gpu_kernels.py."""
import functools
import json
import pathlib

import tensorflow.compat.v1 as tf

TABLE = pathlib.Path(__file__).parent / "data" / f"gpu_kernels-{tf.__version__}.json"

# Operations that belong on the host: summaries, checks and messages.
HOST = {"Assert", "ScalarSummary", "HistogramSummary", "MergeSummary", "TensorSummaryV2"}
# T2T splits the ids of a batch among its devices; ids come from the host.
HOST_TYPES = {("Split", "int32"), ("Split", "int64")}


@functools.cache
def table():
    return json.loads(TABLE.read_text(encoding="utf-8"))


def types(op):
    """{type attribute: the types that the operation has}."""
    found = {}
    for name, value in op.node_def.attr.items():
        if value.WhichOneof("value") == "type":
            found[name] = {tf.as_dtype(value.type).base_dtype.name}
        elif value.list.type:
            found[name] = {tf.as_dtype(kind).base_dtype.name for kind in value.list.type}
    return found


def has_kernel(op):
    """Whether a GPU kernel is registered for the operation with its types."""
    own = types(op)
    return any(all(own.get(name, set()) <= set(allowed) for name, allowed in kernel.items())
               for kernel in table().get(op.type, ()))


def belongs_on_host(op):
    """Whether it is on the named list, or handles strings."""
    own = set().union(*types(op).values())
    return op.type in HOST or "string" in own or any((op.type, kind) in HOST_TYPES for kind in own)


def lacking(graph):
    """Operations of a graph, with their types, that have no GPU kernel; the host's are left out."""
    functions = {function.signature.name for function in graph.as_graph_def().library.function}
    return sorted({f"{op.type} {sorted((k, *v) for k, v in types(op).items())}"
                   for op in graph.get_operations() if op.type not in functions
                   and not belongs_on_host(op) and not has_kernel(op)})
