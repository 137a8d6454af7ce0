"""Mixed precision on the real builder: operators in float16 where they are planned, attention one kernel in 8 bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import dovetail
from dovetail.finding import Status
from dovetail.report.result import Result
from tests.networks.attention_layer import layer
from tests.networks.outlier_layers import outlier_layers, outlier_samples

pytest.importorskip("tensorrt_rtx", reason="needs the package tensorrt-rtx-cu12")


def fitted(model: ir.Model, samples: dict[str, np.ndarray], folder: Path, **options: object) -> Result:
    ir.save(model, folder / "model.onnx")
    settings = {"target": "tensorrt:sm89", "precision": "auto", "output": folder / "run", **options}
    return dovetail.fit(folder / "model.onnx", calibration=samples, **settings)


def kernels(result: Result) -> dict[str, str]:
    """The type of the kernel that reads an edge or writes a tensor, as the engine has it."""
    return {str(row.edge or row.tensor): row.detail.split()[0] for row in result.read_back}


def test_the_island_is_in_float16_and_nothing_else_is(tmp_path: Path) -> None:
    result = fitted(outlier_layers(3000, 3000), outlier_samples(40), tmp_path, max_float=0.5)
    assert result.verdicts["fidelity"].status is Status.PASS
    assert result.verdicts["budget"].status is Status.PASS
    whole, *islands = [row for row in result.decisions if row.knob == "mixed"]
    assert whole.taken == "w8a8 + 2 in fp16"
    assert [(row.taken, row.place.nodes) for row in islands] == [("fp16", ("third",))]
    read = kernels(result)
    assert {name for name, dtype in read.items() if dtype == "Half"} == {"d", "e"}
    assert {name for name, dtype in read.items() if dtype == "Int8"} == {
        f"{name}:{index}" for name in ("first", "second", "fifth") for index in (0, 1)
    }


def test_attention_stays_one_kernel_in_8_bits(tmp_path: Path) -> None:
    """The four projections may become float16; the attention between them never does."""
    random = np.random.default_rng(0)
    samples = {
        "x": random.standard_normal((16, 1, 64, 64)).astype(np.float32),
        "c": random.standard_normal((16, 1, 64, 64)).astype(np.float32),
    }
    result = fitted(layer(64, 32), samples, tmp_path, max_float=0.5)
    whole, *islands = [row for row in result.decisions if row.knob == "mixed"]
    assert " in fp16" in whole.taken
    assert islands
    assert result.verdicts["fidelity"].status is Status.PASS
    assert any("1 attention blocks: as one kernel in the planned type: 1 (" in note for note in result.notes)
    dtypes = {row.detail.split(", ")[1] for row in result.read_back if row.detail.startswith("one attention kernel")}
    assert dtypes <= {"FP8 -> FP8", "Int8 -> Int8", "FP8 -> Half", "Int8 -> Half"}
    assert dtypes
