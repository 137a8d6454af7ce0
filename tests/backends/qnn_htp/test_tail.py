"""A detector that ends in NonMaxSuppression or NonZero: the head runs on the real HTP, the tail is left and named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import dovetail
from dovetail import zoo
from dovetail.backend import Sample
from dovetail.errors import InputError
from dovetail.finding import Status
from dovetail.report.terminal import print_result
from tests.equality import model_from, normal, sqnr_db
from tests.networks.detector_with_nms import detector_with_nms

pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")

ALL_PASS = {
    **dict.fromkeys(("normalized", "compiled", "fidelity", "numerics", "accuracy"), Status.PASS),
    "device": Status.NOT_CHECKED,
}


def outputs_of(model: onnx.ModelProto | Path, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    session = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    wanted = {value.name: feed[value.name] for value in session.get_inputs()}
    return dict(zip(names, session.run(names, wanted), strict=True))


def test_a_detector_that_ends_in_nms_is_fitted_without_it(tmp_path: Path) -> None:
    shipped, model = zoo.load("detector_scenes"), detector_with_nms()
    held_out = {key: array[:12] for key, array in {**shipped.eval(), **shipped.targets()}.items()}
    result = dovetail.fit(
        model,
        target="qnn-htp:sm8550",
        precision="w8a16",
        calibration={key: array[:16] for key, array in shipped.calib().items()},
        evaluation=held_out,
        metric=found_boxes,
        output=tmp_path / "run",
    )
    assert {key: verdict.status for key, verdict in result.verdicts.items()} == ALL_PASS
    assert result.tail is not None
    cut = {node.name: (node.op, node.behind) for node in result.tail.nodes}
    assert cut["nms/chosen"] == ("NonMaxSuppression", False)
    assert cut["nms/chosen_boxes"] == ("Gather", True)
    assert "nms/by_class" not in cut
    crossing = [one.tensor for one in result.tail.crossing]
    assert crossing[:2] == ["boxes", "by_class"]
    assert result.metrics.accuracy is not None  # the metric sees what the tail makes of the head's outputs
    figures = result.metrics.accuracy.figures
    assert figures["float"]["boxes"] > 10
    assert abs(figures["simulation"]["boxes"] - figures["float"]["boxes"]) <= 0.02 * figures["float"]["boxes"]
    sample = {key: array[:1] for key, array in shipped.eval().items()}
    head = outputs_of(tmp_path / "run/model.onnx", sample)
    assert list(head) == crossing
    expected, found = outputs_of(model, sample), outputs_of(tmp_path / "run/tail.onnx", {**sample, **head})
    assert list(found) == list(expected)
    assert sqnr_db(expected["chosen_boxes"], found["chosen_boxes"]) > 35
    assert {"tail"} == {a.name for a in result.artifacts if a.path == "tail.onnx"}
    assert dovetail.load_result(tmp_path / "run/result.json") == result


def found_boxes(outputs: Iterator[Sample], targets: Iterator[Sample]) -> dict[str, float]:
    return {"boxes": float(sum(len(sample["chosen_boxes"]) for sample in outputs))}


def test_the_terminal_names_the_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = """
    g (float[1,8,16] x) => (float[1,8,4] features, float[N] picked)
    { [project] m = MatMul(x, w)  [shift] features = Add(m, b)  [spread] s = Softmax(features)
      [above] high = Greater(s, least)  [find] where = NonZero(high)  [turn] rows = Transpose(where)
      [pick] picked = GatherND(s, rows) }
    """
    proto = to_proto(text, w=normal(16, 4), b=normal(4), least=np.array(0.3, np.float32))
    result = dovetail.fit(
        proto,
        target="qnn-htp:sm8550",
        precision="w8a16",
        calibration={"x": normal(4, 8, 16)},
        output=tmp_path / "run",
    )
    assert {key: verdict.status for key, verdict in result.verdicts.items()} == ALL_PASS
    print_result(result, tmp_path / "run")
    said = capsys.readouterr().out
    assert "3 nodes at the end cannot run on the target and are moved to tail.onnx" in said
    assert "find (NonZero): HTP does not support tensors whose shape depends on data" in said
    assert "inputs of tail.onnx: features, high, s" in said


def to_proto(text: str, **constants: np.ndarray) -> onnx.ModelProto:
    return ir.to_proto(model_from(text, **constants))


def test_a_model_without_such_operators_has_no_tail(tmp_path: Path) -> None:
    text = "g (float[1,8,16] x) => (float[1,8,4] y) { s = MatMul(x, w)  y = Relu(s) }"
    result = dovetail.fit(
        to_proto(text, w=normal(16, 4)),
        target="qnn-htp:sm8550",
        calibration={"x": normal(4, 8, 16)},
        output=tmp_path / "run",
    )
    assert result.tail is None
    assert not (tmp_path / "run/tail.onnx").exists()


def test_an_operator_in_front_of_everything_is_refused(tmp_path: Path) -> None:
    text = """
    g (float[8,4] x) => (float[N,3] y)
    { [first] where = NonZero(x)  rows = Transpose(where)  one = GatherND(x, rows)
      few = Unsqueeze(one, last)  wide = Expand(few, shape)  y = MatMul(wide, w) }
    """
    proto = to_proto(text, last=np.array([1]), shape=np.array([1, 4]), w=normal(4, 3))
    message = r"node 'first' \(NonZero\) is not supported: .* The model cannot be split before it"
    with pytest.raises(InputError, match=message):
        dovetail.fit(proto, target="qnn-htp:sm8550", calibration={"x": normal(2, 8, 4)}, output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_quantized_outputs_do_not_go_with_a_tail(tmp_path: Path) -> None:
    message = "--io quantized: not supported for a split model, tail.onnx takes float inputs"
    with pytest.raises(InputError, match=message):
        dovetail.fit(
            detector_with_nms(),
            target="qnn-htp:sm8550",
            io="quantized",
            calibration={key: array[:2] for key, array in zoo.load("detector_scenes").calib().items()},
            output=tmp_path / "run",
        )
