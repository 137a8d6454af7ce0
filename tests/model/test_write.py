"""Models are written completely or not at all, including external weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from dovetail.model import write
from tests.planning import graph

BODY = "g (float[1,2] x) => (float[1,2] y) <float[2,2] w = {1,2,3,4}> { y = MatMul(x, w) }"


def test_failed_write_keeps_the_previous_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "_INLINE_LIMIT_BYTES", 0)
    path = tmp_path / "model.onnx"
    assert write.write(graph(BODY), path) == (path, tmp_path / "model.onnx.data")
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    other = graph(BODY.replace("{1,2,3,4}", "{5,6,7,8}"))

    def fail(*arguments: object, **options: object) -> None:
        save(*arguments, **options)
        raise OSError("no space left")

    save = ir.save
    with monkeypatch.context() as patch:
        patch.setattr(ir, "save", fail)
        with pytest.raises(OSError, match="no space left"):
            write.write(other, path)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    write.write(other, path)
    weight = ir.load(path).graph.initializers["w"].const_value
    assert weight is not None
    np.testing.assert_array_equal(weight.numpy(), [[5, 6], [7, 8]])


def test_model_can_overwrite_the_file_that_it_was_read_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "_INLINE_LIMIT_BYTES", 0)
    path = tmp_path / "model.onnx"
    write.write(graph(BODY), path)
    before = (tmp_path / "model.onnx.data").read_bytes()
    write.write(ir.load(path), path)
    assert (tmp_path / "model.onnx.data").read_bytes() == before
