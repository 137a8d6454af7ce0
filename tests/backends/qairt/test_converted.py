"""``verify RUN --converter-output FILE``: what the converter wrote is compared with the plan, tensor by tensor."""

from __future__ import annotations

import copy
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import dovetail
from dovetail.backend import Outcome
from dovetail.cli.main import main
from dovetail.device.verify_converted import verify_converted
from dovetail.encoding import Granularity
from dovetail.errors import InputError
from dovetail.finding import Status
from dovetail.plan.rows import ExpandedScale
from dovetail.report.result import load_result
from dovetail.targets.qairt.converted import quantizer_summary
from dovetail.targets.qairt.model_cpp import load_model_cpp
from dovetail.targets.qnn_htp.dump import DumpError, load_graph
from tests.backends.qairt.converter_files import as_converted, as_model_cpp, dumped, with_channels
from tests.backends.qairt.encodings_files import MODEL

pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed: pip install 'dovetail-fit[qnn]'")


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A run for a converter, and the graph that the real HTP compiler makes of its QDQ model."""
    folder = tmp_path_factory.mktemp("converted")
    result = dovetail.fit(
        MODEL, target="qairt:2.33/v75", calibration="random:2", precision="w8a16", output=folder / "run"
    )
    assert result.verdicts["fidelity"].status is Status.NOT_CHECKED
    return folder / "run", dumped(folder / "run" / "model.onnx", folder / "compiled")


@pytest.fixture
def run(fitted: tuple[Path, dict[str, Any]], tmp_path: Path) -> Path:
    shutil.copytree(fitted[0], tmp_path / "run")
    return tmp_path / "run"


def written(document: dict[str, Any], folder: Path, name: str = "model_net.json") -> Path:
    path = folder / name
    path.write_text(as_model_cpp(document) if path.suffix == ".cpp" else json.dumps(document))
    return path


def test_the_graph_that_the_compiler_dumps_is_as_planned(run: Path, fitted: tuple[Path, dict[str, Any]]) -> None:
    result = verify_converted(run, [written(fitted[1], run.parent)])
    assert result.verdicts["fidelity"].status is Status.PASS, result.verdicts["fidelity"].reason
    assert load_result(run / "result.json").verdicts["fidelity"].status is Status.PASS
    assert "model_net.json" in result.verdicts["fidelity"].evidence


@pytest.mark.parametrize("name", ["model_net.json", "model.cpp"])
def test_the_names_of_the_converter_are_understood(name: str, run: Path, fitted: tuple[Path, dict[str, Any]]) -> None:
    result = verify_converted(run, [written(as_converted(fitted[1]), run.parent, name)])
    assert result.verdicts["fidelity"].status is Status.PASS, result.verdicts["fidelity"].reason
    outcomes = {row.tensor: row.outcome for row in result.read_back if row.edge is None}
    assert outcomes["relu_out"] is Outcome.MATCHED


@pytest.mark.parametrize("name", ["model_net.json", "model.cpp"])
def test_a_tensor_that_silently_became_8_bit_is_listed(
    name: str, run: Path, fitted: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    document = as_converted(fitted[1])
    document["graph"]["tensors"]["relu_out"]["data_type"] = 0x408
    with pytest.raises(SystemExit) as done:
        main(["verify", str(run), "--converter-output", str(written(document, run.parent, name))])
    assert done.value.code == 1
    assert "changed: relu_out: planned uint16, found uint8" in capsys.readouterr().out


def test_a_float16_operator_is_found_by_what_it_writes(tmp_path: Path) -> None:
    run = tmp_path / "run"
    dovetail.fit(
        MODEL, target="qairt:2.33/v75", calibration="random:2", precision="w8a16", keep=["softmax*=fp16"], output=run
    )
    document = as_converted(dumped(run / "model.onnx", tmp_path / "compiled"))
    result = verify_converted(run, [written(document, tmp_path)])
    assert result.verdicts["fidelity"].status is Status.PASS, result.verdicts["fidelity"].reason
    rows = {str(row.edge or row.tensor): row for row in result.read_back}
    assert (rows["y"].outcome, rows["softmax:0"].outcome) == (Outcome.MATCHED, Outcome.ABSORBED)
    assert "computes in float16" in rows["softmax:0"].detail
    document["graph"]["tensors"]["y"]["data_type"] = 0x408
    result = verify_converted(run, [written(document, tmp_path)])
    assert "planned float16, found uint8" in result.verdicts["fidelity"].reason


def test_another_scale_is_listed(run: Path, fitted: tuple[Path, dict[str, Any]]) -> None:
    document = as_converted(fitted[1])
    document["graph"]["tensors"]["x"]["quant_params"]["scale_offset"]["scale"] *= 2
    result = verify_converted(run, [written(document, run.parent)])
    changed = {row.tensor: row.detail for row in result.read_back if row.outcome is Outcome.CHANGED}
    assert set(changed) == {"x"}
    assert "planned scale" in changed["x"]


def planned_scales(run: Path, tensor: str) -> list[float]:
    (row,) = [row for row in load_result(run / "result.json").plan if row.tensor == tensor]
    assert isinstance(row.scale, list)
    return row.scale


@pytest.mark.parametrize("name", ["model_net.json", "model.cpp"])
def test_the_scales_of_channels_are_compared(name: str, run: Path, fitted: tuple[Path, dict[str, Any]]) -> None:
    scales = planned_scales(run, "conv.w")
    document = with_channels(as_converted(fitted[1]), "conv_w", scales)
    result = verify_converted(run, [written(document, run.parent, name)])
    (row,) = [row for row in result.read_back if row.tensor == "conv.w"]
    assert row.outcome is Outcome.MATCHED
    assert f"scales and zero points of {len(scales)} channels were compared" in row.detail
    document = with_channels(document, "conv_w", [*scales[:-1], scales[-1] * 1.01])
    result = verify_converted(run, [written(document, run.parent, name)])
    changed = {row.tensor: row.detail for row in result.read_back if row.outcome is Outcome.CHANGED}
    assert set(changed) == {"conv.w"}
    assert f"of channel {len(scales) - 1}" in changed["conv.w"]
    result = verify_converted(run, [written(with_channels(document, "conv_w", scales[:-1]), run.parent, name)])
    assert f"planned {len(scales)} scales, found {len(scales) - 1}" in result.verdicts["fidelity"].reason


def test_the_scales_of_expanded_blocks_are_compared(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    one (float[1, 64, 2, 2] x) => (float[1, 32, 2, 2] y) { [conv] y = Conv(x, w) }"""
    model = onnx.parser.parse_model(text)
    weights = np.random.default_rng(0).standard_normal((32, 64, 1, 1), np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    onnx.save(model, tmp_path / "blocks.onnx")
    run = tmp_path / "run"
    dovetail.fit(
        tmp_path / "blocks.onnx", target="qairt:2.45/v75", calibration="random:2", precision="w4a16-lpbq",
        block_size=32, output=run,
    )  # fmt: skip
    document = as_converted(dumped(run / "model.onnx", tmp_path / "compiled"))
    missing = verify_converted(run, [written(document, tmp_path)]).verdicts["fidelity"]
    assert (missing.status, "scales per block were not recorded" in missing.reason) == (Status.NOT_CHECKED, True)
    (row,) = [row for row in load_result(run / "result.json").plan if row.tensor == "w"]
    assert isinstance(row.scale, ExpandedScale)
    integers = np.moveaxis(np.array(row.scale.integers), row.axis or 0, -1).reshape(-1).tolist()
    scales = np.array(row.scale.channel).reshape(-1)
    record = {
        "axis": 3,
        "scale_offsets": [{"scale": float(scale), "offset": 0} for scale in scales],
        "num_blocks_per_axis": 2,
        "blocks_scale8": integers,
    }
    document["graph"]["tensors"]["w"]["quant_params"]["blockwise_expansion"] = record
    result = verify_converted(run, [written(document, tmp_path)])
    assert result.verdicts["fidelity"].status is Status.PASS, result.verdicts["fidelity"].reason
    integers[5] += 1
    assert "integer scales" in verify_converted(run, [written(document, tmp_path)]).verdicts["fidelity"].reason


def test_the_sign_of_a_dtype_is_not_a_difference(run: Path, fitted: tuple[Path, dict[str, Any]]) -> None:
    """int16 with zero point 0 has the values of uint16 with zero point 32768; any other zero point has not."""
    document = as_converted(fitted[1])
    tensor = document["graph"]["tensors"]["x"]
    offset = tensor["quant_params"]["scale_offset"]["offset"]
    tensor["data_type"], tensor["quant_params"]["scale_offset"]["offset"] = 0x316, offset + 32768
    assert verify_converted(run, [written(document, run.parent)]).verdicts["fidelity"].status is Status.PASS
    tensor["quant_params"]["scale_offset"]["offset"] += 1
    reason = verify_converted(run, [written(document, run.parent)]).verdicts["fidelity"].reason
    assert "planned uint16, found int16" in reason


def test_both_formats_have_the_same_graph(tmp_path: Path, fitted: tuple[Path, dict[str, Any]]) -> None:
    document = as_converted(fitted[1])
    from_json = load_graph(written(document, tmp_path))
    from_cpp = load_model_cpp(written(document, tmp_path, "model.cpp"))
    assert set(from_cpp.tensors) == set(from_json.tensors)
    for name, tensor in from_json.tensors.items():
        assert from_cpp.tensors[name].dtype is tensor.dtype
        assert from_cpp.tensors[name].scale == pytest.approx(tensor.scale, rel=1e-6)
        assert from_cpp.tensors[name].zero_point == tensor.zero_point
    assert {(n.type, n.inputs, n.outputs) for n in from_cpp.nodes} == {
        (n.type, n.inputs, n.outputs) for n in from_json.nodes
    }


def test_the_summary_of_the_quantizer_becomes_notes(run: Path) -> None:
    log = run.parent / "quantizer.log"
    log.write_text("| MISSING ENC   | 163 / 1117 |\n| PROPAGATED | 12 |\n| FP16 FALLBACK : 4\n")
    result = verify_converted(run, [log])
    assert "the converter's output: quantizer.log: MISSING ENC: 163 / 1117" in result.notes
    assert result.verdicts["fidelity"].status is Status.NOT_CHECKED
    again = verify_converted(run, [log])
    assert again.notes == result.notes
    assert quantizer_summary("nothing here") == {}


def test_other_files_are_one_clear_sentence(run: Path, fitted: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("hello")
    with pytest.raises(InputError, match=r"notes.txt: expected \*_net.json, a generated .cpp"):
        verify_converted(run, [text])
    with pytest.raises(InputError, match="there is no such file"):
        verify_converted(run, [tmp_path / "missing.json"])
    graph = written(copy.deepcopy(fitted[1]), tmp_path)
    with pytest.raises(
        InputError, match=r"model_net.json and .*model_net.json are the same file: give every part once"
    ):
        verify_converted(run, [graph, graph])
    empty = tmp_path / "empty.cpp"
    empty.write_text("int main() {}")
    with pytest.raises(DumpError, match="no tensor was found"):
        load_model_cpp(empty)


def test_a_file_of_another_model_beside_that_of_the_run_is_refused(
    run: Path, fitted: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    tensor = {"data_type": 0x216, "quant_params": {"encoding": 0, "scale_offset": {"scale": 0, "offset": 0}}}
    foreign = {"graph": {"tensors": {"other": tensor}, "nodes": {}}}
    graphs = [written(fitted[1], tmp_path), written(foreign, tmp_path, "other_net.json")]
    with pytest.raises(InputError, match=r"other_net.json: no planned tensor of this run is in it"):
        verify_converted(run, graphs)


@pytest.mark.parametrize("text", ["{", "[]", "{}", "nonsense", '{"graph": {"tensors": {}, "nodes": {}}}'])
def test_a_file_that_is_no_graph_of_the_run_leaves_the_result(
    text: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (run / "result.json").read_bytes()
    (run.parent / "foreign_net.json").write_text(text)
    with pytest.raises(SystemExit) as done:
        main(["verify", str(run), "--converter-output", str(run.parent / "foreign_net.json")])
    assert done.value.code == 2
    assert "foreign_net.json" in capsys.readouterr().err
    assert (run / "result.json").read_bytes() == before


def test_nonsense_in_a_cpp_file_is_one_clear_sentence(run: Path, fitted: tuple[Path, dict[str, Any]]) -> None:
    path = written(as_converted(fitted[1]), run.parent, "model.cpp")
    text = path.read_text()
    path.write_text(re.sub(r"\.scale= [\d.]+f", ".scale= abcf", text, count=1))
    with pytest.raises(InputError, match="a scale that is no number: abc"):
        verify_converted(run, [path])
    path.write_text(text.replace("ENCODING_SCALE_OFFSET", "ENCODING_NEW_ONE", 1))
    with pytest.raises(InputError, match="unknown encoding NEW_ONE"):
        verify_converted(run, [path])
    path.write_text(text.replace("ENCODING_SCALE_OFFSET", "ENCODING_BLOCK", 1))
    assert Granularity.BLOCK in {tensor.granularity for tensor in load_model_cpp(path).tensors.values()}


def test_a_target_without_converter_is_refused(tmp_path: Path) -> None:
    dovetail.fit(MODEL, target="ort-cpu", calibration="random:2", output=tmp_path / "cpu")
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(InputError, match="ort-cpu has no converter of its own"):
        verify_converted(tmp_path / "cpu", [tmp_path / "a.json"])
