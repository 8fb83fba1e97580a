#!/usr/bin/env python3
"""Where TensorFlow would place a graph on a machine with a GPU, found without one.

A table lists the GPU kernels of each operation with the types that they are registered for and the
arguments that they keep in host memory. From the table follow the operations that have no GPU
kernel, and the tensors that are copied between host and device. Not covered: what Grappler changes
in the graph, copies inside kernels, and feeds and fetches.

  scripts/gpu_placement.py [--out=tests/data/gpu_kernels-VERSION.json]

writes the table of the installed TensorFlow, for tests on machines without a GPU. The wheel
`tensorflow` has GPU kernels, the wheel `tensorflow-cpu` has none. No GPU and no CUDA library is
needed: kernels are registered when TensorFlow is imported.
"""
import argparse
import json
import os
import pathlib
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow.compat.v1 as tf  # noqa: E402

# A kernel maps type attributes to the types that it is registered for, and HOST_MEMORY to the names
# of the arguments that it keeps in host memory. An attribute that is not listed may have any type.
Kernel = dict[str, list[str]]
KernelTable = dict[str, list[Kernel]]
HOST_MEMORY = "host_memory"
# Operations that belong on the host: summaries, checks of shapes, metrics in Python, checkpoints.
HOST_OPS = frozenset({
    "Assert", "DenseToDenseSetOperation", "PyFunc", "PyFuncStateless",
    "ScalarSummary", "HistogramSummary", "MergeSummary", "TensorSummaryV2",
    "SaveV2", "RestoreV2", "MergeV2Checkpoints", "ShardedFilename", "StaticRegexFullMatch",
    "StringJoin"})
# T2T splits the ids of a batch among its towers, and counts steps and accumulated batches in int32.
HOST_TYPES = frozenset({("Split", "int32"), ("Split", "int64"), *((name, "int32") for name in (
    "VariableV2", "VarHandleOp", "Assign", "AssignAdd", "IsVariableInitialized"))})
# A handle in host memory belongs to data that stays where they are.
_HANDLES = (tf.resource, tf.variant, tf.string)


class Crossing(NamedTuple):
    """A tensor that is copied between host and device.

    Attributes:
      tensor: the tensor.
      consumer: the operation that reads it on the other side.
      to_host: the direction.
    """
    tensor: tf.Tensor
    consumer: tf.Operation
    to_host: bool


def registered_kernels() -> KernelTable:
    """The GPU kernels of the installed TensorFlow; those of the wheel `tensorflow-cpu` are few."""
    from tensorflow.python.framework import kernels
    table: KernelTable = {}
    registered = kernels.get_all_registered_kernels().kernel
    for device in ("GPU", "DEFAULT"):                 # DEFAULT: any device without its own kernel
        for kernel in registered:
            if kernel.device_type == device:
                entry = {item.name: sorted(tf.as_dtype(kind).name
                                           for kind in item.allowed_values.list.type)
                         for item in kernel.constraint if item.allowed_values.list.type}
                if kernel.host_memory_arg:
                    entry[HOST_MEMORY] = sorted(set(kernel.host_memory_arg))
                table.setdefault(kernel.op, []).append(entry)
    return {name: _merge(table[name]) for name in sorted(table)}


def _merge(entries: list[Kernel]) -> list[Kernel]:
    """Merges kernels that differ in the types of a single attribute."""
    merged: list[Kernel] = []
    for entry in sorted(entries, key=str):
        for earlier in merged:
            if earlier.keys() == entry.keys():
                different = [name for name in entry if entry[name] != earlier[name]]
                if not different:
                    break
                if len(different) == 1 and different[0] != HOST_MEMORY:
                    name = different[0]
                    earlier[name] = sorted({*earlier[name], *entry[name]})
                    break
        else:
            merged.append(dict(entry))
    return merged if len(merged) == len(entries) else _merge(merged)


def op_types(op: tf.Operation) -> dict[str, set[str]]:
    """{type attribute: the types that the operation has}."""
    types = {}
    for name, value in op.node_def.attr.items():
        if value.WhichOneof("value") == "type":
            types[name] = {tf.as_dtype(value.type).base_dtype.name}
        elif value.list.type:
            types[name] = {tf.as_dtype(kind).base_dtype.name for kind in value.list.type}
    return types


def find_kernel(op: tf.Operation, table: KernelTable) -> Kernel | None:
    """The GPU kernel of an operation with its types; None if there is none."""
    types = op_types(op)
    for kernel in table.get(op.type, ()):
        if all(types.get(name, set()) <= set(allowed) for name, allowed in kernel.items()
               if name != HOST_MEMORY):
            return kernel
    return None


def belongs_on_host(op: tf.Operation) -> bool:
    """Whether the operation is on the list of the host's, or handles strings or data sets."""
    types = set().union(*op_types(op).values())
    return (op.type in HOST_OPS or "string" in types or "Dataset" in op.type
            or "Iterator" in op.type or any((op.type, kind) in HOST_TYPES for kind in types))


def _is_function_call(op: tf.Operation) -> bool:
    return op.graph._is_function(op.type)


def lacking(graph: tf.Graph, table: KernelTable) -> list[str]:
    """Operations, with their types, that have no GPU kernel and do not belong on the host."""
    return sorted({f"{op.type} {sorted((name, *kinds) for name, kinds in op_types(op).items())}"
                   for op in graph.get_operations() if not _is_function_call(op)
                   and not belongs_on_host(op) and find_kernel(op, table) is None})


def crossings(graph: tf.Graph, table: KernelTable) -> list[Crossing]:
    """The tensors that are copied between host and device when the graph runs, each once."""
    memory = {op: _host_arguments(op, table) for op in graph.get_operations()}
    copies: dict[tuple[str, bool], Crossing] = {}
    for consumer, (host_inputs, _) in memory.items():
        for index, tensor in enumerate(consumer.inputs):
            is_on_host = tensor.value_index in memory[tensor.op][1]
            wants_host = index in host_inputs
            if is_on_host != wants_host and tensor.dtype.base_dtype not in _HANDLES:
                copies.setdefault((tensor.name, wants_host),
                                  Crossing(tensor, consumer, wants_host))
    return list(copies.values())


def _host_arguments(op: tf.Operation, table: KernelTable) -> tuple[set[int], set[int]]:
    """The indices of an operation's inputs and outputs that are in host memory."""
    kernel: Kernel | None = {}
    if belongs_on_host(op) or "CPU" in op.device.upper():
        kernel = None
    elif not _is_function_call(op):                   # functions are inlined
        kernel = find_kernel(op, table)
    if kernel is None:
        return set(range(len(op.inputs))), set(range(len(op.outputs)))
    names = kernel.get(HOST_MEMORY, [])
    return _indices(op, op.op_def.input_arg, names), _indices(op, op.op_def.output_arg, names)


def _indices(op: tf.Operation, arguments: Any, names: list[str]) -> set[int]:
    places = [name for argument in arguments for name in _repeated(op, argument)]
    return {index for index, name in enumerate(places) if name in names}


def _repeated(op: tf.Operation, argument: Any) -> Iterator[str]:
    """The name of an argument, once for each tensor in it."""
    count = 1
    if argument.number_attr:
        count = op.get_attr(argument.number_attr)
    elif argument.type_list_attr:
        count = len(op.get_attr(argument.type_list_attr))
    yield from [argument.name] * count


def main() -> None:
    """Writes the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", help="file to write (tests/data/gpu_kernels-VERSION.json)")
    options = parser.parse_args()
    from rpr.utils import files
    table = registered_kernels()
    if "MatMul" not in table:
        sys.exit(f"gpu_placement.py: TensorFlow {tf.__version__} here has no GPU kernels; the "
                 "wheel `tensorflow` (scripts/setup gpu) has them")
    out = options.out or str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "data"
                             / f"gpu_kernels-{tf.__version__}.json")
    lines = [f"{json.dumps(name)}: {json.dumps(kernels, separators=(',', ':'))}"
             for name, kernels in table.items()]
    files.write_atomically(out, "{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{out}: {len(table)} operations with GPU kernels, TensorFlow {tf.__version__}")


if __name__ == "__main__":
    main()
