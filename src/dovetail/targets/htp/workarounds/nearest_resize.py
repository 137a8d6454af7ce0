"""A nearest Resize whose rounding HTP does not support: it selects other elements."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import onnx_ir as ir

from dovetail.finding import Finding, Severity
from dovetail.model.edit import attribute, is_op
from dovetail.model.place import at_node
from dovetail.passes.nearest_resize_to_gather import nearest_resize_to_gather
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import say
from dovetail.rules.rule import rule
from dovetail.targets.htp.workarounds.workaround import Workaround


def is_miscompiled(node: ir.Node) -> bool:
    """Whether HTP computes this Resize differently."""
    transform = attribute(node, "coordinate_transformation_mode", "half_pixel")
    rounding = attribute(node, "nearest_mode", "round_prefer_floor")
    return (
        is_op(node, "Resize")
        and attribute(node, "mode", "nearest") == "nearest"
        and (transform, rounding) == ("half_pixel", "floor")
    )


@rule("Q543")
def nearest_resize_with_unsupported_rounding(subject: CheckInput) -> Iterator[Finding]:
    """HTP selects other elements than ONNX in a nearest Resize.

    ## What it finds
    TODO

    ## Why it matters
    TODO

    ## How to fix it
    TODO

    ## Seen on
    TODO
    """
    for node in subject.model.graph.all_nodes():
        if is_miscompiled(node):
            yield Finding(
                "Q543",
                at_node(node),
                f"{say(node)}: TODO",
                Severity.ERROR,
                fix="TODO",
            )


WORKAROUND = Workaround("Q543", passes=(partial(nearest_resize_to_gather, applies=is_miscompiled),))
