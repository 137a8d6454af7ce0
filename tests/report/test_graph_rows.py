"""Which tensors have a histogram in the result, and what it is of a tensor with values that are not finite or equal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from dovetail.encoding import DType, Encoding, QParams
from dovetail.model.read import read
from dovetail.report.graph_rows import lowest_tensors, tensor_ranges
from dovetail.report.result import TensorLoss, TensorQuality
from dovetail.storage import Choice, Plan, Reason


def plan_of(groups: dict[str, str | None]) -> Plan:
    params = QParams(Encoding(DType.U8), np.float32(0.1), np.int32(0))
    tensors = {name: Choice(params, Reason.PRECISION, group=group) for name, group in groups.items()}
    return Plan("ort-cpu", "w8a8", tensors)


def quality(name: str, sqnr_db: float | None) -> TensorQuality:
    return TensorQuality(name, name, sqnr_db, None, 0.0)


def test_the_lowest_sqnr_comes_first_and_a_group_once() -> None:
    tensors = [quality("a", 30.0), quality("b", 20.0), quality("c", 25.0), quality("d", None)]
    plan = plan_of({"a": None, "b": "b", "c": "b", "d": None})
    assert [tensor.tensor for tensor in lowest_tensors(tensors, [], plan)] == ["b", "a"]


def test_what_costs_most_alone_comes_before_the_lowest_sqnr() -> None:
    tensors = [quality("a", 30.0), quality("b", 20.0), quality("c", 25.0)]
    losses = [TensorLoss("c", 5.0), TensorLoss("a", 9.0)]
    plan = plan_of(dict.fromkeys("abc"))
    assert [tensor.tensor for tensor in lowest_tensors(tensors, losses, plan)] == ["c", "a", "b"]


def test_no_more_than_twelve_tensors_are_recorded() -> None:
    names = [f"t{number}" for number in range(40)]
    tensors = [quality(name, float(number)) for number, name in enumerate(names)]
    assert [tensor.tensor for tensor in lowest_tensors(tensors, [], plan_of(dict.fromkeys(names)))] == names[:12]


def test_infinity_is_left_out_and_one_value_is_one_bin(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (float[4] x) => (float[4] y, float[4] z) { y = Neg(x)  z = Sub(x, x) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    sample = {"x": np.array([1.0, 2.0, np.inf, 4.0], np.float32)}
    model = read(tmp_path / "model.onnx")
    y, z = tensor_ranges(model, [quality("y", 1.0), quality("z", 2.0)], lambda: iter([sample]), tmp_path)
    assert (y.low, y.high, y.samples, sum(y.counts), len(y.counts)) == (-4.0, -1.0, 1, 3, 64)
    assert (y.counts[0], y.counts[-1]) == (1, 1)
    assert (z.low, z.high, z.counts[0], sum(z.counts)) == (0.0, 0.0, 3, 3)
