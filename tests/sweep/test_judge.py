"""What counts as wrong, what is the same failure, and the words of patterns and groups."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from dovetail.model.subset import subset_of
from dovetail.sweep.group import grouped
from dovetail.sweep.judge import compare_outputs, wrong_output
from dovetail.sweep.outcome import Failure, FailureKind, Outcome, OutputQuality
from dovetail.sweep.pattern import facts_of, occurrences, pattern_of
from dovetail.sweep.records import PatternRow
from dovetail.sweep.shrink import neighbourhoods

SILU = """
<ir_version: 10, opset_import: ["": 21]>
g (float[1,3,9,10] x) => (float[1,4,9,10] y, float[1,4,9,10] r)
<float[4,3,1,1] w, float[1,4,9,10] c, float[1,4,9,10] s, float[1,4,9,10] p>
{
    c = Conv <strides = [1, 1]> (x, w)
    s = Sigmoid(c)
    p = Mul(c, s)
    r = Relu(c)
    y = Add(p, r)
}
"""


def model(text: str) -> ir.Model:
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((4, 3, 1, 1), np.float32), "w"))
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto))


@pytest.mark.parametrize(
    ("target_db", "simulation_db", "is_wrong"),
    [
        (15.0, 43.0, True),
        (34.0, 43.0, False),  # 9 dB below
        (-3.0, 5.0, False),
        (43.6, 200.0, False),  # a Softplus in float16
        (39.0, 90.0, True),
        (-200.0, 40.0, True),
    ],
)
def test_wrong_is_ten_decibels_below_the_simulation(target_db: float, simulation_db: float, is_wrong: bool) -> None:
    # The first output differs more, but only by rounding.
    outputs = {"right": OutputQuality(60.0, 180.0), "y": OutputQuality(target_db, simulation_db)}
    failure = wrong_output(outputs)
    assert (failure is not None) == is_wrong
    if failure is not None:
        assert failure.cause.startswith(f"output 'y': target {target_db:.1f} dB, simulation {simulation_db:.1f} dB")
    assert wrong_output({}) is None


def test_outputs_are_compared_without_the_code_of_the_verdicts() -> None:
    exact = np.array([3.0, 4.0], np.float32)
    other = np.array([3.0, 4.5], np.float32)
    broken = np.array([np.nan, 4.0], np.float32)
    runs = [{"y": array, "classes": np.array([1])} for array in (exact, other, broken)]
    assert compare_outputs(*runs) == {"y": OutputQuality(-200.0, pytest.approx(20.0))}
    same = compare_outputs(runs[0], runs[0], {"y": np.zeros(3, np.float32)})["y"]
    assert (same.simulation_db, same.target_db) == (200.0, -200.0)
    assert math.isfinite(same.target_db)


def test_wrong_while_numerics_passes() -> None:
    wrong = Failure(FailureKind.WRONG, "output 'y'")
    assert Outcome((wrong,), {"numerics": "pass"}).is_wrong_and_passed
    assert not Outcome((wrong,), {"numerics": "fail"}).is_wrong_and_passed
    assert not Outcome((), {"numerics": "pass"}).is_wrong_and_passed


def test_failures_are_alike_up_to_names_and_numbers() -> None:
    first = Failure(FailureKind.REFUSED, "'conv3' (Conv): no kernel for node_17 of 3 inputs")
    assert first.is_like(Failure(FailureKind.REFUSED, "'pool_9' (Conv): no kernel for node_2 of 4 inputs"))
    assert not first.is_like(Failure(FailureKind.REFUSED, "'conv3' (Pool): no kernel for node_17 of 3 inputs"))
    assert not first.is_like(Failure(FailureKind.CHANGED, first.cause))
    assert Failure(FailureKind.WRONG, "12 dB").is_like(Failure(FailureKind.WRONG, "something else"))


def test_a_pattern_in_words() -> None:
    whole = model(SILU)
    assert pattern_of(whole) == "Conv -> Sigmoid -> Mul(Conv, .) -> Relu(Conv) -> Add(Mul, .)"
    assert facts_of(whole)["height"] == "9"
    assert facts_of(whole)["kernel_shape"] == "1x1"
    assert facts_of(whole)["least channel"] == "1e0"
    swapped = model(SILU.replace("Mul(c, s)", "Mul(s, c)"))
    assert pattern_of(swapped) == pattern_of(whole)
    part = subset_of(whole, (1, 2))
    assert pattern_of(part) == "Sigmoid -> Mul(x, .)"


def test_modes_are_part_of_a_pattern_and_sizes_are_not() -> None:
    pooled = model(
        SILU.replace("s = Sigmoid(c)", "s = AveragePool <kernel_shape = [1, 1], count_include_pad = 1> (c)").replace(
            "r = Relu(c)", 'r = Gelu <approximate = "tanh"> (c)'
        )
    )
    assert pattern_of(subset_of(pooled, (1, 3))) == "AveragePool[count_include_pad=1] -> Gelu[tanh](x)"


def test_a_part_keeps_names_and_the_outputs_of_the_model() -> None:
    part = subset_of(model(SILU), (0, 3, 4))
    assert [value.name for value in part.graph.inputs] == ["x", "p"]
    assert {value.name for value in part.graph.outputs} == {"r", "y"}  # r is read inside, and an output of the model
    onnx.checker.check_model(ir.to_proto(part), full_check=True)
    with pytest.raises(ValueError, match="at least one node"):
        subset_of(model(SILU), ())


def test_a_pattern_is_found_in_another_graph_by_its_connections() -> None:
    whole = model(SILU)
    silu = subset_of(whole, (0, 1, 2))
    assert occurrences(whole, silu) == [(0, 1, 2)]
    unconnected = model(SILU.replace("p = Mul(c, s)", "p = Mul(s, s)"))
    assert occurrences(unconnected, silu) == []


def test_a_sentence_names_the_nodes_to_try_first() -> None:
    whole = model(SILU)
    assert neighbourhoods(whole, "'s' was read back as float") == [(1,), (0, 1, 2), (0, 1, 2, 3, 4)]
    assert neighbourhoods(whole, "no node is named here") == []


def row(index: int, kind: FailureKind, pattern: str, height: int, cause: str = "c") -> PatternRow:
    facts = {"height": str(height), "kernel": "1x1" if index % 2 else "3x3"}
    return PatternRow(index, Failure(kind, cause, ("Q108",)), pattern, facts, f"{index}.onnx", 3, True)


def test_groups_are_by_pattern_and_cause_with_the_range_of_sizes() -> None:
    rows = [
        row(1, FailureKind.REFUSED, "Erf", 4, "node 'a' has no kernel"),
        row(2, FailureKind.WRONG, "Conv -> Relu", 9),
        row(3, FailureKind.WRONG, "Conv -> Relu", 12),
        row(4, FailureKind.REFUSED, "Erf", 5, "node 'b' has no kernel"),
        row(5, FailureKind.REFUSED, "Erf", 5, "another reason"),
        row(6, FailureKind.WRONG, "Pad", 9),
    ]
    groups = grouped(rows)
    assert [(group.kind, group.pattern, len(group.members)) for group in groups] == [
        (FailureKind.REFUSED, "Erf", 2),
        (FailureKind.REFUSED, "Erf", 1),
        (FailureKind.WRONG, "Conv -> Relu", 2),
        (FailureKind.WRONG, "Pad", 1),
    ]
    assert groups[2].sizes == "height 9..12, kernel 1x1 3x3"
    assert groups[0].codes == ("Q108",)
