"""The equation of an Einsum: the axes of its operands and its result, and the MatMul that computes the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Names for the axes that an ellipsis covers, the last axis first; the equation itself names axes by letters only.
_ELLIPSIS = "0123456789"


class NotMatMulError(Exception):
    """The equation cannot be computed by one MatMul; the text says why."""


@dataclass(frozen=True, slots=True)
class Equation:
    """The axes of two operands and of the result, one character each."""

    first: str
    second: str
    result: str

    def swapped(self) -> Equation:
        return Equation(self.second, self.first, self.result)

    def reduced_axes(self, axes: str) -> str:
        """Those of one operand's axes that neither the other operand nor the result has."""
        return "".join(
            axis for axis in axes if axis not in self.result and (axis in self.first) != (axis in self.second)
        )


@dataclass(frozen=True, slots=True)
class MatMulAxes:
    """[batch, rows, contracted] x [batch, contracted, columns] -> [batch, rows, columns]; fields are strings of axes.

    ``rows``, ``contracted`` and ``columns`` are merged to one axis each; the second operand may lack some of the batch
    axes, and is broadcast along those.
    """

    batch: str
    rows: str
    columns: str
    contracted: str


def parse(text: str, shapes: Sequence[tuple[int, ...]]) -> Equation:
    """Parse the equation of two operands of these shapes, naming every axis."""
    terms, arrow, result = text.replace(" ", "").partition("->")
    operands = terms.split(",")
    if len(operands) != 2 or len(shapes) != 2:
        raise NotMatMulError(
            f"the equation has {len(operands)} operands and the Einsum {len(shapes)} inputs, but both must be 2"
        )
    named = [_named(term, len(shape)) for term, shape in zip(operands, shapes, strict=True)]
    covered = max((_under_ellipsis(term, len(shape)) for term, shape in zip(operands, shapes, strict=True)), key=len)
    if not arrow:  # the ONNX definition: the axes of the ellipsis, then every letter that occurs once
        letters = sorted("".join(operands).replace(".", ""))
        result = "..." + "".join(letter for letter in letters if letters.count(letter) == 1)
    if any(len(set(term)) != len(term) for term in named):
        raise NotMatMulError("the Einsum repeats an axis within one operand (a diagonal)")
    sizes: dict[str, int] = {}
    for axis, size in (
        axis_size for term, shape in zip(named, shapes, strict=True) for axis_size in zip(term, shape, strict=True)
    ):
        if sizes.setdefault(axis, size) != size:
            raise NotMatMulError("the Einsum broadcasts an axis of size 1")
    return Equation(named[0], named[1], result.replace("...", covered))


def _under_ellipsis(term: str, rank: int) -> str:
    count = rank - len(term.replace("...", "")) if "..." in term else 0
    return "".join(reversed(_ELLIPSIS[:count]))


def _named(term: str, rank: int) -> str:
    return term.replace("...", _under_ellipsis(term, rank))


def matmul_axes(equation: Equation) -> MatMulAxes:
    """The MatMul of an equation in which neither operand has axes to reduce on its own.

    If the operands share batch axes, trailing row axes are merged into one. Otherwise only the last row axis becomes
    the rows and the others become batch axes, which needs fewer Transposes: abi,ic->abc has rows b and batch axis a.
    """
    first, second, result = equation.first, equation.second, equation.result
    columns = "".join(axis for axis in result if axis not in first)
    contracted = "".join(axis for axis in first if axis not in result)
    left = "".join(axis for axis in result if axis in first)
    only_first = "".join(axis for axis in left if axis not in second)
    rows = only_first[-1:]
    if len(only_first) < len(left):
        rows = left[len(left.rstrip(only_first)) :] or rows
    batch = "".join(axis for axis in left if axis not in rows)
    return MatMulAxes(batch, rows, columns, contracted)
