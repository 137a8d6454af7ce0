"""Locating the operator at which target and simulation start to disagree, on any target."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from dovetail.backend import Artifact, CompileResult, Sample
from dovetail.encoding import Array
from dovetail.model.session import Mode
from dovetail.model.write import write
from dovetail.op_support import FP32, W8A8
from dovetail.target import Target
from dovetail.trials.locate import NOWHERE, FaultLocation, locate
from dovetail.verify.quality import quality_of
from dovetail.verify.run import SessionRun
from dovetail.verify.verify import FailingSample
from tests.changed import changed
from tests.planning import graph
from tests.toy_target import TOY, compile_model
from tests.trials.benches import bench_of, samples_of

# One branch is wrong early; the other, which is correct, follows it in the graph and is longer.
BRANCHES = """
g (float[1,4,8] x) => (float[1,4,8] y)
{
    a1 = Relu(x)  a2 = Mul(a1, x)  a3 = Relu(a2)
    b1 = Gelu(x)  b2 = Mul(b1, x)  b3 = Gelu(b2)  b4 = Mul(b3, x)  b5 = Relu(b4)
    s = Add(a3, b5)
    y = Gelu(s)
}
"""
Wrong = Callable[[Array], Array]


def flipped(value: Array) -> Array:
    return np.flip(value, axis=-1)


def one_wrong_channel(value: Array) -> Array:
    return np.where(np.arange(value.shape[-1]) == 2, -value, value).astype(value.dtype)


def toy(op: str, wrong: Wrong) -> Target:
    """The toy target with a wrong kernel for the operator whose output has this name."""

    def run(compiled: CompileResult, samples: Iterable[Sample]) -> Iterator[Sample]:
        path = compiled.artifacts[0].path
        for sample in samples:
            model = ir.load(path)
            node = next((n for n in model.graph if n.outputs[0].name == op), None)
            if node is None:
                yield from SessionRun(path, Mode.EXACT, path.parent)([sample])
                continue
            front = model.clone()
            value = next(n for n in front.graph if n.outputs[0].name == op).outputs[0]
            front.graph.outputs.clear()
            front.graph.outputs.append(value)
            (correct,) = SessionRun(write(front, path.with_name("front.onnx"))[0], Mode.EXACT, path.parent)([sample])
            output = node.outputs[0]
            wrong_input = ir.Value(name=f"{op}/wrong", type=output.type, shape=output.shape)
            for consumer, index in list(output.uses()):
                consumer.replace_input_with(index, wrong_input)
            model.graph.inputs.append(wrong_input)
            (outputs,) = SessionRun(write(model, path.with_name("back.onnx"))[0], Mode.EXACT, path.parent)(
                [{**sample, f"{op}/wrong": wrong(correct[op])}]
            )
            yield {name: wrong(value) if name == op else value for name, value in outputs.items()}

    return changed(TOY, run=run)


def located(target: Target, folder: Path, level_db: float = 30.0, **limits: float) -> FaultLocation | str:
    model = graph(BRANCHES)
    bench, variant = bench_of(model, target, W8A8, folder)
    build = bench.build(variant)
    return locate(bench, variant, build, FailingSample(samples_of(model)[0], level_db), **limits)


@pytest.mark.parametrize("op", ["a1", "a3", "b2", "b5", "s", "y"])
@pytest.mark.parametrize("wrong", [flipped, one_wrong_channel])
def test_the_wrong_operator_is_found_on_either_branch(op: str, wrong: Wrong, tmp_path: Path) -> None:
    location = located(toy(op, wrong), tmp_path)
    assert isinstance(location, FaultLocation), location
    assert location.place.tensor == op


def test_no_operator_is_located_if_every_cut_is_correct(tmp_path: Path) -> None:
    assert located(TOY, tmp_path) == NOWHERE


def rejects_cuts(artifacts: tuple[Artifact, ...], folder: Path) -> CompileResult:
    """A compiler that accepts only the whole graph."""
    if folder.name.startswith("cut-"):
        return CompileResult(artifacts, error="no")
    return compile_model(artifacts, folder)


def test_no_operator_is_located_if_the_compiler_rejects_every_cut(tmp_path: Path) -> None:
    assert located(changed(toy("b2", flipped), compile=rejects_cuts), tmp_path) == NOWHERE
    assert not list(tmp_path.rglob("cut-*"))


def test_the_search_over_many_rejected_cuts_is_not_exponential(tmp_path: Path) -> None:
    """Each block adds two branches: a search over every path through 24 of them would never end."""

    blocks = "".join(f"a{i} = Relu(x{i})  b{i} = Gelu(x{i})  x{i + 1} = Add(a{i}, b{i})\n" for i in range(24))
    model = graph(f"g (float[1,4,8] x0) => (float[1,4,8] y) {{ {blocks} y = Relu(x24) }}")
    bench, variant = bench_of(model, changed(TOY, compile=rejects_cuts), W8A8, tmp_path)
    started = time.process_time()
    location = locate(bench, variant, bench.build(variant), FailingSample(samples_of(model)[0], 30.0))
    assert location == NOWHERE
    assert time.process_time() - started < 20


def test_an_operator_of_a_float_graph_is_located_too(tmp_path: Path) -> None:
    model = graph(BRANCHES)
    target = changed(toy("a2", flipped), precisions={"fp32": FP32})
    bench, variant = bench_of(model, target, FP32, tmp_path)
    location = locate(bench, variant, bench.build(variant), FailingSample(samples_of(model)[0], 30.0))
    assert isinstance(location, FaultLocation)
    assert location.place.tensor == "a2"
    assert str(location).startswith("the first wrong tensor is 'a2', computed by Mul")


def test_the_search_ends_at_its_time_limit(tmp_path: Path) -> None:
    def slow(artifacts: tuple[Artifact, ...], folder: Path) -> CompileResult:
        time.sleep(0.1)
        return compile_model(artifacts, folder)

    location = located(changed(toy("a1", flipped), compile=slow), tmp_path, time_limit_s=0.05)
    assert location == "the operator was not found within 0.05 s"


def test_a_single_wrong_channel_counts_although_the_tensor_as_a_whole_agrees() -> None:
    random = np.random.default_rng(0)
    exact = random.standard_normal((1, 512, 16)).astype(np.float32)
    simulated = exact + 1e-3 * random.standard_normal(exact.shape).astype(np.float32)
    on_target = simulated.copy()
    on_target[:, 7] = -on_target[:, 7]
    agreement = quality_of(exact, simulated, on_target, level_db=20.0)
    assert agreement.target_db > 20
    assert agreement.is_off
    assert not quality_of(exact, simulated, simulated, level_db=20.0).is_off


def test_nan_is_wrong_and_counts_as_the_lowest_figure() -> None:
    exact = np.ones((1, 4), np.float32)
    on_target = np.array([[1, np.nan, 1, 1]], np.float32)
    assert quality_of(exact, exact, on_target, level_db=20.0).is_off
    assert quality_of(exact, exact, on_target, level_db=20.0).target_db == -200.0
