"""A depthwise ConvTranspose with output padding: wrong on HTP at every size."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import onnx_ir as ir

from dovetail.finding import Finding, Severity
from dovetail.model.edit import attribute, is_op
from dovetail.model.place import at_node
from dovetail.passes.fold_output_padding import fold_output_padding
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import say
from dovetail.rules.rule import rule
from dovetail.targets.htp.workarounds.workaround import Workaround


def is_miscompiled(node: ir.Node) -> bool:
    """Whether this is a ConvTranspose with groups and output padding."""
    has_groups = is_op(node, "ConvTranspose") and int(attribute(node, "group", 1)) > 1
    return has_groups and any(attribute(node, "output_padding", ()))


@rule("Q556")
def output_padding_of_depthwise_conv_transpose(subject: CheckInput) -> Iterator[Finding]:
    """HTP computes a depthwise ConvTranspose with output padding wrongly.

    ## What it finds
    ConvTranspose with more than one group and an `output_padding` other than zero. A float model is checked after the
    rewrites of `dovetail fit`.

    ## Why it matters
    A decoder that doubles the size with a depthwise ConvTranspose of 3 x 3 has an output padding of 1. The model
    compiles, but the output is wrong at every size.

    ## How to fix it
    Subtract the output padding from the `pads` at the end, which computes the same elements. `dovetail fit` and
    `dovetail repair` do this, with zeros at the end of the kernel if the pads are smaller. A kernel of 2 x 2 or 4 x 4
    needs no output padding.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, emulated, 8 and 16 bits: 3 x 3 with a stride of 2, 5 to 16
      channels, batches of 1, 2 and 4, 8 x 8 to 25 x 9, with and without bias: -3 to -1 dB against the simulation; with
      smaller pads 68 to 71 dB. Without groups 74 dB either way; without output padding 66 to 77 dB.
    """
    for node in subject.model.graph.all_nodes():
        if is_miscompiled(node):
            yield Finding(
                "Q556",
                at_node(node),
                f"{say(node)} has groups and output padding, which HTP computes wrongly",
                Severity.ERROR,
                fix="subtract it from the pads at the end; `dovetail fit` and `dovetail repair` do this",
            )


WORKAROUND = Workaround("Q556", passes=(partial(fold_output_padding, applies=is_miscompiled),))
