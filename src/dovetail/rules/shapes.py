"""Q6: shapes and rank."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from dovetail.finding import Finding, Severity
from dovetail.model.edit import shape_of
from dovetail.model.origin import origin_of
from dovetail.model.place import at_node, at_tensor
from dovetail.model.suggest_shapes import shape_line
from dovetail.op_support import OpTable
from dovetail.rules.check_input import CheckInput
from dovetail.rules.rule import rule


@rule("Q601")
def dynamic_shape(subject: CheckInput) -> Iterator[Finding]:
    """A tensor has a dynamic shape: its size is not known before the model runs.

    ## What it finds
    Inputs with a symbolic or unknown dimension, and tensors inside the graph whose shape depends on the data
    (NonZero, NonMaxSuppression, a Reshape to a computed shape). If any input has a dynamic shape, only the inputs are
    reported, because other shapes may depend on them.

    ## Why it matters
    Compilers for integer hardware allocate memory ahead of time. They reject a graph with dynamic shapes, or leave that
    part of it to the CPU. `dovetail fit` refuses such a model.

    ## How to fix it
    Pin the shapes of inputs with `--shape NAME=1,3,224,224`. If a shape depends on the data, use an operator with a
    fixed output size (TopK with a constant k instead of NonZero), or split the model there and run the rest outside
    the target.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), compiled for SoC 43: a dynamic batch, NonMaxSuppression and NonZero
      are rejected ("cannot get shape", "output must be static").
    - ort-cpu: onnxruntime 1.31.1 runs dynamic shapes (tests/backends/ort_cpu/test_rules.py); `dovetail fit` requires
      fixed ones, so that it measures the same graph that ships.
    """
    dynamic_inputs = [value for value in subject.model.graph.inputs if shape_of(value) is None]
    line = shape_line(subject.model) if dynamic_inputs else ""
    for value in dynamic_inputs:
        name = origin_of(value).name
        yield Finding(
            "Q601",
            at_tensor(value),
            f"input {name!r} has the dynamic shape {_text(value.shape)}",
            Severity.ERROR,
            fix=f"pin it, for example with {line}",
        )
    if dynamic_inputs:
        return
    for node in subject.model.graph:
        if any(value is not None and shape_of(value) is None for value in node.inputs):
            continue  # the cause is further up in the graph
        for value in node.outputs:
            if value.name and shape_of(value) is None:
                name = origin_of(value).name
                yield Finding(
                    "Q601",
                    at_tensor(value),
                    f"{node.op_type} output {name!r} has the shape {_text(value.shape)}, which depends on the data",
                    Severity.ERROR,
                    fix=f"replace {node.op_type} with an operator of fixed output size, or split the model before it",
                )


@rule("Q602")
def rank_above_target_limit(subject: CheckInput) -> Iterator[Finding]:
    """A tensor has more dimensions than the target supports.

    ## What it finds
    Inputs, constants and tensors inside the graph whose rank is above the target's maximum, and operators that read
    such a tensor and return one of lower rank. Tensors whose dimensions the compiler merges are left out (on HTP: rank
    6 in Reshape -> Transpose -> Reshape with a dimension of 1 that the Transpose leaves where it is).

    ## Why it matters
    The target has no kernel for such a tensor: its compiler rejects the operator, or leaves it to the CPU, with a copy
    to the CPU and back. Windowed attention (Swin) and pixel shuffles written as Reshape - Transpose - Reshape use
    rank 6.

    ## How to fix it
    Merge dimensions that stay next to each other (for example the batch and the window rows) with a Reshape before the
    operator, and split them again after it. A Transpose over six dimensions can be written as two over at most five.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), compiled for SoC 43: Transpose and Mul of rank 6 (Swin windows) are
      rejected ("incorrect Rank 6"); with merged dimensions they compile. Reshape -> Transpose -> Reshape over rank 6
      with a dimension of 1 that stays in its place compiles; moved, or with an operator in between, all run on the
      CPU.
    """
    max_rank = subject.table.max_rank
    if max_rank is None:
        return
    for value, kind in _values(subject.model.graph):
        if not _exceeds(value, max_rank, subject.table):
            continue
        name, rank = origin_of(value).name, len(value.shape or ())
        yield Finding(
            "Q602",
            at_tensor(value),
            f"{kind} {name!r} has {rank} dimensions ({_text(value.shape)}), {subject.table.target} supports at most "
            f"{max_rank}",
            Severity.ERROR,
            {"rank": float(rank), "highest": float(max_rank)},
            f"merge adjacent dimensions with a Reshape, so that {name!r} has at most {max_rank}",
        )
    for node in subject.model.graph:
        read = [v for v in node.inputs if v is not None and _exceeds(v, max_rank, subject.table)]
        if read and not any(_exceeds(value, max_rank, subject.table) for value in node.outputs):
            name, rank = origin_of(read[0]).name, len(read[0].shape or ())
            yield Finding(
                "Q602",
                at_node(node),
                f"{node.op_type} reads {name!r}, which has {rank} dimensions ({_text(read[0].shape)}), "
                f"{subject.table.target} supports at most {max_rank}",
                Severity.ERROR,
                {"rank": float(rank), "highest": float(max_rank)},
                f"merge adjacent dimensions with a Reshape, so that {name!r} has at most {max_rank}",
            )


def _exceeds(value: ir.Value, max_rank: int, table: OpTable) -> bool:
    return value.shape is not None and value.shape.rank() > max_rank and not table.merges_rank(value)


def _values(graph: ir.Graph) -> Iterator[tuple[ir.Value, str]]:
    """Every tensor of a graph, with what it is in a message."""
    for value in graph.inputs:
        yield value, "input"
    for value in graph.initializers.values():
        yield value, "constant"
    for node in graph:
        for value in node.outputs:
            yield value, f"{node.op_type} output"


def _text(shape: ir.Shape | None) -> str:
    """A shape as ``--shape`` takes it, with unknown dimensions in angle brackets."""
    return "<unknown>" if shape is None else ",".join(_size(dim) for dim in shape)


def _size(dim: int | ir.SymbolicDim) -> str:
    if isinstance(dim, int):
        return str(dim)
    unnamed = dim.value is None or dim.value.startswith("unk__")  # a name that onnx's shape inference generates
    return "<?>" if unnamed else f"<{dim.value}>"
