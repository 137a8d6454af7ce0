"""Q6: shapes and rank."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from dovetail.finding import Finding, Severity
from dovetail.model.edit import shape_of
from dovetail.model.origin import origin_of
from dovetail.model.place import at_tensor
from dovetail.rules.check_input import CheckInput
from dovetail.rules.rule import rule


@rule("Q601")
def dynamic_shape(subject: CheckInput) -> Iterator[Finding]:
    """A tensor has a size that is not known before the model runs.

    ## What it finds
    Inputs with a symbolic or unknown dimension, and tensors inside the graph whose shape follows from data
    (NonZero, NonMaxSuppression, a Reshape to a computed shape). Where the inputs are not pinned, only they are named:
    the rest follows from them.

    ## Why it matters
    Integer compilers lay out memory ahead of time. They refuse a graph whose sizes they do not know, or leave that
    part of it to the CPU. `dovetail fit` refuses it too.

    ## How to fix it
    Pin inputs with `--shape NAME=1,3,224,224`. Where a size follows from data, use a form with a fixed size (TopK with
    a constant k in place of NonZero), or cut the model there and run the rest outside the target.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), compiled for SoC 43: a dynamic batch, NonMaxSuppression and NonZero
      are refused ("cannot get shape", "output must be static").
    - ort-cpu: onnxruntime 1.31.1 runs dynamic shapes; `dovetail fit` asks for fixed ones, so that what it measures is
      what ships.
    """
    open_inputs = [value for value in subject.model.graph.inputs if shape_of(value) is None]
    for value in open_inputs:
        name = origin_of(value).name
        yield Finding(
            "Q601",
            at_tensor(value),
            f"input {name!r} has the shape {_text(value.shape)}, which is not fixed",
            Severity.ERROR,
            fix=f"pin it: --shape {name}={_text(value.shape)} with a number in place of every <...>",
        )
    if open_inputs:
        return
    for node in subject.model.graph:
        if any(value is not None and shape_of(value) is None for value in node.inputs):
            continue  # this one follows from another
        for value in node.outputs:
            if value.name and shape_of(value) is None:
                name = origin_of(value).name
                yield Finding(
                    "Q601",
                    at_tensor(value),
                    f"{node.op_type} writes {name!r} with the shape {_text(value.shape)}, which follows from data",
                    Severity.ERROR,
                    fix=f"use a form of {node.op_type} with a fixed size, or cut the model in front of {name!r}",
                )


@rule("Q602")
def rank_beyond_target(subject: CheckInput) -> Iterator[Finding]:
    """A tensor has more dimensions than the target takes.

    ## What it finds
    Inputs, constants and tensors inside the graph whose rank is above the highest one of the target.

    ## Why it matters
    The target has no kernel for it: its compiler refuses the operator, or leaves it to the CPU with a copy there and
    back. Windowed attention (Swin) and pixel shuffles written as Reshape - Transpose - Reshape go through rank 6.

    ## How to fix it
    Merge dimensions that stay next to each other (the batch with the window rows, for example) with a Reshape before
    the operator, and split them again after it. A Transpose over six dimensions can be two over five or fewer.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), compiled for SoC 43: Transpose and Mul of rank 6 (Swin windows) are
      refused ("incorrect Rank 6"), with dimensions merged they compile.
    """
    highest = subject.table.max_rank
    if highest is None:
        return
    for value, maker in _values(subject.model.graph):
        if value.shape is None or value.shape.rank() <= highest:
            continue
        name, rank = origin_of(value).name, value.shape.rank()
        yield Finding(
            "Q602",
            at_tensor(value),
            f"{maker} {name!r} has {rank} dimensions ({_text(value.shape)}), {subject.table.target} takes {highest}",
            Severity.ERROR,
            {"rank": float(rank), "highest": float(highest)},
            f"merge dimensions that stay together with a Reshape, so that {name!r} has at most {highest}",
        )


def _values(graph: ir.Graph) -> Iterator[tuple[ir.Value, str]]:
    for value in graph.inputs:
        yield value, "input"
    for value in graph.initializers.values():
        yield value, "constant"
    for node in graph:
        for value in node.outputs:
            yield value, f"{node.op_type} output"


def _text(shape: ir.Shape | None) -> str:
    """A shape as in ``--shape``, with unknown sizes in angle brackets."""
    return "<unknown>" if shape is None else ",".join(_size(dim) for dim in shape)


def _size(dim: int | ir.SymbolicDim) -> str:
    if isinstance(dim, int):
        return str(dim)
    made_up = dim.value is None or dim.value.startswith("unk__")  # by onnx's shape inference
    return "<?>" if made_up else f"<{dim.value}>"
