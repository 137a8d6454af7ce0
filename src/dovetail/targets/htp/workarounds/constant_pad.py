"""A quantized Pad with a constant: HTP fills the border with another value than the model says."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.encoding import QParams
from dovetail.finding import Finding, Severity
from dovetail.model.edit import attribute, is_op
from dovetail.model.place import at_node
from dovetail.passes.fold_pad import fold_pad
from dovetail.passes.pad_to_concat import pad_to_concat
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import operations, say
from dovetail.rules.rule import rule
from dovetail.targets.htp.workarounds.workaround import Workaround


@rule("Q542")
def quantized_pad_with_nonzero_zero_point(subject: CheckInput) -> Iterator[Finding]:
    """HTP fills the border of a quantized Pad with the wrong value.

    ## What it finds
    TODO

    ## Why it matters
    TODO

    ## How to fix it
    TODO

    ## Seen on
    TODO
    """
    for operation in operations(subject):
        node = operation.node
        if not is_op(node, "Pad") or attribute(node, "mode", "constant") != "constant" or not operation.in_integers:
            continue
        storage = operation.outputs[0]
        if isinstance(storage, QParams) and int(storage.zero_point) != 0:
            yield Finding(
                "Q542",
                at_node(node),
                f"{say(node)} pads a tensor in {storage.dtype} whose zero point is {int(storage.zero_point)}: HTP fills "
                "the border with another value",
                Severity.ERROR,
                {"zero_point": float(storage.zero_point)},
                "move the padding into the convolution behind it, or concatenate constants",
            )


WORKAROUND = Workaround("Q542", passes=(fold_pad, pad_to_concat))
