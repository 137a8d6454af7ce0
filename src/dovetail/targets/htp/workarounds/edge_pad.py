"""A Pad in float16 that repeats the border: HTP does not write the padding."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from dovetail.finding import Finding, Severity
from dovetail.model.edit import attribute, constant_of, is_float, is_op
from dovetail.model.place import at_node
from dovetail.passes.edge_pad_to_concat import edge_pad_to_concat
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import operations, say
from dovetail.rules.rule import rule
from dovetail.targets.htp.workarounds.workaround import Workaround


def is_edge_pad(node: ir.Node) -> bool:
    """Whether a node repeats the border of a float tensor."""
    tensor = node.inputs[0] if is_op(node, "Pad") and attribute(node, "mode", "constant") == "edge" else None
    if tensor is None or not is_float(tensor):
        return False
    pads = constant_of(node.inputs[1]) if len(node.inputs) > 1 else None
    return pads is None or bool(pads.any())


@rule("Q561")
def edge_pad_in_float16(subject: CheckInput) -> Iterator[Finding]:
    """HTP computes a Pad that repeats the border wrongly in float16.

    ## What it finds
    Pad with mode `edge` of a float tensor that is not quantized, in QDQ models. In float models `dovetail fit` replaces
    it.

    ## Why it matters
    The model compiles, but the padding is not written: it has whatever was in memory, as large as 1e4. In integers the
    same Pad is right.

    ## How to fix it
    Quantize its input and output, or write it as a Concat of the tensor with Slices of its border. `dovetail fit` and
    `dovetail repair` do the latter, before it is known which tensors are quantized. In integers that is slower: if the
    estimate matters and nothing is in float16, try `--option workarounds=off`.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), emulated, v69, v73, v75, v79 and v81: 9 x 26 and 8 x 8, 4 and 11
      channels, batches of 1, 2 and 4, one row and column at the end, after a graph input or Neg: -86 to -79 dB against
      float; 20 x 20 in a batch of 1 after Neg is right. As Slice and Concat 73 dB and more everywhere. Between Q/DQ
      pairs, in 8 and 16 bits, nine sizes and three paddings are right; modes `reflect` and `constant` are right in
      float16. SoC 52, estimates of four times Pad, Conv of 3 x 3 and Relu, 32 x 64 x 64 in w8a8: 169 us with the Pads,
      254 us with Slices and Concats; in float16 510 and 334 us.
    """
    for operation in operations(subject):
        node = operation.node
        if is_edge_pad(node) and not operation.in_integers:
            yield Finding(
                "Q561",
                at_node(node),
                f"{say(node)} repeats the border in float16, which HTP computes wrongly",
                Severity.ERROR,
                fix="quantize its input and output, or write it as Slice and Concat, as `dovetail fit` and `dovetail "
                "repair` do",
            )


WORKAROUND = Workaround("Q561", passes=(edge_pad_to_concat,))
