"""The generator: the same graph for the same seed and index, and every kind of block valid in ONNX Runtime."""

from __future__ import annotations

import hashlib

import numpy as np
import onnx
import pytest

from dovetail.model.session import Mode, open_session, run_session
from dovetail.sweep.blocks import BLOCKS
from dovetail.sweep.blocks.activations import ACTIVATIONS
from dovetail.sweep.blocks.kind import IMAGE
from dovetail.sweep.case import Case, make_case
from dovetail.sweep.draw import Draw
from dovetail.sweep.graph_builder import GraphBuilder
from dovetail.sweep.sweep import generator_digest


def digest(case: Case) -> str:
    state = hashlib.sha256(case.model.SerializeToString(deterministic=True))
    for array in case.samples.values():
        state.update(array.tobytes())
    return state.hexdigest()[:12]


def check(model: onnx.ModelProto, samples: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Check a model as strictly as onnx can, run it, and compare shapes with those that the builder declared."""
    onnx.checker.check_model(model, full_check=True)
    outputs = run_session(open_session(model.SerializeToString(), Mode.FLOAT), samples)
    for value in model.graph.output:
        declared = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        assert outputs[value.name].shape == declared
        assert np.all(np.isfinite(outputs[value.name]))
        assert np.std(outputs[value.name]) > 1e-4, value.name
    return outputs


def test_a_seed_and_an_index_are_always_the_same_case() -> None:
    assert digest(make_case(3, 5)) == digest(make_case(3, 5))
    assert len({digest(make_case(seed, index)) for seed in (1, 2) for index in range(20)}) == 40


def test_cases_are_the_same_on_every_platform() -> None:
    """Recorded values: they change if the generator changes, and a seed then stands for other graphs."""
    draw = Draw("key")
    assert [draw.between(0, 99) for _ in range(5)] == [86, 90, 93, 48, 39]
    assert draw.normal(3).tolist() == [-0.690721869468689, -0.8927980065345764, -2.0075201988220215]
    assert [digest(make_case(5, index)) for index in (2, 3)] == ["58fe56a83d4f", "c0c7e034f7cf"]


def test_every_kind_is_the_main_block_equally_often() -> None:
    count = len(BLOCKS)
    for start in (0, count):
        mains = [next(kind for kind in make_case(7, start + index).kinds if kind != "stem") for index in range(count)]
        assert sorted(mains) == sorted(BLOCKS)
    assert generator_digest(1) != generator_digest(2)


def test_no_tensor_is_empty_behind_a_pooled_head() -> None:
    b = GraphBuilder(Draw("one token"))
    y = BLOCKS["token_slices"].build(b, b.input(1, 1, 12))
    assert y.shape == (1, 1, 12)
    check(b.model([y]), {"input0": Draw("x").normal(1, 1, 12)})


@pytest.mark.parametrize("name", BLOCKS)
def test_every_kind_of_block_is_valid(name: str) -> None:
    """Several draws of each, on sizes that are no powers of two, with a batch of 1 and of 4."""
    block = BLOCKS[name]
    for number, batch in enumerate((1, 4, 1, 1)):
        b = GraphBuilder(Draw(f"{name} {number}"))
        shape = (batch, 6, 9, 13) if block.rank == IMAGE else (batch, 10, 12)
        y = block.build(b, b.input(*shape))
        check(b.model([y]), {"input0": Draw("x").normal(*shape, mean=0.5)})


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda function: function.__name__)
@pytest.mark.parametrize("shape", [(2, 5, 4, 3), (2, 4, 5)])
def test_every_activation_is_valid(activation, shape) -> None:
    b = GraphBuilder(Draw("activation"))
    y = activation(b, b.input(*shape))
    assert y.shape == shape
    check(b.model([y]), {"input0": Draw("x").normal(*shape)})


def test_whole_cases_are_valid_and_have_realistic_inputs() -> None:
    cases = [make_case(11, index) for index in range(60)]
    for case in cases:
        ((name, samples),) = case.samples.items()
        check(case.model, {name: samples[0]})
        assert samples.dtype == np.float32
    means = [float(np.mean(next(iter(case.samples.values())))) for case in cases]
    assert np.mean(np.abs(means) > 0.05) > 0.7
    batches = {next(iter(case.samples.values())).shape[1] for case in cases}
    assert batches == {1, 4}
    assert any(len(case.model.graph.output) > 1 for case in cases)


def test_normal_numbers_are_nearly_normal() -> None:
    values = Draw("numbers").normal(20000, std=2.0, mean=1.0)
    assert abs(values.mean() - 1) < 0.05
    assert abs(values.std() - 2) < 0.05
    assert np.abs(values - 1).max() < 7.1
    uniform = Draw("numbers").uniform(-1, 3, 20000)
    assert uniform.min() >= -1
    assert uniform.max() < 3
    assert abs(uniform.mean() - 1) < 0.05
