"""Block-quantized layers beside others, on the real HTP compiler: only those in blocks are written as convolutions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dovetail
from dovetail.encoding import DType, Granularity
from dovetail.errors import InputError
from dovetail.finding import Status
from dovetail.model.write import write
from tests.block_mixtures import MIXTURES, three_layers, weights_of
from tests.equality import model_from, normal

pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")

HTP = "qnn-htp:sm8550"


@pytest.mark.parametrize(("precision", "kept", "expected"), MIXTURES)
def test_a_kept_layer_has_its_own_weights_and_form(
    precision: str, kept: str, expected: list[tuple[DType, Granularity]], tmp_path: Path
) -> None:
    path, data = three_layers(tmp_path)
    result = dovetail.fit(
        path,
        target=HTP,
        precision=precision,
        keep=[f"two={kept}"],
        calibration=data,
        output=tmp_path / "run",
        baselines="none",
    )
    assert weights_of(result) == expected
    assert {name: result.verdicts[name].status for name in ("compiled", "fidelity", "numerics")} == dict.fromkeys(
        ("compiled", "fidelity", "numerics"), Status.PASS
    )
    (record,) = [record for record in result.passes if record.name == "linear_to_conv"]
    in_blocks = [granularity is not Granularity.AXIS for _, granularity in expected]
    assert len(record.changed) == sum(in_blocks)
    rewritten = {site.where for site in record.changed}
    assert [name in rewritten for name in ("a", "d", "y")] == in_blocks


def test_the_plan_of_a_mixture_can_be_passed_back(tmp_path: Path) -> None:
    path, data = three_layers(tmp_path)
    settings = {"target": HTP, "calibration": data, "baselines": "none"}
    dovetail.fit(path, precision="w8a16", keep=["two=w4a16-lpbq"], output=tmp_path / "first", **settings)
    dovetail.fit(path, plan=tmp_path / "first/plan.json", output=tmp_path / "again", **settings)
    emitted = [(tmp_path / run / "model.onnx").read_bytes() for run in ("first", "again")]
    assert emitted[0] == emitted[1]


def test_float_scales_beside_integer_scales_are_refused(tmp_path: Path) -> None:
    """The provider's option would convert both: w4a16-bq is read back as changed."""
    path, data = three_layers(tmp_path)
    with pytest.raises(InputError, match=r"--keep two=w4a16-bq: qnn-htp:sm8550 cannot have blocks with float scales"):
        dovetail.fit(
            path, target=HTP, precision="w4a16-lpbq", keep=["two=w4a16-bq"], calibration=data, output=tmp_path / "run"
        )


def test_a_layer_that_htp_has_no_blocks_for_is_not_rewritten(tmp_path: Path) -> None:
    """Blocks of 16 over 48 input channels are computed wrongly: the layer is int8, and stays a Gemm."""
    body = "g (float[8,64] x) => (float[8,32] y) { a = MatMul(x, w) b = Relu(a) y = Gemm(b, u, bias) }"
    model = model_from(body, w=normal(64, 48), u=normal(48, 32, seed=1), bias=normal(32, seed=2))
    _, data = three_layers(tmp_path)
    result = dovetail.fit(
        write(model, tmp_path / "other.onnx")[0],
        target=HTP,
        precision="w4a16-lpbq",
        block_size=16,
        calibration=data,
        output=tmp_path / "run",
        baselines="none",
    )
    blocked, other = [row for row in result.plan if row.edge is not None and row.edge.index == 1]
    assert blocked.granularity is Granularity.EXPANDED_BLOCK
    assert (other.dtype, "Gemm weight" in other.detail) == (DType.S8, True)
    assert "not in blocks: HTP computes it wrongly for 48 input channels" in other.detail
    assert result.verdicts["fidelity"].status is Status.PASS


@pytest.mark.parametrize("method", ["scale-search", "second-order"])
def test_the_searched_scales_are_those_that_are_deployed(method: str, tmp_path: Path) -> None:
    """Read-back compares every integer scale and every scale of a channel with those of the plan."""
    path, data = three_layers(tmp_path)
    runs = {}
    for rounding in ("nearest", method):
        runs[rounding] = dovetail.fit(
            path,
            target=HTP,
            precision="w4a16-lpbq",
            rounding=rounding,
            calibration=data,
            output=tmp_path / rounding,
            baselines="none",
        )
    (decision,) = [row for row in runs[method].decisions if row.knob == "rounding"]
    assert decision.taken == method
    for name in ("fidelity", "numerics"):
        assert runs[method].verdicts[name].status is Status.PASS
    scales = [
        [row.scale for row in result.plan if row.granularity is Granularity.EXPANDED_BLOCK] for result in runs.values()
    ]
    assert len(scales[0]) == 3
    assert all(np.any(np.asarray(a) != np.asarray(b)) for a, b in zip(*scales, strict=True))
