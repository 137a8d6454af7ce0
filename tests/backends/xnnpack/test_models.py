"""Whole networks through the ONNX -> torch step, in float, against ONNX Runtime: every one of the HTP tests, and more.

The graphs are those that would be planned. Nothing is lowered here: that takes a minute each.
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
from tests.networks.ocr_wheel import ocr_model  # noqa: E402

FLOOR_DB = 90.0


def assert_as_in_onnx_runtime(path: Path, shapes: dict[str, tuple[int, ...]] | None = None) -> ir.Model:
    model, _ = normalize(read(path, shapes or {}))
    for each in (*open_target("xnnpack").rewrites.graph, infer_shapes):
        each(model)
    inputs = random_inputs(model)
    with torch.no_grad():
        found = build_module(model)(*(torch.from_numpy(array) for array in inputs.values()))
    expected = run(model, inputs)
    assert expected
    for (name, wanted), tensor in zip(expected.items(), found, strict=True):
        assert np.isfinite(wanted).all()
        assert np.abs(wanted).max() > 0
        assert sqnr_db(wanted, tensor.numpy()) > FLOOR_DB, name
    return model


@pytest.mark.parametrize("name", NETWORKS)
def test_network_is_that_of_onnx_runtime(name: str) -> None:
    assert_as_in_onnx_runtime(network(name))


def test_text_recogniser_is_that_of_onnx_runtime() -> None:
    assert_as_in_onnx_runtime(ocr_model(rendered_lines.MODEL), {"x": rendered_lines.SHAPE})
