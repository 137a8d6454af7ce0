"""The equation of an Einsum: which axis of which operand goes where, and the matrix product that does the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Names for the axes under an ellipsis, the last axis first: an equation itself has letters only.
_ELLIPSIS = "0123456789"


class NotMatMulError(Exception):
    """Why an equation is no product of two matrices."""


@dataclass(frozen=True, slots=True)
class Equation:
    """The axes of two operands and of the result, one character each."""

    first: str
    second: str
    result: str

    def swapped(self) -> Equation:
        return Equation(self.second, self.first, self.result)

    def summed_alone(self, axes: str) -> str:
        """The axes of one operand that neither the other one nor the result has."""
        return "".join(
            axis for axis in axes if axis not in self.result and (axis in self.first) != (axis in self.second)
        )


@dataclass(frozen=True, slots=True)
class MatMulAxes:
    """[stacked, rows, inner] x [stacked, inner, columns] -> [stacked, rows, columns]; each part is a string of axes.

    ``rows``, ``inner`` and ``columns`` are merged to one axis each; the second operand need not have all the stacked
    axes, and is the same along those that it lacks.
    """

    stacked: str
    rows: str
    columns: str
    inner: str


def parse(text: str, shapes: Sequence[tuple[int, ...]]) -> Equation:
    """The equation of two operands of these shapes, with every axis named."""
    terms, arrow, result = text.replace(" ", "").partition("->")
    operands = terms.split(",")
    if len(operands) != 2 or len(shapes) != 2:
        raise NotMatMulError(f"it has {len(operands)} operands")
    named = [_named(term, len(shape)) for term, shape in zip(operands, shapes, strict=True)]
    hidden = max((_under_ellipsis(term, len(shape)) for term, shape in zip(operands, shapes, strict=True)), key=len)
    if not arrow:  # by the definition: what stands under an ellipsis, then every letter that occurs once
        letters = sorted("".join(operands).replace(".", ""))
        result = "..." + "".join(letter for letter in letters if letters.count(letter) == 1)
    if any(len(set(term)) != len(term) for term in named):
        raise NotMatMulError("it takes a diagonal")
    sizes: dict[str, int] = {}
    for axis, size in (
        pair for term, shape in zip(named, shapes, strict=True) for pair in zip(term, shape, strict=True)
    ):
        if sizes.setdefault(axis, size) != size:
            raise NotMatMulError("it repeats an axis of one element")
    return Equation(named[0], named[1], result.replace("...", hidden))


def _under_ellipsis(term: str, rank: int) -> str:
    count = rank - len(term.replace("...", "")) if "..." in term else 0
    return "".join(reversed(_ELLIPSIS[:count]))


def _named(term: str, rank: int) -> str:
    return term.replace("...", _under_ellipsis(term, rank))


def product_of(equation: Equation) -> MatMulAxes:
    """The matrix product of an equation in which no operand sums an axis alone.

    Rows that stand together at the end of the result, in front of the columns, are merged to one matrix; else the last
    one is taken and the others are stacked, which takes fewer Transposes.
    """
    first, second, result = equation.first, equation.second, equation.result
    columns = "".join(axis for axis in result if axis not in first)
    inner = "".join(axis for axis in first if axis not in result)
    left = "".join(axis for axis in result if axis in first)
    alone = "".join(axis for axis in left if axis not in second)
    rows = alone[-1:]
    if len(alone) < len(left):
        rows = left[len(left.rstrip(alone)) :] or rows
    stacked = "".join(axis for axis in left if axis not in rows)
    return MatMulAxes(stacked, rows, columns, inner)
