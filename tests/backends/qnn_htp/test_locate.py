"""A silent miscompilation by the real compiler is detected and located to the first wrong tensor."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from dovetail.backend import Artifact, CompileResult
from dovetail.calibrate.data import Data
from dovetail.config import options_from
from dovetail.edge import Edge
from dovetail.encoding import QParams
from dovetail.finding import Status, Thresholds, Verdict
from dovetail.job import prepare
from dovetail.model.edit import constant_of
from dovetail.numerics.ranges import weight_params
from dovetail.op_support import A16, F16, W8A16, OpSupport, signature
from dovetail.pipeline import fit
from dovetail.storage import Plan
from dovetail.target import Target
from dovetail.targets import open_target
from dovetail.trials.locate import FaultLocation, locate
from dovetail.verify.verify import BuildInputs, verify
from tests.changed import changed, with_op
from tests.planning import graph, noise, planned
from tests.trials.benches import bench_of

pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")

LAYERS = """
g (float[1,8,16] x) => (float[1,8,16] y)
{
    a = MatMul(x, first)
    b = Relu(a)
    c = MatMul(b, second)
    d = Relu(c)
    e = MatMul(d, third)
    y = Relu(e)
}
"""


def network() -> ir.Model:
    rng = np.random.default_rng(0)
    # Channels of very different magnitude: with scales on the wrong axis the outputs cannot be correct.
    weights = {name: rng.standard_normal((16, 16)) * np.logspace(-1.5, 0, 16) for name in ("first", "second", "third")}
    header = ", ".join(
        f"float[16,16] {name} = {{{','.join(f'{v:.6f}' for v in array.reshape(-1))}}}"
        for name, array in weights.items()
    )
    return graph(LAYERS.replace("(float[1,8,16] y)\n", f"(float[1,8,16] y)\n<{header}>\n"))


def on_wrong_axis(plan: Plan, model: ir.Model, tensor: str) -> Plan:
    """The plan with the weight scales of one MatMul on axis 0, which the compiler accepts and computes wrongly."""
    node = next(n for n in model.graph if n.outputs[0].name == tensor)
    edge = Edge(node.name or "", 1)
    choice, array = plan.edges[edge], constant_of(node.inputs[1])
    assert isinstance(choice.storage, QParams)
    assert array is not None
    wrong = replace(choice, storage=weight_params(array, choice.storage.encoding, 0))
    return replace(plan, edges={**plan.edges, edge: wrong})


def located(model: ir.Model, plan: Plan, target: Target, folder: Path) -> tuple[Verdict, FaultLocation | str]:
    """The verdict ``numerics`` of a plan, and the location of the first wrong tensor."""
    original = folder / "original.onnx"
    ir.save(model, original)
    bench, variant = bench_of(model, target, W8A16, folder / "trials")
    variant = replace(variant, plan=plan)
    build = bench.build(variant)
    assert build.compiled.error == ""
    arrays = noise(model)["x"]
    data = Data("noise", lambda: ({"x": array} for array in arrays), len(arrays), random=True)
    inputs = BuildInputs(original, model, plan, build.compiled, target.backend.probe())
    verification = verify(inputs, target.backend, data, None, Thresholds())
    location = "" if verification.failing is None else locate(bench, variant, build, verification.failing)
    return verification.verdicts["numerics"], location


def test_wrong_outputs_are_located_to_the_first_wrong_tensor(tmp_path: Path) -> None:
    htp, model = open_target("qnn-htp:sm8550"), network()
    plan = planned(model, htp, W8A16, data=noise(model))
    good, _ = located(model, plan, htp, tmp_path)
    assert good.status is Status.PASS, good.reason
    bad, location = located(model, on_wrong_axis(plan, model, "c"), htp, tmp_path)
    assert bad.status is Status.FAIL
    assert "target and simulation disagree" in bad.reason
    assert "the first wrong tensor is 'c', computed by MatMul" in str(location)


def test_the_location_is_found_even_if_other_subgraphs_are_rejected(tmp_path: Path) -> None:
    htp, model = open_target("qnn-htp:sm8550"), network()
    plan = planned(model, htp, W8A16, data=noise(model))

    def picky(artifacts: tuple[Artifact, ...], folder: Path) -> CompileResult:
        """The compiler, except that it rejects every graph that ends before the wrong tensor."""
        ends = {value.name for value in ir.load(artifacts[0].path).graph.outputs}
        before = {f"{value.name}__dq" for node in model.graph for value in node.outputs} - {"c__dq", "y__dq"}
        return CompileResult(error="not this one") if ends & before else htp.backend.compile(artifacts, folder)

    _, location = located(model, on_wrong_axis(plan, model, "c"), changed(htp, compile=picky), tmp_path)
    assert "the first wrong tensor is 'c'" in str(location)


def test_an_operator_that_is_computed_wrongly_is_kept_in_float16(tmp_path: Path) -> None:
    """A 16-bit Log is wrong for some scales: the op table does not offer it, so this test adds it."""
    htp = open_target("qnn-htp:sm8550")
    wrong = with_op(htp, "Log", OpSupport((signature(A16, out=A16), signature(F16, out=F16))))
    path = tmp_path / "model.onnx"
    ir.save(graph("g (float[1,8,16] x) => (float[1,8,16] y) { a = Sigmoid(x)  l = Log(a)  y = Neg(l) }"), path)
    options = options_from({"target": "qnn-htp:sm8550", "precision": "w8a16"})
    data = {"x": np.random.default_rng(0).standard_normal((4, 8, 16)).astype(np.float32)}
    job = replace(prepare(path, options, calibration=data), target=wrong)
    result = fit(job, tmp_path / "run")
    assert result.verdicts["numerics"].status is Status.PASS, result.verdicts["numerics"].reason
    (decision,) = [decision for decision in result.decisions if decision.knob == "island"]
    assert decision.place.op_type == "Log"
    assert decision.taken == "fp16"
    assert "the first wrong tensor is 'l'" in decision.reason
    dtypes = {row.tensor: row.dtype for row in result.plan if row.edge is None}
    assert (dtypes["a"], dtypes["l"]) == ("uint16", "float16")
