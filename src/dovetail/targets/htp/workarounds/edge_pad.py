"""A Pad in float16 that repeats the border: HTP does not write the padding."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.finding import Finding, Severity
from dovetail.model.edit import attribute, is_op
from dovetail.model.place import at_node
from dovetail.passes.edge_pad_to_concat import edge_pad_to_concat
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import operations, say
from dovetail.rules.rule import rule
from dovetail.targets.htp.workarounds.workaround import Workaround


@rule("Q561")
def edge_pad_in_float16(subject: CheckInput) -> Iterator[Finding]:
    """HTP computes a Pad that repeats the border wrongly in float16.

    ## What it finds
    Pad with mode `edge` whose input or output is not quantized, in QDQ models. In float models `dovetail fit` replaces
    it.

    ## Why it matters
    The model compiles, but the padding is not written: it has whatever was in memory, as large as 1e4. In integers the
    same Pad is right.

    ## How to fix it
    Quantize its input and output, or write it as a Concat of the tensor with Slices of its border. `dovetail fit` and
    `dovetail repair` do the latter.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), emulated, v69, v73, v75, v79 and v81: 9 x 26 and 8 x 8, 4 and 11
      channels, batches of 1, 2 and 4, one row and column at the end, behind a graph input or Neg: -86 to -79 dB against
      float; 20 x 20 in a batch of 1 behind Neg is right. As Slice and Concat 73 dB and more everywhere. Between Q/DQ
      pairs, in 8 and 16 bits, nine sizes and three paddings are right; modes `reflect` and `constant` are right in
      float16.
    """
    for operation in operations(subject):
        node = operation.node
        if is_op(node, "Pad") and attribute(node, "mode", "constant") == "edge" and not operation.in_integers:
            yield Finding(
                "Q561",
                at_node(node),
                f"{say(node)} repeats the border in float16, which HTP computes wrongly",
                Severity.ERROR,
                fix="quantize its input and output, or write it as Slice and Concat, as `dovetail fit` and `dovetail "
                "repair` do",
            )


WORKAROUND = Workaround("Q561", passes=(edge_pad_to_concat,))
