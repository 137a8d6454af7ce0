"""Weights in external data: found next to the model, and never outside of its folder."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from dovetail.model.read import read
from tests.equality import normal, run
from tests.model.model_files import LINEAR, WEIGHTS, check_refused, relocate, save, save_external

REPROS = Path(__file__).parents[1] / "repros"


def test_external_data_is_found(tmp_path: Path) -> None:
    model = read(save_external(tmp_path), {"x": (1, 3)})
    x = normal(1, 3)
    np.testing.assert_allclose(run(model, {"x": x})["y"], x @ WEIGHTS["w"] + WEIGHTS["b"], rtol=1e-5)


def test_large_weight_stays_in_its_file_through_conversion(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", LINEAR.replace("4", "400"), opset=11, w=normal(3, 400), b=normal(400))
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="m.data", size_threshold=0)
    model = read(path)
    assert isinstance(model.graph.initializers["w"].const_value, ir.ExternalTensor)


def test_missing_external_data(tmp_path: Path) -> None:
    path = save_external(tmp_path)
    (tmp_path / "m.data").unlink()
    check_refused("'m.data' of tensor 'w' is missing", path)


def test_short_external_data(tmp_path: Path) -> None:
    path = save_external(tmp_path)
    data = tmp_path / "m.data"
    data.write_bytes(data.read_bytes()[:20])
    check_refused("'m.data' of tensor 'w' is too short: the tensor needs 48 bytes from offset 0", path)


def test_length_that_does_not_fit_the_shape(tmp_path: Path) -> None:
    path = save_external(tmp_path)
    proto = onnx.load(path, load_external_data=False)
    proto.graph.initializer[0].dims[0] = 2
    path.write_bytes(proto.SerializeToString())
    check_refused("has length 48 in the model, but dtype and shape need 32 bytes", path)


@pytest.mark.parametrize("location", ["../m.data", "/etc/passwd", "sub/../../m.data"])
def test_external_data_outside_the_folder(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    path = save_external(folder)
    relocate(path, location)
    check_refused("of tensor 'w' must be a relative path without '..' inside the model's folder", path)


def test_external_data_through_a_link_out_of_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    path = save_external(folder)
    (folder / "m.data").rename(tmp_path / "elsewhere")
    (folder / "m.data").symlink_to(tmp_path / "elsewhere")
    check_refused("must be a relative path without '..' inside the model's folder", path)


def test_external_data_with_hard_links(tmp_path: Path) -> None:
    path = save_external(tmp_path)
    os.link(tmp_path / "m.data", tmp_path / "again")
    check_refused("several hard links", path)


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("ext_nul", r"tensor 'W' is in external data, but its location 'ok\\x00.bin' is not a file name"),
        ("ext_badoff", "external data 'ok.bin' of tensor 'W': its offset 'abc' is not a number"),
    ],
)
def test_damaged_reference_to_external_data(name: str, match: str) -> None:
    check_refused(match, REPROS / f"{name}.onnx")
