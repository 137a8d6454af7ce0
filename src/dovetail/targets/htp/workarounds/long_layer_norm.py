"""A LayerNormalization over many elements: wrong on HTP in integers, right in float16."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import onnx_ir as ir

from dovetail.encoding import DType
from dovetail.finding import Finding, Severity
from dovetail.model.edit import shape_of
from dovetail.model.place import at_node
from dovetail.op_support import OpSupport, Signature
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import operations, say
from dovetail.rules.rule import rule
from dovetail.targets.htp.workarounds.workaround import Workaround

# The largest numbers of elements that were measured to be right, rounded down to a power of two.
LONGEST = {DType.U8: 2**14, DType.U16: 2**19}


def length_of(node: ir.Node) -> int:
    """The number of elements on the last axis, the only one that HTP normalizes over; 0 if it is unknown."""
    shape = shape_of(node.inputs[0])
    return shape[-1] if shape else 0


def _limited(support: OpSupport) -> OpSupport:
    return replace(support, signatures=tuple(_up_to_longest(row) for row in support.signatures))


def _up_to_longest(row: Signature) -> Signature:
    if row.output.dtype not in LONGEST:
        return row
    return replace(row, when=partial(_why_not, row, LONGEST[row.output.dtype]))


def _why_not(row: Signature, longest: int, node: ir.Node) -> str:
    """Why a LayerNormalization cannot run with a signature; empty if it can."""
    if length_of(node) > longest:
        return f"HTP computes LayerNormalization wrongly in {row.output.dtype} over more than {longest} elements (Q547)"
    return "" if row.when is None else row.when(node)


@rule("Q547")
def quantized_layer_norm_over_many_elements(subject: CheckInput) -> Iterator[Finding]:
    """HTP computes a quantized LayerNormalization over many elements wrongly.

    ## What it finds
    In QDQ models: LayerNormalization in integers over more than 16384 elements in 8 bits, or more than 524288 in 16
    bits.

    ## Why it matters
    The model compiles, but the result is wrong. Layers of transformers are far shorter; a normalization over channels,
    rows and columns together is not: 64 channels of 32 x 32 are 65536 elements.

    ## How to fix it
    Remove the Q/DQ pairs around it, so that it runs in float16. `dovetail fit` and `dovetail repair` do this.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, emulated: in 8 bits 2 dB below the simulation from 24 000
      elements on and 0 dB from 65 536 on; in 16 bits 82 dB at 524 288 elements, 5 dB at 700 000. In float16 66 000
      elements are right (above 35 dB, in an 8-bit graph).
    """
    for operation in operations(subject):
        if operation.op != "LayerNormalization" or not operation.in_integers:
            continue
        dtype, length = operation.outputs[0].dtype, length_of(operation.node)
        if dtype in LONGEST and length > LONGEST[dtype]:
            yield Finding(
                "Q547",
                at_node(operation.node),
                f"{say(operation.node)} normalizes over {length} elements in {dtype}, which HTP computes wrongly over "
                f"more than {LONGEST[dtype]}",
                Severity.ERROR,
                fix="keep it in float16; `dovetail fit` and `dovetail repair` do this",
            )


WORKAROUND = Workaround("Q547", limits={"LayerNormalization": _limited})
