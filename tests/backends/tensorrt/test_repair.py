"""Models that other tools quantized, repaired with their own numbers on the real builder: pairs in wrong places."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

import msgspec
import numpy as np
import pytest

import dovetail
from dovetail import zoo
from dovetail.cli.main import main
from dovetail.config import FitOptions
from dovetail.encoding import QParams
from dovetail.errors import InputError
from dovetail.finding import Status
from dovetail.model.read import read
from dovetail.qdq.invert import invert
from dovetail.repairs import RECORD, Repair, precision_of, repair
from dovetail.storage import Choice, Edge
from dovetail.targets import open_target
from dovetail.targets.tensorrt.table import F8, FP8
from tests.backends.tensorrt.attention import layer
from tests.planning import noise, planned
from tests.quantized_elsewhere import calibration, quantized_elsewhere

pytest.importorskip("tensorrt_rtx", reason="needs the package tensorrt-rtx-cu12")


def test_another_tools_int8_vit_is_made_to_fuse_with_its_own_numbers(tmp_path: Path) -> None:
    path = quantized_elsewhere(tmp_path / "peer.onnx", signed=True)
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    assert precision_of(path) == "w8a8"
    result = dovetail.repair(path, target="tensorrt:sm89", calibration=calibration(), output=tmp_path / "run")
    record = msgspec.json.decode((tmp_path / "run" / RECORD).read_bytes(), type=Repair)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before == result.model_sha256
    assert result.verdicts["fidelity"].status is Status.PASS
    assert "4 attention blocks: as one kernel as planned 4 Int8 -> Int8; in float16 4" in result.notes
    assert [text.split(":")[0] for text in record.as_given] == ["refused"]
    assert set(record.changed) == {f"blocks.{i}.attn/Softmax_out at blocks.{i}.attn/MatMul_2:0" for i in range(4)}
    assert record.missing == {}
    assert "blocks.0.attn.proj/MatMul_out" in record.removed
    peer = invert(read(path))[1]
    rows = {row.tensor: row.scale for row in result.plan if row.edge and "as given" in row.reason}
    kept = [name for name in rows if name in peer.tensors and isinstance(peer.tensors[name].storage, QParams)]
    assert len(kept) > 10
    for name in kept:
        storage = peer.tensors[name].storage
        assert isinstance(storage, QParams)
        assert rows[name] == float(storage.scale)


def test_a_pair_on_scores_and_none_behind_the_softmax_in_float16(tmp_path: Path) -> None:
    """What a peer's export of scaled_dot_product_attention looks like: half precision, 0 blocks fused."""
    target = open_target("tensorrt")
    model = layer(masked=True)
    plan = planned(model, target, FP8, data=noise(model))
    add = next(node for node in model.graph if node.outputs[0].name == "s1")
    edges = {**plan.edges, Edge(str(add.name), 0): Choice(QParams(F8, np.float32(0.02), np.int32(0)), "")}
    del edges[Edge("mix", 0)]
    (artifact,) = target.emit(model, dataclasses.replace(plan, edges=edges), tmp_path)
    result, record = repair(
        artifact.path, FitOptions("tensorrt:sm89", "fp8"), tmp_path / "run", calibration=noise(model)
    )
    assert "1 attention blocks: as one kernel as planned none; in float16 1" in record.as_given
    assert "1 attention blocks: as one kernel as planned 1 FP8 -> FP8; in float16 1" in result.notes
    assert [finding.message.rpartition(": ")[2] for finding in record.findings_as_given] == [
        f"there is a pair on the scores, in front of Add {add.name!r}"
    ]
    assert list(record.missing) == ["p0 at mix:0"]
    assert record.removed == ("s0",)
    assert record.changed == {}


def test_a_float_model_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = zoo.load("vit_digits").model_path
    with pytest.raises(InputError, match="is not quantized: `dovetail fit` takes the float model"):
        precision_of(path)
    with pytest.raises(SystemExit) as ended:
        main(["repair", str(path), "--target", "tensorrt", "--calib", "random", "-o", str(tmp_path / "run")])
    assert ended.value.code == 2
    assert not (tmp_path / "run").exists()
