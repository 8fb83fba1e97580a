"""What TensorFlow reports of one traced step: matrix products, memory, copies, and devices."""
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf
from tensor2tensor.utils import trainer_lib

# (name of a node in the graph that runs, output) -> shape
_Shapes = dict[tuple[str, int], list[int]]


class Copy(NamedTuple):
    """A tensor that was copied between host and device, or between devices.

    Attributes:
      name: name of the tensor in the graph that runs.
      size: bytes.
    """
    name: str
    size: int


def trace(session: tf.Session, fetches: Any, feed: Any = None) -> Any:
    """Runs a step; returns its `tf.RunMetadata` with statistics and the graphs of the devices."""
    metadata = tf.RunMetadata()
    options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE, output_partition_graphs=True)
    session.run(fetches, feed, options=options, run_metadata=metadata)
    return metadata


def product_flops(metadata: Any) -> int:
    """FLOPs of the matrix products of a traced step, 2 m n k for a product.

    Products inside a loop count once.

    Raises:
      ValueError: TensorFlow does not report the shapes of an operand.
    """
    shapes, total = _output_shapes(metadata), 0
    for graph in metadata.partition_graphs:
        for node in graph.node:
            if "MatMul" not in node.op or (node.name, 0) not in shapes:
                continue
            inner = None
            for place, transposed in ((0, ("transpose_a", "adj_x")), (1, ("transpose_b", "adj_y"))):
                sizes = shapes.get(_source(node.input[place]))
                if sizes and len(sizes) > 1:
                    flipped = any(node.attr[key].b for key in transposed if key in node.attr)
                    inner = sizes[-2 if flipped == (place == 0) else -1]
            if inner is None:
                raise ValueError(f"the shapes of {node.name}'s operands are not reported")
            total += 2 * inner * math.prod(shapes[node.name, 0])
    return total


def timed(call: Callable[..., Any], *args: Any) -> float:
    """Wall-clock seconds of a call."""
    start = time.perf_counter()
    call(*args)
    return time.perf_counter() - start


def product_rate(device: str) -> Callable[[], float]:
    """A function that measures the rate of one large matrix product, in FLOP/s."""
    graph, rows = tf.Graph(), {"cpu": 2048, "gpu": 8192}[device]
    with graph.as_default(), tf.device(f"/{device}:0"):
        tf.set_random_seed(1)                         # TF_DETERMINISTIC_OPS=1 requires one
        matrix = tf.get_variable("matrix", [rows, rows])
        product = tf.matmul(tf.matmul(matrix, matrix), matrix)[0, 0]
        session = tf.Session(config=trainer_lib.create_session_config())
        session.run(tf.global_variables_initializer())
        call = session.make_callable(product)
    return lambda: 2 * 2 * rows ** 3 / timed(call)


def peak_bytes(metadata: Any, device: str) -> int:
    """The largest amount of memory in use during a traced step.

    Args:
      metadata: metadata of the step.
      device: "gpu": all that the GPU's allocator holds when an operation ends, weights included;
        "cpu": what the step has allocated and not yet released, weights excluded.
    """
    memory = [used for statistics in metadata.step_stats.dev_stats
              for node in statistics.node_stats for used in node.memory]
    if device == "gpu":
        # Its `peak_bytes` are those of one operation.
        return max(used.allocator_bytes_in_use for used in memory if "GPU" in used.allocator_name)
    in_use = peak = 0
    # At the same microsecond memory is released first.
    for record in sorted((record for used in memory for record in used.allocation_records),
                         key=lambda record: (record.alloc_micros, record.alloc_bytes)):
        in_use += record.alloc_bytes
        peak = max(peak, in_use)
    return peak


def copies(metadata: Any) -> list[Copy]:
    """The tensors that were copied between host and device, largest first."""
    shapes, result = _output_shapes(metadata), []
    for graph in metadata.partition_graphs:
        for node in graph.node:
            if node.op in ("_Send", "_HostSend"):
                name, slot = _source(node.input[0])
                elements = math.prod(shapes.get((name, slot), []))
                result.append(Copy(f"{name}:{slot}",
                                   elements * tf.as_dtype(node.attr["T"].type).size))
    return sorted(result, key=lambda copy: -copy.size)


def ops_on_host(metadata: Any) -> list[str]:
    """The types of the operations that a traced step ran on the CPU."""
    return sorted({node.op for graph in metadata.partition_graphs for node in graph.node
                   if "device:CPU" in node.device and not node.op.startswith("_")})


def _source(name: str) -> tuple[str, int]:
    source, _, slot = name.partition(":")
    return source, int(slot or 0)


def _output_shapes(metadata: Any) -> _Shapes:
    return {(node.node_name, output.slot):
            [dim.size for dim in output.tensor_description.shape.dim]
            for device in metadata.step_stats.dev_stats for node in device.node_stats
            for output in node.output}
