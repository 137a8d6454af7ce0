"""The parts of the way ``split`` are read back one by one: what one of them has otherwise is not hidden by another."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import onnx
import pytest

import dovetail
from dovetail.device.verify_converted import verify_converted
from dovetail.finding import Status, Verdict
from tests.backends.qairt.converter_files import FLOAT_16, as_converted, dumped

pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed: pip install 'dovetail-fit[qnn]'")
TARGET = "qairt:2.33/v75"

ALTERNATING = """<ir_version: 10, opset_import: ["": 21]>
g (float[1,8,8,4] x) => (float[1,4,8,8] y)
{ [t] a = Transpose<perm=[0,3,1,2]>(x) [m] p = MaxPool<kernel_shape=[3,3], pads=[1,1,1,1]>(a) [s] q = Sin(p)
  [l] r = Cos(q) [n] k = MaxPool<kernel_shape=[3,3], pads=[1,1,1,1]>(r) [e] y = Add(k, p) }"""


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A run of the way ``split``, integer, float and integer, and what the real compiler makes of its parts."""
    folder = tmp_path_factory.mktemp("parts")
    onnx.save(onnx.parser.parse_model(ALTERNATING), folder / "model.onnx")
    dovetail.fit(
        folder / "model.onnx", target=TARGET, calibration="random:2", precision="w8a16", keep=["s=fp16", "l=fp16"],
        output=folder / "run", option={"strategy": "split"},
    )  # fmt: skip
    found = sorted((folder / "run" / "qairt" / "split").glob("simulation_*.onnx"))
    assert len(found) == 3
    documents = [as_converted(dumped(part, folder / part.stem)) for part in found]
    # The simulation exchanges float tensors; the converter's parts have those of their own entries.
    texts = [json.dumps(document).replace("_converted_QNN_DATATYPE_FLOAT_16", "") for document in documents]
    first, second, third = map(json.loads, texts)
    for part in (first, third):
        part["graph"]["tensors"]["p"] = copy.deepcopy(documents[0]["graph"]["tensors"]["p"])
    third["graph"]["tensors"]["k"] = documents[2]["graph"]["tensors"]["k"]
    return folder / "run", [first, second, third]


def verdict_of_parts(run: Path, documents: list[dict[str, Any]], order: Sequence[int]) -> Verdict:
    for number, document in enumerate(documents):
        (run.parent / f"part_{number}_net.json").write_text(json.dumps(document))
    result = verify_converted(run, [run.parent / f"part_{number}_net.json" for number in order])
    return result.verdicts["fidelity"]


ORDERS = list(permutations(range(3)))


@pytest.mark.parametrize("order", ORDERS)
def test_parts_whose_operators_have_the_same_names_are_as_planned(
    order: tuple[int, ...], parts: tuple[Path, list[dict[str, Any]]]
) -> None:
    first, second, third = (part["graph"] for part in parts[1])
    assert "Transpose" in set(first["nodes"]) & set(third["nodes"])
    assert (first["tensors"]["p"]["data_type"], second["tensors"]["p"]["data_type"]) == (0x416, FLOAT_16)
    verdict = verdict_of_parts(parts[0], parts[1], order)
    assert verdict.status is Status.PASS, verdict.reason


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("part", [0, 2])
@pytest.mark.parametrize(
    ("data_type", "found"), [(0x416, "planned scale"), (0x408, "found uint8"), (FLOAT_16, "found float16")]
)
def test_a_tensor_that_one_of_two_parts_has_otherwise_is_changed(
    data_type: int, found: str, part: int, order: tuple[int, ...], parts: tuple[Path, list[dict[str, Any]]]
) -> None:
    documents = copy.deepcopy(parts[1])
    tensor = documents[part]["graph"]["tensors"]["p"]
    tensor["data_type"] = data_type
    tensor["quant_params"]["scale_offset"]["scale"] *= 1.5
    verdict = verdict_of_parts(parts[0], documents, order)
    assert verdict.status is Status.FAIL, verdict.reason
    assert "'p': planned" in verdict.reason
    assert found in verdict.reason
