"""LpNormalization along the last of more than two axes: wrong on HTP behind some operators."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.finding import Finding, Severity
from dovetail.model.edit import shape_of
from dovetail.model.place import at_node
from dovetail.passes.flatten_l2_norm import flatten_l2_norm, is_along_last_axis
from dovetail.passes.merge_layout import merge_layout
from dovetail.passes.remove_unused import remove_unused
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import say
from dovetail.rules.rule import rule
from dovetail.targets.htp.workarounds.workaround import Workaround


@rule("Q549")
def lp_normalization_of_batched_tokens(subject: CheckInput) -> Iterator[Finding]:
    """HTP computes an LpNormalization of several matrices wrongly behind some operators.

    ## What it finds
    LpNormalization along the last axis of a tensor in which at least two of the other axes have more than one element.
    A float model is checked after the rewrites of `dovetail fit`, which leave none.

    ## Why it matters
    In the cosine attention of a batch, behind an Add that is broadcast over the batch and a linear layer, all images
    but the first one are wrong: 2 to 7 dB against the simulation. Without the Add it is right.

    ## How to fix it
    Reshape the tensor to a matrix before the LpNormalization, and back behind it. `dovetail fit` and `dovetail repair`
    do this; it is also faster.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, emulated, 16 bits: Add, Reshape, Gemm, Reshape and
      LpNormalization of [2, 8, 4], [4, 8, 8], [4, 24, 20], [1, 4, 24, 20] and [1, 4, 240, 20] are wrong; of fewer than
      8 rows, and of [96, 20], [1, 96, 20], [1, 1, 96, 20] and [4, 1, 24, 20] right. Along the channels of an image,
      behind an Add and a Conv, all of four sizes are right.
    """
    for node in subject.model.graph.all_nodes():
        shape = shape_of(node.inputs[0]) if is_along_last_axis(node) else None
        if shape is not None and sum(size > 1 for size in shape[:-1]) > 1:
            yield Finding(
                "Q549",
                at_node(node),
                f"{say(node)} normalizes the last axis of {list(shape)}, which HTP computes wrongly behind some "
                "operators",
                Severity.WARNING,
                fix="reshape the tensor to a matrix before it; `dovetail fit` and `dovetail repair` do this",
            )


WORKAROUND = Workaround("Q549", passes=(flatten_l2_norm, merge_layout, remove_unused))
