"""ONNX's own node cases, read and normalized: the same outputs by ONNX Runtime, or one sentence that says why not.

A case that ONNX Runtime does not run as given (opsets it does not know yet, types it has no kernel for or does not take
from Python) has no outputs to compare with: it is read and normalized all the same.
"""

from __future__ import annotations

import warnings
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.backend.test.case.node import collect_testcases
from onnx.backend.test.case.test_case import TestCase

from dovetail.errors import BackendError, InputError
from dovetail.model.opset import OLDEST_OPSET
from dovetail.model.read import read
from dovetail.model.session import Mode
from dovetail.passes.normalize import normalize
from dovetail.verify.run import SessionRun

# Every eighth case is one test: few enough that the cases are collected once or twice, enough for two workers to share.
CHUNKS = 8
FEWEST_CASES = 1884  # onnx 1.23.2
# Of each chunk's 235: with ONNX Runtime 1.31.1 it is 172 to 184 that run as given, of which 163 to 177 are equal.
FEWEST_RUN, FEWEST_EQUAL = 170, 160
TOLERANCE = {2: 2e-3, 4: 1e-5, 8: 1e-9}  # by the bytes of a float type, of the number and absolute

NOT_RUN = "not run by ONNX Runtime"
# What is refused, by its sentence; known_refusal says which cases.
OLD_OPSET = "the model uses opset"
NO_TENSOR = "is not a tensor"
CONTROL_FLOW = "is control flow that depends on the inputs"
WITH_CONTROL_FLOW = (
    "test_affine_grid_3d_align_corners_expanded",
    "test_if",
    "test_if_opt",
    "test_if_seq",
    "test_loop11",
)


@cache
def cases() -> tuple[TestCase, ...]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the reference implementation, which divides by zero on purpose
        return tuple(sorted(collect_testcases(), key=lambda case: case.name))


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_node_cases_are_equal_or_refused_in_a_sentence(chunk: int, tmp_path: Path) -> None:
    outcomes: Counter[str] = Counter()
    wrong: list[Exception] = []
    for case in cases()[chunk::CHUNKS]:
        try:
            outcomes[outcome(case, tmp_path)] += 1
        except Exception as error:  # noqa: BLE001 - all that a case raises is gathered, so that each wrong case is named
            error.add_note(f"case {case.name}")
            wrong.append(error)
    if wrong:
        raise ExceptionGroup(f"wrong: {', '.join(note for error in wrong for note in error.__notes__)}", wrong)
    assert outcomes.total() - outcomes[NOT_RUN] >= FEWEST_RUN, outcomes
    assert outcomes["equal"] >= FEWEST_EQUAL, outcomes


def outcome(case: TestCase, folder: Path) -> str:
    """What becomes of a case; raises where that is neither its own outputs nor the refusal that is known of it."""
    path = folder / "case.onnx"
    onnx.save(case.model, path)
    names = [value.name for value in case.model.graph.input]
    feed = dict(zip(names, map(given, case.data_sets[0][0]), strict=True))
    expected = run_as_given(path, feed, folder)
    refusal = known_refusal(case)
    try:
        normalized, _ = normalize(read(path))
    except InputError as error:
        sentence = str(error)
        assert sentence.strip()
        assert "\n" not in sentence
        if expected is None:
            return NOT_RUN
        assert refusal, f"a new refusal: {sentence}"
        assert refusal in sentence, sentence
        return f"refused: {refusal}"
    if expected is None:
        return NOT_RUN
    assert not refusal, f"is taken now, and was refused: {refusal}"
    (found,) = SessionRun(normalized, Mode.FLOAT, folder)([feed])
    assert list(found) == list(expected)
    for name, wanted in expected.items():
        assert_same(found[name], wanted)
    return "equal"


def run_as_given(path: Path, feed: dict[str, Any], folder: Path) -> dict[str, Any] | None:
    try:
        (outputs,) = SessionRun(path, Mode.FLOAT, folder)([feed])
    except BackendError:
        return None
    return outputs


def given(data: Any) -> Any:
    """An input as ONNX Runtime takes it: cases also hold tensors as protos, and numbers."""
    if isinstance(data, onnx.TensorProto):
        return onnx.numpy_helper.to_array(data)
    if data is None or isinstance(data, list):
        return data
    return np.asarray(data)


def known_refusal(case: TestCase) -> str | None:
    opset = next((entry.version for entry in case.model.opset_import if entry.domain == ""), OLDEST_OPSET)
    if opset < OLDEST_OPSET:
        return OLD_OPSET
    if not all(value.type.HasField("tensor_type") for value in case.model.graph.input):
        return NO_TENSOR
    return CONTROL_FLOW if case.name in WITH_CONTROL_FLOW else None


def assert_same(found: Any, wanted: Any) -> None:
    """Integers, booleans and texts are equal, floats are close, NaN is where NaN was."""
    if isinstance(wanted, list):
        assert isinstance(found, list)
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other)
        return
    if wanted is None:
        assert found is None
        return
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    if wanted.dtype.kind == "f":
        tolerance = TOLERANCE[wanted.dtype.itemsize]
        np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)
    else:
        np.testing.assert_array_equal(found, wanted)


def test_every_case_is_in_a_chunk() -> None:
    names = [case.name for case in cases()]
    assert len(set(names)) == len(names) >= FEWEST_CASES
    assert sum(len(names[chunk::CHUNKS]) for chunk in range(CHUNKS)) == len(names)
    assert set(WITH_CONTROL_FLOW) <= set(names)


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (np.float32([1.0001, 2]), np.float32([1, 2])),
        (np.float32([0, 2]), np.float32([np.nan, 2])),
        (np.float32([np.inf, 2]), np.float32([np.nan, 2])),
        (np.float16([1.01]), np.float16([1])),
        (np.int64([1, 2]), np.int64([1, 3])),
        (np.int32([1]), np.int64([1])),
        (np.float32([[1]]), np.float32([1])),
        ([np.float32([1])], [np.float32([1]), np.float32([2])]),
        (np.float32([1]), None),
    ],
)
def test_the_comparison_can_fail(found: Any, wanted: Any) -> None:
    assert_same(wanted, wanted)
    with pytest.raises((AssertionError, ValueError)):
        assert_same(found, wanted)


def test_a_wrong_case_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(model: ir.Model) -> tuple[ir.Model, tuple[()]]:
        raise KeyError("a pass tripped")

    monkeypatch.setattr(f"{__name__}.normalize", broken)
    monkeypatch.setattr(
        f"{__name__}.cases", lambda: tuple(case for case in collect_testcases() if case.name == "test_abs")
    )
    with pytest.raises(ExceptionGroup, match="case test_abs"):
        test_node_cases_are_equal_or_refused_in_a_sentence(0, tmp_path)
