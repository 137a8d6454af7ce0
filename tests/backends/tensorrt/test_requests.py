"""Requests for other GPUs, precisions and options: what is built, what is refused, and what cannot be parsed."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

import dovetail
from dovetail import zoo
from dovetail.backend import Outcome
from dovetail.edge import Edge
from dovetail.encoding import DType
from dovetail.errors import InputError
from dovetail.finding import Severity, Status, Thresholds
from dovetail.targets import open_target
from dovetail.targets.tensorrt import install
from dovetail.targets.tensorrt.compile import LAYERS
from dovetail.targets.tensorrt.layers import UnreadableError, parse_layers
from dovetail.targets.tensorrt.table import FP8
from dovetail.verify.verdicts import fidelity
from tests.backends.tensorrt.building import attention_note, built, built_plan
from tests.networks.attention_layer import layer
from tests.planning import graph, noise, planned

pytest.importorskip("tensorrt_rtx", reason="needs the package tensorrt-rtx-cu12")

LINE = (
    "Name: a b, LayerType: gemm, Inputs: [ { Name: x, Dimensions: [1,4], Strides: [4,1], Datatype: FP8, Format: f }], "
    "Constants: [ { Name: w, Dimensions: [4,4], Datatype: FP8, Format: f }], Outputs: [ { Name: y, Dimensions: [1,4], "
    "Datatype: Half, Format: f }], TacticName: t, StreamId: 0, Metadata: [ONNX Layer: n[0]]\x1f[ONNX Layer: m]"
)


@pytest.mark.parametrize(("sm", "precision", "dtype"), [("sm75", "w8a8", "Int8"), ("sm120", "fp8", "FP8")])
def test_other_gpus(sm: str, precision: str, dtype: str, tmp_path: Path) -> None:
    target, model = open_target(f"tensorrt:{sm}"), layer(64, 64)
    plan = planned(model, target, target.table.precisions[precision], data=noise(model))
    compiled = target.backend.compile(target.backend.emit(model, plan, tmp_path), tmp_path)
    assert compiled.error == ""
    assert fidelity(target.backend.read_back(compiled, plan), Thresholds()).status is Status.PASS
    assert attention_note(1, f"1 ({dtype} -> {dtype})") in compiled.notes


@pytest.mark.parametrize(("sm", "dtype"), [("sm75", None), ("sm80", DType.S8)])
def test_convolutions_are_in_float16_where_there_are_no_int8_ones(sm: str, dtype: DType | None, tmp_path: Path) -> None:
    """On sm75 the builder runs an INT8 convolution in float16, so that `fidelity` failed."""
    weights = ", ".join(["0.5"] * 64)
    model = graph(f"""net (float[1, 8, 6, 6] x) => (float[1, 36, 8] y)
        <float[8, 8, 1, 1] w = {{{weights}}}, float[8, 8] m = {{{weights}}}, int64[3] shape = {{1, 8, 36}}>
        {{ [conv] c = Conv(x, w)  r = Reshape(c, shape)  t = Transpose<perm = [0, 2, 1]>(r)
           [fc] y = MatMul(t, m) }}""")
    target = open_target(f"tensorrt:{sm}")
    _, read_back, plan = built(model, target, target.table.precisions["w8a8"], tmp_path)
    assert fidelity(read_back, Thresholds()).status is Status.PASS
    conv, fc = (plan.edges.get(Edge(node, 0)) for node in ("conv", "fc"))
    assert (None if conv is None else conv.storage.dtype) is dtype
    assert fc is not None
    assert fc.storage.dtype is DType.S8


def test_what_is_kept_in_float16_is_read_back(tmp_path: Path) -> None:
    ones = ", ".join(["1"] * 64)
    weights = ", ".join(["0.5"] * 64 * 64)
    model = graph(f"""net (float[32, 64] x) => (float[32, 64] y)
        <float[64] g = {{{ones}}}, float[64] b = {{{ones}}}, float[64, 64] m = {{{weights}}}>
        {{ f = MatMul(x, m)  [norm] n = LayerNormalization(f, g, b)  [fc] y = MatMul(n, m) }}""")
    target = open_target("tensorrt:sm89")
    plan = planned(model, target, FP8, keep={"norm": target.table.precisions["fp16"]})
    compiled, read_back = built_plan(model, plan, target, tmp_path)
    assert fidelity(read_back, Thresholds()).status is Status.PASS
    assert [(row.tensor, row.outcome) for row in read_back.tensors if row.edge is None] == [("n", Outcome.MATCHED)]
    layers = next(a.path for a in compiled.artifacts if a.name == LAYERS)
    lines = layers.read_text().splitlines()
    changed = [
        re.sub("Datatype: (Half|Float)", "Datatype: FP8", line) if "[ONNX Layer: norm]" in line else line
        for line in lines
    ]
    layers.write_text("\n".join(changed))
    (row,) = (row for row in target.backend.read_back(compiled, plan).tensors if row.tensor == "n" and row.edge is None)
    assert row.outcome is Outcome.CHANGED


@pytest.mark.usefixtures("empty_cache")
def test_a_builder_that_runs_out_of_memory_reports_it(tmp_path: Path) -> None:
    target, model = open_target("tensorrt", {"memory_limit_mb": "500", "time_limit_s": "60"}), layer()
    artifacts = target.backend.emit(model, planned(model, target, FP8, data=noise(model)), tmp_path)
    compiled = target.backend.compile(artifacts, tmp_path)
    assert compiled.error == "the TensorRT-RTX builder ran out of memory: the limit is 500 MB"
    assert not compiled.finished


def test_unsupported_requests_are_refused_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = zoo.load("vit_digits").model_path
    run = tmp_path / "sm86"
    reason = "fp8 is not available on tensorrt:sm86: sm86 does not support FP8, sm89 and later do"
    for options in ({"precision": "fp8"}, {"precision": "w8a8", "keep": ("*=fp8",)}):
        with pytest.raises(InputError, match=f"^{reason}$"):
            dovetail.fit(model, target="tensorrt:sm86", calibration="random", output=run, **options)
    assert not run.exists()
    with pytest.raises(
        InputError, match="--io quantized is not supported by tensorrt:sm89, whose inputs and outputs are float"
    ):
        dovetail.fit(model, target="tensorrt", io="quantized", calibration="random", output=tmp_path / "run")
    for suffix in ("89", "sm8", "sm12", "rtx4090"):
        with pytest.raises(InputError, match="expected smNN, as in tensorrt:sm89"):
            open_target(f"tensorrt:{suffix}")
    with pytest.raises(InputError, match="target tensorrt has no option 'workspace'; expected one of compute, time_"):
        open_target("tensorrt", {"workspace": "1"})
    with pytest.raises(InputError, match="memory_limit_mb=100: expected at least 400, which the builder's libraries"):
        open_target("tensorrt", {"memory_limit_mb": "100"})
    with pytest.raises(InputError, match="compute=bf16: expected one of fp16, fp32"):
        open_target("tensorrt", {"compute": "bf16"})
    assert "for sm90 only the ONNX file is written" in open_target("tensorrt:sm90").backend.probe().missing

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(install, "version", missing)
    run = tmp_path / "no_wheel"
    result = dovetail.fit(model, target="tensorrt", precision="fp8", calibration="random", output=run)
    missing_wheel = "tensorrt-rtx-cu12 is not installed: pip install 'dovetail-fit[tensorrt]'"
    assert result.verdicts["compiled"].status is Status.NOT_CHECKED
    assert result.verdicts["compiled"].reason == missing_wheel
    assert (run / "model.onnx").exists()


def test_a_line_in_an_unknown_format_is_quoted() -> None:
    jump = LINE.replace("Metadata: ", "JumpTargetThen: a^b_65, JumpTargetElse: a^b_150, Metadata: ")  # in an LSTM
    assert parse_layers(f"Layers:\n{jump}") == parse_layers(f"Layers:\n{LINE}")
    (row,) = parse_layers(f"Layers:\n{LINE}\n\nI/O Tensors:\nanything")
    assert (row.kind, row.types, row.nodes) == ("gemm", "FP8 -> Half", frozenset(("n[0]", "m")))
    with pytest.raises(UnreadableError, match="unknown format in line 'Name: only a name'"):
        parse_layers(f"Layers:\n{LINE}\nName: only a name")
    with pytest.raises(UnreadableError, match="printed no layer list"):
        parse_layers("")


def test_float32_compute_is_an_option(tmp_path: Path) -> None:
    target, model = open_target("tensorrt", {"compute": "fp32"}), layer()
    plan = planned(model, target, FP8, data=noise(model))
    compiled = target.backend.compile(target.backend.emit(model, plan, tmp_path), tmp_path)
    assert compiled.error == ""
    (attention,) = [row for row in target.backend.read_back(compiled, plan).tensors if row.edge is None]
    assert attention.detail == "one attention kernel, FP8 -> FP8"
    assert list(target.table.precisions) == ["fp8", "w8a8"]
    model = layer(17)  # tokens, too few for the FP8 kernel
    plan = planned(model, target, FP8, data=noise(model))
    compiled = target.backend.compile(target.backend.emit(model, plan, tmp_path), tmp_path)
    (finding,) = compiled.findings
    assert finding.severity is Severity.NOTE
    assert finding.message == (
        "attention is not one fused Float kernel (in float16 it is): "
        "it runs in float32 like the whole graph, and there is no fused float32 kernel"
    )
    read_back = target.backend.read_back(compiled, plan)
    assert {row.outcome for row in read_back.tensors} == {Outcome.MATCHED}
    assert fidelity(read_back, Thresholds()).status is Status.PASS
    assert attention_note(1, "none") in compiled.notes
