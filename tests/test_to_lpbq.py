"""``repair --to-lpbq``: block-quantized weights of another tool get integer scales, or stay, each with its reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import pytest

import dovetail
from dovetail.cli.main import main
from dovetail.encoding import Array, DType, Encoding, Granularity, QParams
from dovetail.errors import InputError
from dovetail.finding import Status
from dovetail.model.read import read
from dovetail.model.session import Mode, open_session, run_session
from dovetail.numerics.affine import dequantize, quantize
from dovetail.numerics.lpbq import as_expanded
from dovetail.numerics.ranges import weight_params
from dovetail.op_support import OpTable
from dovetail.pass_record import PassRecord
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.qdq.invert import invert
from dovetail.qdq.to_lpbq import to_lpbq
from dovetail.repairs import RECORD, Repair
from dovetail.targets import open_target
from dovetail.targets.ort_cpu.target import ORT_CPU
from tests.equality import sqnr_db
from tests.quantized_blocks import BLOCKS_OF_16, CHANNELS, OUT, ROWS, blocks, layers, weight


def converted(path: Path, table: OpTable = ORT_CPU.table) -> tuple[PassRecord, QParams]:
    """What the pass says, and the qparams of the weight after it."""
    model = read(path)
    infer_shapes(model)
    record = to_lpbq(model, table)
    _, plan = invert(model)
    (params,) = [c.storage for edge, c in plan.edges.items() if edge.index == 1]
    assert isinstance(params, QParams)
    return record, params


@pytest.mark.parametrize(("op", "axis"), [("MatMul", 0), ("Gemm", 1), ("Conv", 1)])
@pytest.mark.parametrize("size", [16, 32])
def test_an_eligible_weight_is_rounded_on_the_grid_of_integer_scales(
    op: str, axis: int, size: int, tmp_path: Path
) -> None:
    encoding = Encoding(DType.S4, True, Granularity.BLOCK, size)
    path = blocks(tmp_path / "model.onnx", encoding, op=op, axis=axis)
    given = invert(read(path))[1]
    (edge,) = [edge for edge in given.edges if edge.index == 1]
    record, params = converted(path)
    (site,) = record.changed
    assert record.declined == ()
    assert params == as_expanded(given.edges[edge].storage)  # type: ignore[arg-type]
    figures = [
        float(word) for word in site.what.replace(",", "").split() if word.replace(".", "").isdigit() and "." in word
    ]
    assert figures[0] > figures[1] > 10  # rounded again, the weights are closer than with only the scales changed


def test_uint4_with_zero_point_8_becomes_int4_exactly(tmp_path: Path) -> None:
    path = blocks(tmp_path / "model.onnx", Encoding(DType.U4, True, Granularity.BLOCK, 16))
    record, params = converted(path)
    assert params.dtype is DType.S4
    assert "from uint4 with zero point 8 to int4, exactly" in record.changed[0].what


def test_the_scale_of_a_block_of_zeros_does_not_matter(tmp_path: Path) -> None:
    plain, wild = (converted(blocks(tmp_path / f"{scale}.onnx", zero_block_scale=scale))[1] for scale in (0.01, 1000.0))
    np.testing.assert_allclose(plain.scale[1:], wild.scale[1:], rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"encoding": Encoding(DType.S4, False, Granularity.BLOCK, 16)}, "it is not symmetric"),
        ({"encoding": Encoding(DType.S8, True, Granularity.BLOCK, 16)}, "it is int8, integer scales require 4 bits"),
        ({"axis": 1, "encoding": Encoding(DType.S4, True, Granularity.BLOCK, 8)}, "along axis 1, not along the input"),
        (
            {"axis_attribute": False, "axis": 1, "encoding": Encoding(DType.S4, True, Granularity.BLOCK, 8)},
            "axis 1, not",
        ),
        ({"encoding": Encoding(DType.S4, True, Granularity.AXIS), "axis": 1}, "it has no scales per block"),
        ({"activation": DType.U8}, "the activation of MatMul is uint8, it must be a 16-bit integer"),
        ({"activation": None}, "the activation of MatMul is float, it must be a 16-bit integer"),
        ({"encoding": Encoding(DType.S4, True, Granularity.BLOCK, 24)}, "64 input channels are not a multiple"),
    ],
)
def test_a_weight_that_is_not_eligible_stays_with_its_reason(
    arguments: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    path = blocks(tmp_path / "model.onnx", **arguments)
    record, params = converted(path)
    assert record.changed == ()
    assert reason in record.declined[0].what
    assert params == next(c.storage for edge, c in invert(read(path))[1].edges.items() if edge.index == 1)


@pytest.mark.parametrize(
    ("channels", "size", "reason"),
    [
        (96, 48, "its blocks are of 48: HTP computes blocks with integer scales wrongly"),
        (96, 24, "its blocks are of 24: HTP computes blocks with integer scales wrongly"),
        (48, 16, "HTP computes it wrongly for 48 input channels, which are not a multiple of 32"),
    ],
)
@pytest.mark.parametrize("target", ["qnn-htp:sm8550", "ort-cpu"])
def test_the_limits_of_the_target_decide(target: str, channels: int, size: int, reason: str, tmp_path: Path) -> None:
    array = np.random.default_rng(0).standard_normal((channels, OUT)).astype(np.float32)
    path = layers(tmp_path / "model.onnx", [(array, replace(BLOCKS_OF_16, block_size=size), 0)])
    record, _ = converted(path, open_target(target).table)
    if target == "ort-cpu":
        assert (len(record.changed), record.declined) == (1, ())
    else:
        assert record.changed == ()
        assert reason in record.declined[0].what


@pytest.mark.parametrize(("shape", "axis"), [((2, CHANNELS, OUT), 1), ((CHANNELS,), 0)])
def test_a_weight_that_is_not_a_matrix_is_not_converted(shape: tuple[int, ...], axis: int, tmp_path: Path) -> None:
    array = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    path = layers(tmp_path / "model.onnx", [(array, BLOCKS_OF_16, axis)])
    record, _ = converted(path)
    assert record.changed == ()
    assert f"its weight is not a matrix, it has rank {len(shape)}" in record.declined[0].what
    result, _ = repaired(path, tmp_path / "run", rows=(2, ROWS), to_lpbq=True)
    assert result.verdicts["compiled"].status is Status.PASS


@pytest.mark.parametrize("to_lpbq", [True, False])
@pytest.mark.parametrize(
    ("encoding", "axis"),
    [
        (replace(BLOCKS_OF_16, symmetric=False), 0),
        (BLOCKS_OF_16, 1),
        (replace(BLOCKS_OF_16, dtype=DType.S8), 0),
    ],
    ids=["asymmetric", "wrong axis", "int8"],
)
def test_blocks_that_no_kernel_has_become_int8_per_channel(
    encoding: Encoding, axis: int, to_lpbq: bool, tmp_path: Path
) -> None:
    random = np.random.default_rng(0)
    first, second = (random.standard_normal(shape).astype(np.float32) * 0.1 for shape in ((CHANNELS, 96), (96, 48)))
    path = layers(tmp_path / "model.onnx", [(first, BLOCKS_OF_16, 0), (second, encoding, axis)])
    result, record = repaired(path, tmp_path / "run", rows=(2, ROWS), to_lpbq=to_lpbq)
    blocked, other = [row for row in result.plan if row.edge is not None and row.edge.index == 1]
    assert blocked.granularity is (Granularity.EXPANDED_BLOCK if to_lpbq else Granularity.BLOCK)
    assert (other.dtype, other.granularity) == (DType.S8, Granularity.AXIS)
    conversions = [rewrite for rewrite in record.rewrites if rewrite.name == "to_lpbq"]
    assert len(conversions) == to_lpbq
    assert all(rewrite.declined[0].what.startswith("not converted: ") for rewrite in conversions)


@pytest.mark.parametrize(
    "scale",
    [np.ones(OUT, np.float32), np.ones((3, OUT), np.float32), np.ones((0, OUT), np.float32), np.ones(1, np.float32)],
    ids=["rank 1", "mismatching", "empty", "single"],
)
def test_scales_of_the_wrong_shape_are_an_error_that_names_the_node(scale: Array, tmp_path: Path) -> None:
    path = blocks(tmp_path / "model.onnx", scale=scale)
    with pytest.raises(InputError, match="DequantizeLinear_2"):
        converted(path)


def repaired(
    path: Path, run: Path, target: str = "ort-cpu", rows: tuple[int, ...] = (ROWS,), **options: Any
) -> tuple[dovetail.Result, Repair]:
    calibration = {"x": np.random.default_rng(1).standard_normal((8, *rows, CHANNELS)).astype(np.float32)}
    result = dovetail.repair(path, target=target, output=run, calibration=calibration, **options)
    return result, msgspec.json.decode((run / RECORD).read_bytes(), type=Repair)


@pytest.mark.parametrize(("op", "axis"), [("MatMul", 0), ("Gemm", 1)])
def test_repair_deploys_the_converted_weight(op: str, axis: int, tmp_path: Path) -> None:
    path = blocks(tmp_path / "model.onnx", op=op, axis=axis)
    result, record = repaired(path, tmp_path / "run", to_lpbq=True)
    (row,) = [row for row in result.plan if row.dtype is DType.S4]
    assert (row.granularity, row.block_size, row.axis) == (Granularity.EXPANDED_BLOCK, 16, 0)
    assert result.verdicts["fidelity"].status is Status.PASS
    (conversion,) = [rewrite for rewrite in record.rewrites if rewrite.name == "to_lpbq"]
    assert len(conversion.changed) == 1
    sample = {"x": np.random.default_rng(2).standard_normal((ROWS, CHANNELS)).astype(np.float32)}
    before, after = (
        next(iter(run_session(open_session(p, Mode.EXACT), sample).values()))
        for p in (path, tmp_path / "run/model.onnx")
    )
    assert 15 < sqnr_db(before, after) < 60


def test_without_the_option_no_weight_gets_integer_scales(tmp_path: Path) -> None:
    result, record = repaired(blocks(tmp_path / "model.onnx"), tmp_path / "run")
    assert not any(row.granularity is Granularity.EXPANDED_BLOCK for row in result.plan)
    assert not any(rewrite.name == "to_lpbq" for rewrite in record.rewrites)


def test_the_command_lists_what_was_converted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = blocks(tmp_path / "model.onnx")
    with pytest.raises(SystemExit):
        main(["repair", str(path), "--target", "ort-cpu", "--to-lpbq", "-o", str(tmp_path / "run")])
    out = capsys.readouterr().out
    assert "converted: w_q: integer scales for its blocks of 16 along axis 0" in " ".join(out.split())


def test_a_target_without_such_weights_refuses(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--to-lpbq: tensorrt"):
        repaired(blocks(tmp_path / "model.onnx"), tmp_path / "run", target="tensorrt:sm89", to_lpbq=True)


def test_ml_dtypes_int4_is_what_the_tests_write() -> None:
    encoding = Encoding(DType.S4, True, Granularity.BLOCK, 16)
    params = weight_params(weight(), encoding, 0)
    stored = quantize(weight(), params)
    assert stored.dtype == ml_dtypes.int4
    assert sqnr_db(weight(), dequantize(stored, params)) > 15
