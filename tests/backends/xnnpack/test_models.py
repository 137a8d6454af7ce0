"""Whole networks mapped from ONNX to torch, in float, against ONNX Runtime: all networks of the HTP tests, and more.

The graphs are normalized and rewritten as for a plan. Lowering is skipped: it takes about a minute per network.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from dovetail.model.read import read
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.passes.normalize import normalize
from dovetail.targets import open_target
from dovetail.targets.xnnpack.module import build_module
from tests.equality import random_inputs, run, sqnr_db

torch = pytest.importorskip("torch", reason="needs the package torch")
pytest.importorskip("onnxscript", reason="needs the package onnxscript")
pytest.importorskip("transformers", reason="needs the package transformers")
pytest.importorskip("executorch", reason="needs the package executorch")

from tests.networks import rendered_lines  # noqa: E402
from tests.networks.catalog import NETWORKS, network  # noqa: E402
from tests.networks.wheels import ocr_model  # noqa: E402

FLOOR_DB = 90.0


def assert_matches_onnx_runtime(path: Path, shapes: dict[str, tuple[int, ...]] | None = None) -> ir.Model:
    model, _ = normalize(read(path, shapes or {}))
    for rewrite in (*open_target("xnnpack").rewrites.graph, infer_shapes):
        rewrite(model)
    inputs = random_inputs(model)
    with torch.no_grad():
        outputs = build_module(model)(*(torch.from_numpy(array) for array in inputs.values()))
    expected = run(model, inputs)
    assert expected
    for (name, array), tensor in zip(expected.items(), outputs, strict=True):
        assert np.isfinite(array).all()
        assert np.abs(array).max() > 0
        assert sqnr_db(array, tensor.numpy()) > FLOOR_DB, name
    return model


@pytest.mark.parametrize("name", NETWORKS)
def test_network_matches_onnx_runtime(name: str) -> None:
    assert_matches_onnx_runtime(network(name))


def test_text_recognizer_matches_onnx_runtime() -> None:
    assert_matches_onnx_runtime(ocr_model(rendered_lines.MODEL), {"x": rendered_lines.SHAPE})
