"""One model from four exporters (and as an Attention operator) ends as one graph, equal to what it was."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from dovetail.model import edit
from dovetail.model.attention import find_attention
from dovetail.model.origin import nodes_of
from dovetail.model.read import read
from dovetail.pass_record import PassRecord
from dovetail.passes.normalize import normalize
from tests import equality
from tests.passes.attention_cases import ops

pytest.importorskip("torch", reason="needs the package torch")
pytest.importorskip("onnxscript", reason="needs the package onnxscript")
pytest.importorskip("transformers", reason="needs the package transformers")

from tests.networks import attention_exports as export

ALL = (*export.EXPORTERS, export.ATTENTION_OP)
SDPA = ("dynamo-sdpa", "torchscript-sdpa", export.ATTENTION_OP)
GRAPHS: dict[str, Callable[[str], Path]] = {
    "timm": functools.partial(export.vit, "timm"),
    "huggingface": functools.partial(export.vit, "huggingface"),
    "parts by index": functools.partial(export.fused_block, "index"),
    "parts by chunk": functools.partial(export.fused_block, "chunk"),
    "masked window": export.masked_window,
    "cross attention": export.cross_attention,
}
CASES = [(graph, exporter) for graph in GRAPHS for exporter in (SDPA if graph.startswith("parts") else ALL)]


Normalized = Callable[[str, str], tuple[onnx.ModelProto, ir.Model, tuple[PassRecord, ...]]]


@pytest.fixture(scope="module")
def normalized() -> Normalized:
    """A graph of an exporter: the file, the normalized model and the records; each is made once."""

    @functools.cache
    def make(graph: str, exporter: str) -> tuple[onnx.ModelProto, ir.Model, tuple[PassRecord, ...]]:
        path = GRAPHS[graph](exporter)
        return onnx.load(path), *normalize(read(path))

    return make


@pytest.mark.parametrize("graph", GRAPHS)
def test_all_exporters_end_in_the_same_operators(normalized: Normalized, graph: str) -> None:
    counts = {exporter: ops(normalized(graph, exporter)[1]) for name, exporter in CASES if name == graph}
    wanted = counts["dynamo-sdpa"]
    assert {exporter: count for exporter, count in counts.items() if count != wanted} == {}


def test_counts_per_block(normalized: Normalized) -> None:
    """What a block costs, written down: a change here is a change of the canonical form."""
    common = Counter(LayerNormalization=2, Gelu=1, MatMul=6, Add=6, Mul=1, Softmax=1, Reshape=4, Transpose=4)
    assert ops(normalized("parts by index", "dynamo-sdpa")[1]) == common + Counter(Split=1)
    block = ops(normalized("huggingface", "dynamo-sdpa")[1])
    block.subtract({"Conv": 1, "Reshape": 1, "Transpose": 1, "Concat": 1, "Gather": 1})
    block.subtract({"Add": 2, "LayerNormalization": 1, "MatMul": 1})  # positions and head; the last norm; the head
    separate = common + Counter(MatMul=2, Add=2)
    assert +block == Counter({name: 2 * count for name, count in separate.items()})


@pytest.mark.parametrize(("graph", "exporter"), CASES)
def test_numbers_and_trail_stand(normalized: Normalized, graph: str, exporter: str) -> None:
    proto, model, _ = normalized(graph, exporter)
    original = ir.from_proto(proto)
    equality.assert_equal(original, model)
    equality.assert_traceable(model, equality.names_in(original))
    assert [node.name for node in model.graph if not nodes_of(node)] == []


@pytest.mark.parametrize(("graph", "exporter"), CASES)
def test_attention_has_its_one_form(normalized: Normalized, graph: str, exporter: str) -> None:
    found = find_attention(normalized(graph, exporter)[1].graph)
    assert len(found) == (2 if graph in export.STYLES else 1)
    for attention in found:
        assert (attention.heads, attention.head_dim) == (3, 64)
        assert attention.guard is None
        (scale,) = attention.scales
        assert scale.node.outputs[0] is attention.scores.inputs[0]
        assert scale.factor == pytest.approx(0.125)
        assert attention.key_transpose is not None
        assert attention.key_transpose.outputs[0] is attention.scores.inputs[1]
        assert list(edit.attribute(attention.key_transpose, "perm", ())) == [0, 2, 3, 1]
        assert [node.op_type for node in attention.path] == ["Add"] * len(attention.masks) + ["Softmax"]
        assert edit.attribute(attention.softmax, "axis", None) == -1


@pytest.mark.parametrize("exporter", ALL)
def test_real_mask_survives(normalized: Normalized, exporter: str) -> None:
    (attention,) = find_attention(normalized("masked window", exporter)[1].graph)
    (mask,) = attention.masks
    array = edit.constant_of(mask.value)
    assert array is not None
    assert np.unique(array).tolist() == [-100.0, 0.0]


@pytest.mark.parametrize("exporter", ALL)
def test_cross_attention_keeps_its_lengths(normalized: Normalized, exporter: str) -> None:
    (attention,) = find_attention(normalized("cross attention", exporter)[1].graph)
    assert edit.shape_of(attention.softmax.outputs[0]) == (1, 3, 10, 49)


def test_guard_and_zero_mask_were_there_and_went(normalized: Normalized) -> None:
    proto, model, records = normalized("huggingface", "dynamo-sdpa")
    assert Counter(node.op_type for node in proto.graph.node)["IsNaN"] == 2
    assert [len(record.changed) for record in records if record.name == "remove_nan_guard"] == [2]
    assert (ops(model)["IsNaN"], ops(model)["Where"]) == (0, 0)
    assert [attention.masks for attention in find_attention(model.graph)] == [(), ()]


def test_normalizing_again_changes_nothing(normalized: Normalized) -> None:
    _, model, _ = normalized("timm", "dynamo-sdpa")
    again, records = normalize(model)
    assert ops(again) == ops(model)
    assert [record for record in records if record.name.startswith("attention") and record.changed] == []
