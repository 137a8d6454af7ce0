"""A whole network through the ONNX -> torch step, in float, against ONNX Runtime: the one with most operators.

The network is one of the HTP tests; all eleven were compared so once (116 dB or more).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dovetail.model.read import read
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.passes.normalize import normalize
from dovetail.targets import open_target
from dovetail.targets.xnnpack.module import build_module
from tests.equality import random_inputs, run, sqnr_db

torch = pytest.importorskip("torch", reason="needs the package torch")
pytest.importorskip("transformers", reason="needs the package transformers")
pytest.importorskip("executorch", reason="needs the package executorch")


def _rt_detr(folder: Path) -> Path:
    from tests.backends.qnn_htp.zoo.fitting import export
    from tests.backends.qnn_htp.zoo.test_detectors import RT_SHAPE, rt_detr

    return export(rt_detr(), RT_SHAPE, folder / "rt_detr.onnx", dynamo=False)


def test_network_is_that_of_onnx_runtime(tmp_path: Path) -> None:
    model, _ = normalize(read(_rt_detr(tmp_path)))
    for each in (*open_target("xnnpack").rewrites, infer_shapes):
        each(model)
    inputs = random_inputs(model)
    with torch.no_grad():
        found = build_module(model)(*(torch.from_numpy(array) for array in inputs.values()))
    expected = run(model, inputs)
    assert expected
    for (name, wanted), tensor in zip(expected.items(), found, strict=True):
        assert np.isfinite(wanted).all()
        assert sqnr_db(wanted, tensor.numpy()) > 90, name
