"""A Gather that repeats rows: wrong on HTP for some sizes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import onnx_ir as ir

from dovetail.finding import Finding, Severity
from dovetail.model.edit import attribute, is_op, shape_of
from dovetail.model.place import at_node
from dovetail.passes.gather_on_last_axis import gather_on_last_axis
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import say
from dovetail.rules.rule import rule
from dovetail.targets.htp.workarounds.workaround import Workaround

_LEAST_ROWS = 16


def may_be_miscompiled(node: ir.Node) -> bool:
    """Whether a Gather returns more rows than an image of rank 4 has, and it has enough of them to be wrong."""
    if not is_op(node, "Gather"):
        return False
    shape, indices = (shape_of(value) for value in node.inputs[:2])
    if shape is None or indices is None or len(shape) != 4 or len(indices) != 1:
        return False
    is_rows = int(attribute(node, "axis", 0)) % 4 == 2
    return is_rows and shape[2] >= _LEAST_ROWS and indices[0] > shape[2]


@rule("Q552")
def gather_of_repeated_rows(subject: CheckInput) -> Iterator[Finding]:
    """HTP computes a Gather that repeats the rows of an image wrongly for some sizes.

    ## What it finds
    Gather along axis 2 of a tensor of rank 4 with at least 16 rows, with more indices than there are rows. A float
    model is checked after the rewrites of `dovetail fit`.

    ## Why it matters
    The model compiles, but the quantized Gather returns other rows than those that the indices name: -6 to -1 dB
    against the simulation. Widths of 4, 8 and 16 were wrong, 7 and 20 were not.

    ## How to fix it
    Gather along the last axis, between two Transposes. `dovetail fit` and `dovetail repair` do this. A Resize with
    `asymmetric` and `floor` repeats all rows equally often and is right.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, emulated: every row twice, 16 rows of 4, 8 and 16 columns
      in uint16, of 8 and 16 in uint8; 20 and 32 rows of 8 columns; 3 and 8 channels; after Conv and Neg. Right are 8
      rows, permuted, reversed and fewer rows, and the same along the other axes.
    """
    for node in subject.model.graph.all_nodes():
        if may_be_miscompiled(node):
            yield Finding(
                "Q552",
                at_node(node),
                f"{say(node)} returns more rows than its input has, which HTP computes wrongly for some sizes",
                Severity.WARNING,
                fix="gather along the last axis, between two Transposes, as `dovetail fit` and `dovetail repair` do",
            )


WORKAROUND = Workaround("Q552", passes=(partial(gather_on_last_axis, applies=may_be_miscompiled),))
