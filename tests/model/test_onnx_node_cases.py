"""ONNX's own node test cases, read and normalized: ONNX Runtime gives the same outputs, or one message says why not.

A case that ONNX Runtime cannot run as it is (opsets it does not support yet, types it has no kernel for or does not
accept from Python) has no outputs to compare with: it is read and normalized all the same.
"""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.backend.test.case.node import collect_testcases
from onnx.backend.test.case.test_case import TestCase

from dovetail.errors import BackendError, InputError
from dovetail.model import opset
from dovetail.model import read as read_module
from dovetail.model.opset import OLDEST_OPSET
from dovetail.model.read import read
from dovetail.model.session import Mode
from dovetail.passes.normalize import normalize
from dovetail.verify.run import SessionRun

# Every eighth case is in one test. All tests run in one worker, because collecting the cases takes 3 seconds.
CHUNKS = 8
FEWEST_CASES = 1884  # onnx 1.23.2
# Of the 235 cases of a chunk, with ONNX Runtime 1.31.1: 172 to 184 run as they are, of which 163 to 177 are equal.
FEWEST_RUN, FEWEST_EQUAL = 170, 160
TOLERANCE = {2: 2e-3, 4: 1e-5, 8: 1e-9}  # by the size of a float type in bytes; relative and absolute

NOT_RUN = "not run by ONNX Runtime"
# The messages of refused cases; known_refusal says which cases they are for.
OLD_OPSET = "the model uses opset"
NO_TENSOR = "is not a tensor"
CONTROL_FLOW = "is control flow that depends on the inputs"
WITH_CONTROL_FLOW = (
    "test_affine_grid_3d_align_corners_expanded",
    "test_if",
    "test_if_opt",
    "test_if_seq",
    "test_loop11",
    "test_scan9_multi_state",
    "test_scan9_scalar",
    "test_scan9_sum",
    "test_scan_sum",
)


@pytest.fixture(scope="module")
def cases() -> tuple[TestCase, ...]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from the reference implementation, which divides by zero on purpose
        return tuple(sorted(collect_testcases(), key=lambda case: case.name))


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_node_cases_are_equal_or_refused_with_a_message(
    chunk: int, cases: tuple[TestCase, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (read_module, opset):  # a crash of onnx ends this process, so it needs not be tried in another first
        monkeypatch.setattr(module, "refuse_crash", lambda models: None)
    outcomes: Counter[str] = Counter()
    failures: list[Exception] = []
    for case in cases[chunk::CHUNKS]:
        try:
            outcomes[outcome(case, tmp_path)] += 1
        except Exception as error:  # noqa: BLE001 - every error is collected, so that each failed case is named
            error.add_note(f"case {case.name}")
            failures.append(error)
    if failures:
        notes = ", ".join(note for error in failures for note in error.__notes__)
        raise ExceptionGroup(f"failed: {notes}", failures)
    assert outcomes.total() - outcomes[NOT_RUN] >= FEWEST_RUN, outcomes
    assert outcomes["equal"] >= FEWEST_EQUAL, outcomes


def outcome(case: TestCase, folder: Path) -> str:
    """The outcome of a case; raises if that is neither its own outputs nor its known refusal."""
    path = folder / "case.onnx"
    onnx.save(case.model, path)
    names = [value.name for value in case.model.graph.input]
    feed = dict(zip(names, map(as_input, case.data_sets[0][0]), strict=True))
    expected = run_original(path, feed, folder)
    refusal = known_refusal(case)
    try:
        normalized, _ = normalize(read(path))
    except InputError as error:
        message = str(error)
        assert message.strip()
        assert "\n" not in message
        if expected is None:
            return NOT_RUN
        assert refusal, f"a new refusal: {message}"
        assert refusal in message, message
        return f"refused: {refusal}"
    if expected is None:
        return NOT_RUN
    assert not refusal, f"accepted now, but listed as refused: {refusal}"
    (actual,) = SessionRun(normalized, Mode.FLOAT, folder)([feed])
    assert list(actual) == list(expected)
    for name, value in expected.items():
        assert_same(actual[name], value)
    return "equal"


def run_original(path: Path, feed: dict[str, Any], folder: Path) -> dict[str, Any] | None:
    try:
        (outputs,) = SessionRun(path, Mode.FLOAT, folder)([feed])
    except BackendError:
        return None
    return outputs


def as_input(data: Any) -> Any:
    """An input as ONNX Runtime accepts it: cases also hold tensors as protos, and plain numbers."""
    if isinstance(data, onnx.TensorProto):
        return onnx.numpy_helper.to_array(data)
    if data is None or isinstance(data, list):
        return data
    return np.asarray(data)


def known_refusal(case: TestCase) -> str | None:
    version = next((entry.version for entry in case.model.opset_import if entry.domain == ""), OLDEST_OPSET)
    if version < OLDEST_OPSET:
        return OLD_OPSET
    if not all(value.type.HasField("tensor_type") for value in case.model.graph.input):
        return NO_TENSOR
    return CONTROL_FLOW if case.name in WITH_CONTROL_FLOW else None


def assert_same(actual: Any, expected: Any) -> None:
    """Integers, booleans and strings are equal, floats are close, NaN is where NaN was."""
    if isinstance(expected, list):
        assert isinstance(actual, list)
        for actual_item, expected_item in zip(actual, expected, strict=True):
            assert_same(actual_item, expected_item)
        return
    if expected is None:
        assert actual is None
        return
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    if expected.dtype.kind == "f":
        tolerance = TOLERANCE[expected.dtype.itemsize]
        np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
    else:
        np.testing.assert_array_equal(actual, expected)


def test_every_case_is_in_a_chunk(cases: tuple[TestCase, ...]) -> None:
    names = [case.name for case in cases]
    assert len(set(names)) == len(names) >= FEWEST_CASES
    assert sum(len(names[chunk::CHUNKS]) for chunk in range(CHUNKS)) == len(names)
    assert set(WITH_CONTROL_FLOW) <= set(names)


@pytest.mark.parametrize(
    ("actual", "expected"),
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
def test_comparison_can_fail(actual: Any, expected: Any) -> None:
    assert_same(expected, expected)
    with pytest.raises((AssertionError, ValueError)):
        assert_same(actual, expected)


def test_failed_case_is_named(cases: tuple[TestCase, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(model: ir.Model) -> tuple[ir.Model, tuple[()]]:
        raise KeyError("a pass failed")

    monkeypatch.setattr(f"{__name__}.normalize", broken)
    one = tuple(case for case in cases if case.name == "test_abs")
    with pytest.raises(ExceptionGroup, match="case test_abs"):
        test_node_cases_are_equal_or_refused_with_a_message(0, one, tmp_path, monkeypatch)
