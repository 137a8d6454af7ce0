"""The shortest steps compute the same as the chain, checked by applying both in NumPy."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.model.layout import Step, shortest_steps


@st.composite
def chains(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Step]]:
    """A shape, and a valid sequence of reshapes and transposes."""
    start = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4)))
    shape, steps = start, []
    for _ in range(draw(st.integers(1, 5))):
        if draw(st.booleans()):
            perm = tuple(draw(st.permutations(range(len(shape)))))
            steps.append(Step("Transpose", perm))
            shape = tuple(shape[axis] for axis in perm)
        else:
            shape = draw(reshapes(int(np.prod(shape))))
            steps.append(Step("Reshape", shape))
    return start, steps


@st.composite
def reshapes(draw: st.DrawFn, size: int) -> tuple[int, ...]:
    sizes = []
    while size > 1 and len(sizes) < 3:
        sizes.append(draw(st.sampled_from([divisor for divisor in range(1, size + 1) if size % divisor == 0])))
        size //= sizes[-1]
    return (*sizes, size)


def apply(array: np.ndarray, steps: list[Step]) -> np.ndarray:
    for step in steps:
        array = array.reshape(step.shape_or_perm) if step.op_type == "Reshape" else array.transpose(step.shape_or_perm)
    return array


def nodes(source: ir.Value, steps: list[Step]) -> list[ir.Node]:
    result, value, array = [], source, np.empty(source.shape.numpy())
    for step in steps:
        attributes = {"perm": step.shape_or_perm} if step.op_type == "Transpose" else {}
        result.append(ir.node(step.op_type, [value], attributes))
        array = apply(array, [step])
        value = result[-1].outputs[0]
        value.shape = ir.Shape(array.shape)
    return result


@settings(deadline=None, max_examples=300)
@given(chains())
def test_shortest_steps_compute_the_same(chain: tuple[tuple[int, ...], list[Step]]) -> None:
    start, steps = chain
    source = ir.Value(name="x", shape=ir.Shape(start))
    shorter = shortest_steps(source, nodes(source, steps))
    array = np.arange(np.prod(start)).reshape(start)
    assert len(shorter) <= len(steps)
    np.testing.assert_array_equal(apply(array, shorter), apply(array, steps))


def test_heads_are_split_and_transposed_in_two_steps() -> None:
    source = ir.Value(name="x", shape=ir.Shape((1, 197, 192)))
    detour = [
        Step("Reshape", (1, 197, 3, 64)),
        Step("Transpose", (0, 2, 1, 3)),
        Step("Reshape", (3, 197, 64)),
        Step("Transpose", (0, 2, 1)),
        Step("Reshape", (1, 3, 64, 197)),
    ]
    assert shortest_steps(source, nodes(source, detour)) == [
        Step("Reshape", (1, 197, 3, 64)),
        Step("Transpose", (0, 2, 3, 1)),
    ]


def test_chain_that_is_already_shortest_stays() -> None:
    source = ir.Value(name="x", shape=ir.Shape((6, 4)))
    for steps in (
        [Step("Transpose", (1, 0)), Step("Reshape", (8, 3))],
        [Step("Transpose", (1, 0)), Step("Reshape", (8, 3)), Step("Transpose", (1, 0))],
    ):
        assert shortest_steps(source, nodes(source, steps)) == steps
