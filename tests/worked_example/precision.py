"""A precision in one file, with its target: ``w8a8-symmetric``, int8 activations with zero point 0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dovetail.encoding import DType, Encoding
from dovetail.op_support import B32, W8, OpSupport, Precision, bias, const, signature
from dovetail.target import Family, Target
from tests.worked_example.target import ELEMENTWISE, EXAMPLE, LINEAR, MOVES

S8 = Encoding(DType.S8, symmetric=True)
SYMMETRIC = Precision("w8a8-symmetric", activation=S8, weight=W8)

OPS = {
    "Gemm": OpSupport((*LINEAR.signatures, signature(S8, const(W8), bias(B32), out=S8))),
    **dict.fromkeys(("Add", "Relu"), OpSupport((*ELEMENTWISE.signatures, signature(S8, S8, out=S8)))),
    **dict.fromkeys(("Reshape", "Transpose"), OpSupport((*MOVES.signatures, signature(S8, out=S8)), shares=(0,))),
}
TABLE = replace(EXAMPLE.table, ops=OPS, precisions={**EXAMPLE.table.precisions, SYMMETRIC.name: SYMMETRIC})


def open_target(suffix: str, options: Mapping[str, str]) -> Target:
    """The example target with one more precision."""
    return replace(EXAMPLE, table=TABLE)


FAMILY = Family(open_target)
