"""The HTP rules on damaged models: findings or one sentence, never an exception of another kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from dovetail import rule_docs as docs
from dovetail.checking import check_file
from dovetail.errors import InputError
from dovetail.targets import open_target
from tests.rules.cases import head_of, write

CODES = (
    *("Q101", "Q106", "Q111", "Q113", "Q114", "Q205", "Q206", "Q403", "Q408", "Q511"),
    *("Q553", "Q563", "Q564", "Q565", "Q566", "Q567", "Q604", "Q607"),
)
CASES = [next(iter(docs.case_texts(code, "bad").values())) for code in CODES]


def without_zero_points(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            del node.input[2:]


def with_constants_as_inputs(model: onnx.ModelProto) -> None:
    for tensor in model.graph.initializer:
        model.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))


def without_constants(model: onnx.ModelProto) -> None:
    with_constants_as_inputs(model)
    del model.graph.initializer[:]


def without_scales(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            node.input[1] = ""


def of_unknown_size(model: onnx.ModelProto) -> None:
    for value in (*model.graph.input, *model.graph.output):
        for number, dim in enumerate(value.type.tensor_type.shape.dim):
            dim.dim_param = f"{value.name}_{number}"


def of_unknown_rank(model: onnx.ModelProto) -> None:
    for value in model.graph.input:
        value.type.tensor_type.ClearField("shape")


def with_scalars(model: onnx.ModelProto) -> None:
    for value in (*model.graph.input, *model.graph.output):
        del value.type.tensor_type.shape.dim[:]


# How many of the cases are refused: such models are still valid, or only some of them are.
DAMAGE = {
    without_zero_points: 0,
    with_constants_as_inputs: 0,
    of_unknown_size: 0,
    with_scalars: 12,
    without_constants: 17,
    without_scales: 17,
    of_unknown_rank: 18,
}


@pytest.mark.parametrize(("damage", "refused"), DAMAGE.items(), ids=lambda value: getattr(value, "__name__", None))
def test_damaged_models_are_checked_or_refused_in_one_sentence(
    damage: Callable[[onnx.ModelProto], None], refused: int, tmp_path: Path
) -> None:
    refusals = []
    for text in CASES:
        path = write(text, tmp_path)
        model = onnx.load(path)
        damage(model)
        onnx.save(model, path)
        refusals.append(refusal(path, head_of(text)["target"]))
    assert not [sentence for sentence in refusals if "\n" in sentence]
    assert len(list(filter(None, refusals))) == refused


def refusal(path: Path, target: str) -> str:
    """Why a model is not checked; empty if it is."""
    try:
        check_file(path, open_target(target))
    except InputError as error:
        return str(error)
    return ""
