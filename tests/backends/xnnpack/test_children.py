"""A program does not depend on how the process that lowered it came to be."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from dovetail.targets import child
from dovetail.targets.child import Limits, run_child
from dovetail.targets.xnnpack.install import IMPORTS
from tests.equality import model_from

pytest.importorskip("executorch", reason="needs the package executorch")

FORKED = pytest.mark.skipif(not child.HAS_SERVERS, reason="children are not forked on this system")
# Attention, which every lowering looks for, and a layer.
NODES = """
    c = Conv<pads=[1,1,1,1]>(x, w)  f = Reshape(c, s)  t = Transpose<perm=[0,2,1]>(f)
    m = MatMul(t, f)  p = Softmax<axis=-1>(m)  y = MatMul(p, t)
"""
CONSTANTS = "<int64[3] s = {1,4,16}>"
GRAPH = f"g (float[1,3,4,4] x) => (float[1,16,4] y) {CONSTANTS} {{ {NODES} }}"


def lowered(model: Path, folder: Path) -> bytes:
    folder.mkdir()
    program, census = folder / "model.pte", folder / "census.json"
    arguments = {"model": str(model), "program": str(program), "census": str(census), "plain": True}
    result = run_child("dovetail.targets.xnnpack.lower:lower_in_child", arguments, imports=IMPORTS)
    assert result.error == ""
    return program.read_bytes()


def multiply(size: int) -> dict[str, bool]:
    """An operator that torch computes with several threads; whether torch had been imported before."""
    is_forked = "executorch.exir" in sys.modules
    import torch

    torch.ones(size, size) @ torch.ones(size, size)
    return {"is_forked": is_forked, "has_threads": torch.get_num_threads() > 1}


@FORKED
def test_a_forked_child_computes_with_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that the imports left behind would be missing in it, and it would wait for them forever."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    call = f"{__name__}:multiply"
    imports = (*IMPORTS, "colorsys")  # a server of its own, so that the other one is not replaced
    result = run_child(call, {"size": 1000}, imports=imports, limits=Limits(time_s=60))
    assert result.error == ""
    assert result.answer == {"is_forked": True, "has_threads": (os.cpu_count() or 1) > 1}


@FORKED
def test_a_forked_and_a_started_child_write_the_same_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.onnx"
    weights = np.linspace(-1, 1, 108, dtype=np.float32).reshape(4, 3, 3, 3)
    ir.save(model_from(GRAPH, w=weights), path)
    programs = [lowered(path, tmp_path / name) for name in ("first", "second")]
    monkeypatch.setattr(child, "HAS_SERVERS", False)
    assert {*programs, lowered(path, tmp_path / "started")} == {programs[0]}
