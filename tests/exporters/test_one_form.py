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
from dovetail.model.attention import Attention, find_attention
from dovetail.model.origin import nodes_of, origin_of
from dovetail.model.read import read
from dovetail.passes.normalize import normalize
from dovetail.passes.record import PassRecord
from passes.attention_cases import ops, run, sqnr_db

from . import export

ALL = (*export.EXPORTERS, export.ATTENTION_OP)
GRAPHS: dict[str, Callable[[str], bytes]] = {
    "timm": functools.partial(export.vit, "timm"),
    "huggingface": functools.partial(export.vit, "huggingface"),
    "parts by index": functools.partial(export.fused_block, "index"),
    "parts by chunk": functools.partial(export.fused_block, "chunk"),
    "masked window": export.masked_window,
    "cross attention": export.cross_attention,
}


@functools.cache
def normalized(graph: str, exporter: str) -> tuple[onnx.ModelProto, ir.Model, tuple[PassRecord, ...]]:
    data = GRAPHS[graph](exporter)
    path = FOLDER[0] / "model.onnx"
    path.write_bytes(data)
    return onnx.load_from_string(data), *normalize(read(path))


FOLDER: list[Path] = []


@pytest.fixture(autouse=True, scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    FOLDER[:] = [tmp_path_factory.mktemp("exports")]


def attentions(graph: str, exporter: str) -> tuple[Attention, ...]:
    return find_attention(normalized(graph, exporter)[1].graph)


@pytest.mark.parametrize("graph", GRAPHS)
def test_all_exporters_end_in_the_same_operators(graph: str) -> None:
    counts = {exporter: ops(normalized(graph, exporter)[1]) for exporter in ALL}
    wanted = counts[export.EXPORTERS[0]]
    assert {exporter: count for exporter, count in counts.items() if count != wanted} == {}


def test_counts_per_block() -> None:
    """What a block costs, written down: a change here is a change of the canonical form."""
    common = Counter(LayerNormalization=2, Gelu=1, MatMul=6, Add=6, Mul=1, Softmax=1, Reshape=4, Transpose=4)
    assert ops(normalized("parts by index", "dynamo-sdpa")[1]) == common + Counter(Split=1)
    block = ops(normalized("huggingface", "dynamo-sdpa")[1])
    block.subtract({"Conv": 1, "Reshape": 1, "Transpose": 1, "Concat": 1, "Gather": 1})
    block.subtract({"Add": 2, "LayerNormalization": 1, "MatMul": 1})  # positions and head; the last norm; the head
    separate = common + Counter(MatMul=2, Add=2)
    assert +block == Counter({name: 2 * count for name, count in separate.items()})


@pytest.mark.parametrize("exporter", ALL)
@pytest.mark.parametrize("graph", GRAPHS)
def test_numbers_and_trail_stand(graph: str, exporter: str) -> None:
    proto, model, _ = normalized(graph, exporter)
    original, result = run(ir.from_proto(proto)), run(model)
    assert list(original) == list(result)
    for name, reference in original.items():
        assert sqnr_db(reference, result[name]) >= 100
    names = {name for node in proto.graph.node for name in (*node.output, *node.input)}
    for node in model.graph:
        assert nodes_of(node), node.name
        assert [value.name for value in node.outputs if origin_of(value).name not in names] == []
    assert [value.name for value in model.graph.initializers.values() if origin_of(value).name not in names] == []


@pytest.mark.parametrize("exporter", ALL)
@pytest.mark.parametrize("graph", GRAPHS)
def test_attention_has_its_one_form(graph: str, exporter: str) -> None:
    found = attentions(graph, exporter)
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
def test_real_mask_survives(exporter: str) -> None:
    (attention,) = attentions("masked window", exporter)
    (mask,) = attention.masks
    array = edit.constant_of(mask.value)
    assert array is not None
    assert np.unique(array).tolist() == [-100.0, 0.0]


@pytest.mark.parametrize("exporter", ALL)
def test_cross_attention_keeps_its_lengths(exporter: str) -> None:
    (attention,) = attentions("cross attention", exporter)
    assert edit.shape_of(attention.softmax.outputs[0]) == (1, 3, 10, 49)


def test_guard_and_zero_mask_were_there_and_went() -> None:
    proto, _, records = normalized("huggingface", "dynamo-sdpa")
    assert Counter(node.op_type for node in proto.graph.node)["IsNaN"] == 2
    changed = {record.name: len(record.changed) for record in records if record.changed}
    assert changed["remove_nan_guard"] == 2
    assert changed["remove_zero_masks"] == 2 or "Add changes nothing" in str(records)


def test_normalizing_again_changes_nothing() -> None:
    _, model, _ = normalized("timm", "dynamo-sdpa")
    again, records = normalize(model)
    assert ops(again) == ops(model)
    assert [record for record in records if record.name.startswith("attention") and record.changed] == []
