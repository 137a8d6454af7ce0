"""``fit --target qairt:SDK/CHIP``: models, encodings, scripts and predictions for Qualcomm's own converters."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import dovetail
from dovetail.backend import Artifact, Outcome
from dovetail.encoding import DType
from dovetail.encodings.read import read_encodings
from dovetail.encodings_run import check_with_encodings
from dovetail.finding import WHOLE_MODEL, Finding, Status
from dovetail.model.session import Mode, open_session, run_session
from dovetail.plan.rows import PlanRow, read_plan
from dovetail.report.result import Result
from dovetail.storage import Reason
from dovetail.targets.htp.chips import chip_named
from dovetail.targets.qairt.sdk import Confidence, Subject
from dovetail.targets.qnn_htp.compile import compile_model
from dovetail.targets.qnn_htp.options import read_options
from dovetail.targets.qnn_htp.target import read_back
from tests.backends.qairt.encodings_files import MODEL as TINY
from tests.backends.qairt.encodings_files import SAMPLES
from tests.networks.mixed_detector import (
    FLOAT_DECODER,
    SCATTERED,
    first_sample,
    run_parts,
    write_decoder,
    write_detector,
)

SDK_VARIABLES = ("QAIRT_SDK_ROOT", "QNN_SDK_ROOT")


@pytest.fixture(scope="module", autouse=True)
def no_sdk() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in SDK_VARIABLES:
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_detector(tmp_path_factory.mktemp("detector"))


@pytest.fixture(scope="module")
def one_island(detector: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    """The detector with its last decoder layer in float16, for an SDK that is locked at 2.33."""
    return fit(detector, tmp_path_factory.mktemp("one") / "run", FLOAT_DECODER)


def fit(detector: tuple[Path, Path], run: Path, keep: tuple[str, ...], **options: Any) -> tuple[Result, Path]:
    model, data = detector
    options = {"target": "qairt:2.33/v75", "precision": "w8a16", **options}
    return dovetail.fit(model, calibration=data, output=run, keep=list(keep), **options), run


def fit_tiny(folder: Path, target: str = "qairt:2.33/v75", **options: Any) -> tuple[Result, Path]:
    options = {"precision": "w8a16", "keep": ["softmax*=fp16"], **options}
    return dovetail.fit(TINY, target=target, calibration="random:2", output=folder, **options), folder / "qairt"


def ways(run: Path) -> dict[str, dict[str, Any]]:
    document = json.loads((run / "qairt" / "ways.json").read_bytes())
    return {way["name"]: way for way in document["ways"]}


def test_without_the_sdk_nothing_is_checked(one_island: tuple[Result, Path]) -> None:
    result, run = one_island
    for name in ("compiled", "fidelity", "numerics"):
        assert result.verdicts[name].status is Status.NOT_CHECKED
        assert "nothing was checked; set QAIRT_SDK_ROOT" in result.verdicts[name].reason
    assert result.verdicts["normalized"].status is Status.PASS
    for name in ("ways.json", "prediction.json"):
        assert "nothing here was checked" in json.loads((run / "qairt" / name).read_bytes())["status"]


def test_one_island_is_as_planned(one_island: tuple[Result, Path]) -> None:
    _, run = one_island
    ranked = ways(run)
    assert next(iter(ranked)) == "fallback"
    assert ranked["fallback"]["can"] == "yes"
    for name in ("fallback", "explicit"):
        assert (ranked[name]["differs"], ranked[name]["not_predicted"], ranked[name]["notes"]) == ([], [], [])
    assert (ranked["split"]["can"], ranked["explicit"]["can"], ranked["qdq"]["can"]) == ("yes", "unknown", "unknown")
    assert ranked["fallback"]["islands"] == 1
    assert all(way["why"] for way in ranked.values())
    facts = "\n".join(ranked["fallback"]["facts"])
    assert "2.31" in facts
    assert f"{Subject.SYMMETRIC_OPERAND}: yes" in facts  # what the prediction relies on is said
    assert Confidence.INFERRED in facts


def check_written(run: Path) -> dict[str, Finding]:
    """The findings on the files of the way ``fallback`` as on a caller's own, one of every code."""
    folder = run / "qairt" / "fallback"
    option = {"input_list": "0", "float_fallback": "1", "float_bitwidth": "16"}
    values = {"target": "qairt:2.33/v75", "option": option}
    found = check_with_encodings(folder / "model.onnx", values, encodings=folder / "encodings.json")
    return {finding.code: finding for finding in found}


def test_what_fit_writes_is_predicted_as_planned_by_check(one_island: tuple[Result, Path]) -> None:
    found = check_written(one_island[1])
    assert not {"Q711", "Q721", "Q724", "Q727", "Q728", "Q729"} & set(found)
    assert "become float16" in found["Q730"].message


def test_the_ways_are_a_decision_of_the_run(one_island: tuple[Result, Path]) -> None:
    (decision,) = [each for each in one_island[0].decisions if each.knob == "conversion"]
    assert decision.taken == "fallback"
    assert [alternative.label for alternative in decision.alternatives] == ["fallback", "split", "explicit", "qdq"]
    assert decision.alternatives[0].figures["not_as_planned"] == 0
    assert not any(alternative.failure for alternative in decision.alternatives)  # unknown is not a failure


def test_the_encodings_are_complete(one_island: tuple[Result, Path]) -> None:
    result, run = one_island
    encodings = read_encodings(run / "qairt" / "fallback" / "encodings.json")
    assert encodings.version == "0.6.1"
    stored = [row for row in result.plan if row.edge is None and row.why is not Reason.INTERIOR]
    integers = {row.tensor for row in stored if row.dtype.is_quantized}
    floats = {row.tensor for row in stored if not row.dtype.is_quantized}
    assert integers
    assert floats
    assert integers <= set(encodings.entries)
    assert not floats & set(encodings.entries)
    assert {entry.bits for entry in encodings.entries.values()} == {8, 16, 32}  # int32: biases
    explicit = read_encodings(run / "qairt" / "explicit" / "encodings.json").entries
    assert {name for name, entry in explicit.items() if entry.is_float} >= floats & {
        row.tensor for row in stored if row.why is not Reason.OUTPUT
    }


def test_parts_equal_the_simulation_bit_for_bit(one_island: tuple[Result, Path], detector: tuple[Path, Path]) -> None:
    _, run = one_island
    sample, folder = first_sample(detector[1]), run / "qairt" / "split"
    expected = run_session(open_session(run / "model.onnx", Mode.EXACT), sample)
    parts = run_parts(folder, "simulation", sample)
    assert set(parts) == set(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(parts[name], array)
    in_float = run_session(open_session(run / "qairt" / "fallback" / "model.onnx", Mode.EXACT), sample)
    for name, array in run_parts(folder, "parts", sample).items():
        np.testing.assert_array_equal(array, in_float[name])


def test_no_part_mixes_integers_and_float(one_island: tuple[Result, Path]) -> None:
    _, run = one_island
    manifest = json.loads((run / "qairt" / "split" / "manifest.json").read_bytes())
    kinds = [part["computes_in"] for part in manifest["simulation"]]
    assert set(kinds) == {"integer", "float"}
    for part, kind in zip(manifest["simulation"], kinds, strict=True):
        graph = onnx.load(run / "qairt" / "split" / part["model"]).graph
        assert ("QuantizeLinear" in {node.op_type for node in graph.node}) == (kind == "integer")
    assert [part["encodings"] is not None for part in manifest["parts"]] == [k == "integer" for k in kinds]


def test_scattered_islands_rank_the_split_first(detector: tuple[Path, Path], tmp_path: Path) -> None:
    result, run = fit(detector, tmp_path / "run", SCATTERED)
    ranked = ways(run)
    assert next(iter(ranked)) == "split"
    assert (ranked["fallback"]["can"], ranked["fallback"]["islands"]) == ("unknown", 3)
    (finding,) = [f for f in result.findings if f.code == "Q724"]
    assert finding.numbers["islands"] == 3
    assert check_written(run)["Q724"].numbers == finding.numbers
    sample = first_sample(detector[1])
    expected = run_session(open_session(run / "model.onnx", Mode.EXACT), sample)
    for name, array in run_parts(run / "qairt" / "split", "simulation", sample).items():
        np.testing.assert_array_equal(array, expected[name])


def test_scripts_are_valid_and_do_not_mix_flags(tmp_path: Path) -> None:
    _, folder = fit_tiny(tmp_path / "run")
    for name in ("fallback", "explicit", "split"):
        script = folder / name / "convert.sh"
        subprocess.run(["/bin/sh", "-n", str(script)], check=True)
        assert script.stat().st_mode & 0o111
        done = subprocess.run([str(script)], capture_output=True, text=True, check=False)
        assert done.returncode != 0
        assert "set QAIRT_SDK_ROOT" in done.stderr
    fallback = (folder / "fallback" / "convert.sh").read_text()
    assert "--float_fallback" in fallback
    assert "--float_bitwidth 16" in fallback
    assert "--bias_bitwidth 32" in fallback
    assert "--input_list" not in fallback
    explicit = (folder / "explicit" / "convert.sh").read_text()
    assert "--input_list" in explicit
    assert "--float_fallback" not in explicit


def test_the_backend_configuration(tmp_path: Path) -> None:
    _, folder = fit_tiny(tmp_path / "run", "qairt:2.41/soc52", option={"vtcm_mb": "4"})
    backend = json.loads((folder / "fallback" / "htp_backend.json").read_bytes())
    graph = {"graph_names": ["model"], "O": 3, "vtcm_mb": 4, "finalize_config": {}, "fp16_relaxed_precision": 1}
    assert backend == {"graphs": [graph], "devices": [{"dsp_arch": "v73", "soc_model": 52}]}
    assert "htp_backend.json" in (folder / "fallback" / "htp_extensions.json").read_text()


def test_a_new_sdk_gets_2_0_0_and_its_own_converter(tmp_path: Path) -> None:
    _, folder = fit_tiny(tmp_path / "run", "qairt:2.41/soc52")
    assert read_encodings(folder / "fallback" / "encodings.json").version == "2.0.0"
    assert read_encodings(folder / "explicit" / "encodings.json").version == "1.0.0"  # 2.0.0 has no float entries
    script = (folder / "fallback" / "convert.sh").read_text()
    assert "qairt-converter" in script
    assert "qairt-quantizer" in script


def test_keep_graph_only_writes_encodings_by_original_name(tmp_path: Path) -> None:
    result, folder = fit_tiny(tmp_path / "run", option={"keep_graph": "1"})
    assert not (folder / "fallback" / "model.onnx").exists()
    assert not (folder / "split").exists()
    entries = read_encodings(folder / "fallback" / "encodings.json").entries
    names = {name for node in onnx.load(TINY).graph.node for name in (*node.input, *node.output)}
    assert set(entries) <= names
    assert {"x", "relu_out", "rs", "tr", "conv.w", "mm.w", "conv.b", "mm.b"} <= set(entries)
    assert "usage: convert.sh MODEL.onnx" in (folder / "fallback" / "convert.sh").read_text()
    assert [str(f.place) for f in result.findings if f.code == "Q721"] == ["matmul"]


def test_what_the_callers_file_has_no_tensor_for_is_counted(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    folded (float[1, 4, 2, 2] x) => (float[1, 2, 2, 2] y)
    <float[2, 4, 1, 1] w = {0.5, -0.5, 0.25, 1, 0.5, 1, 0.25, -1}, float[2] g = {2, 3}, float[2] b = {0.5, -0.5},
     float[2] m = {0, 1}, float[2] v = {1, 2}>
    { c = Conv(x, w) [norm] n = BatchNormalization(c, g, b, m, v) y = Sigmoid(n) }"""
    model = tmp_path / "folded.onnx"
    onnx.save(onnx.parser.parse_model(text), model)
    differs = {}
    for keep in ("0", "1"):
        dovetail.fit(
            model, target="qairt:2.33/v75", calibration="random:2", precision="w8a16", output=tmp_path / keep,
            option={"keep_graph": keep},
        )  # fmt: skip
        differs[keep] = ways(tmp_path / keep)["fallback"]["differs"]
    assert differs["0"] == []
    (row,) = differs["1"]
    assert (row["planned"], row["predicted"]) == ("int8", "no entry")
    assert "your file has no tensor with these values" in row["cause"]


def test_a_constant_of_the_callers_file_with_two_entries_is_counted(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    shared (float[2,4,8] x, float[2,7,4] z) => (float[2,4,4] y) <float[2,1,4] w = {1, -2, 3, 4, 1, -2, 3, 4}>
    { [a] q = Neg(x) [b] n = Neg(z) [c] k = Concat<axis=1>(n, w) [mm] m = MatMul(q, k) [add] y = Add(m, w) }"""
    model = tmp_path / "shared.onnx"
    onnx.save(onnx.parser.parse_model(text), model)
    differs = {}
    for keep in ("0", "1"):
        dovetail.fit(
            model, target="qairt:2.33/v75", calibration="random:2", precision="w8a16", output=tmp_path / keep,
            option={"keep_graph": keep},
        )  # fmt: skip
        differs[keep] = ways(tmp_path / keep)["fallback"]["differs"]
    assert differs["0"] == []
    (row,) = differs["1"]
    assert row["tensor"] == "w"
    assert row["planned"] != row["predicted"]
    assert "one constant for consumers that read it differently" in row["cause"]


def test_an_operand_with_a_scale_of_its_own_is_counted(tmp_path: Path) -> None:
    """HTP needs it for some 16-bit SiLU, and encodings cannot say it."""
    text = """<ir_version: 10, opset_import: ["": 21]>
    silu (float[1, 8, 12, 12] x) => (float[1, 8, 10, 10] y)
    { n = AveragePool<kernel_shape=[3, 3]>(x) g = Sigmoid(n) [mul] y = Mul(n, g) }"""
    model = tmp_path / "silu.onnx"
    onnx.save(onnx.parser.parse_model(text), model)
    result = dovetail.fit(
        model, target="qairt:2.33/v75", calibration="random:2", precision="w8a16", output=tmp_path / "run"
    )
    (row,) = ways(tmp_path / "run")["fallback"]["differs"]
    assert row["planned"].startswith("uint16 with scale ")
    (finding,) = [finding for finding in result.findings if finding.code == "Q726"]
    assert "must read 'n' as uint16 with scale" in finding.message
    assert "but the tensor has scale" in finding.message


def test_the_rewrites_leave_no_rank_3_matmul_with_add(tmp_path: Path) -> None:
    result, folder = fit_tiny(tmp_path / "run")
    assert "Q721" not in {finding.code for finding in result.findings}
    assert "Gemm" in {node.op_type for node in onnx.load(folder / "fallback" / "model.onnx").graph.node}


def test_files_are_the_same_again(tmp_path: Path) -> None:
    first, second = (fit_tiny(tmp_path / name)[1] for name in ("a", "b"))
    files = sorted(path.relative_to(first) for path in first.rglob("*") if path.is_file())
    assert len(files) > 10
    assert all((first / file).read_bytes() == (second / file).read_bytes() for file in files)


def test_fit_with_encodings_writes_them_completed(tmp_path: Path) -> None:
    file = SAMPLES / "w8a16_0.6.1.json"
    result = dovetail.fit(TINY, target="qairt:2.33/v75", encodings=file, output=tmp_path / "run")
    assert not result.failed
    given = read_encodings(file).entries
    written = read_encodings(tmp_path / "run" / "qairt" / "fallback" / "encodings.json").entries
    for name in ("x", "relu_out"):
        assert float(written[name].scale) == pytest.approx(float(given[name].scale))
    assert {"rs", "tr", "conv.b", "mm.b"} <= set(written)


def test_constants_behind_a_conv_are_folded(tmp_path: Path) -> None:
    """The addend that QAIRT 2.33 fails at is not left in the graph that is converted."""
    text = """<ir_version: 10, opset_import: ["": 21]>
    norm (float[1, 4, 2, 2] x) => (float[1, 2, 2, 2] y)
    <float[2, 4, 1, 1] w = {0.5, -0.5, 0.25, 1, 0.5, 1, 0.25, -1}, float[2, 1, 1] gain = {2, 3},
     float[2, 1, 1] shift = {0.5, -0.5}>
    { c = Conv(x, w) m = Mul(c, gain) a = Add(m, shift) [out] y = Sigmoid(a) }"""
    model = tmp_path / "norm.onnx"
    onnx.save(onnx.parser.parse_model(text), model)
    dovetail.fit(
        model, target="qairt:2.33/v75", calibration="random:2", precision="w8a16", keep=["out=fp16"],
        output=tmp_path / "run",
    )  # fmt: skip
    graph = onnx.load(tmp_path / "run" / "qairt" / "explicit" / "model.onnx").graph
    assert [node.op_type for node in graph.node] == ["Conv", "Sigmoid"]
    assert "are folded away" in ways(tmp_path / "run")["explicit"]["why"]


@pytest.fixture(scope="module")
def automatic(tmp_path_factory: pytest.TempPathFactory) -> tuple[tuple[Path, Path], Result, Path]:
    """A decoder whose float16 island is found by ``--precision auto``, for an SDK that is locked at 2.33."""
    folder = tmp_path_factory.mktemp("auto")
    files = write_decoder(folder)
    result, run = fit(files, folder / "run", (), precision="auto", min_sqnr=25)
    return files, result, run


def test_islands_from_auto_are_as_planned_in_every_way(automatic: tuple[tuple[Path, Path], Result, Path]) -> None:
    (_, data), result, run = automatic
    (mixed,) = [each for each in result.decisions if each.knob == "mixed" and each.place == WHOLE_MODEL]
    assert mixed.taken.startswith("w8a16 + ")
    ranked = ways(run)
    assert (next(iter(ranked)), ranked["fallback"]["can"], ranked["fallback"]["islands"]) == ("fallback", "yes", 1)
    assert (ranked["fallback"]["differs"], ranked["explicit"]["differs"]) == ([], [])
    for name in ("fallback", "explicit", "split"):
        assert (run / "qairt" / name / "convert.sh").is_file()
    sample = first_sample(data)
    expected = run_session(open_session(run / "model.onnx", Mode.EXACT), sample)
    for name, array in run_parts(run / "qairt" / "split", "simulation", sample).items():
        np.testing.assert_array_equal(array, expected[name])


def test_the_real_compiler_confirms_the_islands_from_auto(
    automatic: tuple[tuple[Path, Path], Result, Path], tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed: pip install 'dovetail-fit[qnn]'")
    files, planned, run = automatic
    floats = {row.original_name for row in planned.plan if _is_float_tensor(row)}
    assert {"padded", "padded_root"} <= floats
    keep = tuple(f"{name}=fp16" for name in sorted(floats))
    compiled, _ = fit(files, tmp_path / "run", keep, target="qnn-htp:sm8650", baselines="none")
    assert {row.original_name for row in compiled.plan if _is_float_tensor(row)} == floats
    for name in ("fidelity", "numerics"):
        assert compiled.verdicts[name].status is Status.PASS, compiled.verdicts[name].reason
    # The very model of the run, too, which is what the way qdq compiles.
    (tmp_path / "compiled").mkdir()
    options = read_options(chip_named("sm8650"), {})
    built = compile_model(options, (Artifact("model", run / "model.onnx"),), tmp_path / "compiled")
    rows = read_back(built, read_plan(run / "plan.json", DType.F16)).tensors
    assert len(rows) > 50
    assert {row.outcome for row in rows} == {Outcome.MATCHED, Outcome.ABSORBED}


def _is_float_tensor(row: PlanRow) -> bool:
    return row.edge is None and row.why is not Reason.INTERIOR and not row.dtype.is_quantized
