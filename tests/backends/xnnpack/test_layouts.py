"""Reshapes and transposes between a layer and a Concat keep the same qparams: all such graphs load, run and are exact.

``python -m bench.xnnpack layouts`` tries many more.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from dovetail.backend import Outcome
from dovetail.encoding import QParams
from dovetail.storage import Plan
from dovetail.targets import open_target
from dovetail.targets.xnnpack.table import STATIC
from tests.backends.xnnpack.lowering import Lowered, lowered
from tests.planning import graph, noise, planned

pytest.importorskip("executorch", reason="needs the package executorch")

# The nodes of a branch (# stands for its number), the shape of its output (1 x rows x rest), and the amplitude of its
# class token.
BRANCHES = (
    ("t# = Transpose<perm=[0,2,1]>(h#) y# = Concat<axis=1>(c#, t#)", 9, "6", 0.001),
    ("u# = Unsqueeze(h#, one) t# = Transpose<perm=[0,3,1,2]>(u#) y# = Concat<axis=1>(c#, t#)", 9, "1,6", 100.0),
    ("u# = Slice(h#, one, four, one) t# = Transpose<perm=[0,2,1]>(u#) y# = Concat<axis=1>(t#, c#, t#)", 17, "3", 4.0),
    (
        "u# = Transpose<perm=[0,2,1]>(h#) v# = Reshape(u#, cut) t# = Transpose<perm=[0,3,2,1]>(v#) "
        "z# = Concat<axis=1>(c#, t#) y# = Concat<axis=1>(z#, c#, t#, c#, t#, t#)",
        15,
        "2,8",
        0.02,
    ),
    # A reshape that joins transposed axes, as it splits an image into windows.
    (
        "u# = Reshape(h#, windows) v# = Transpose<perm=[0,1,3,2,4,5]>(u#) t# = Reshape(v#, join) "
        "y# = Concat<axis=1>(c#, t#)",
        5,
        "12",
        1.0,
    ),
)


def values(*shape: int, size: float, seed: int) -> str:
    drawn = size * np.random.default_rng(seed).standard_normal(int(np.prod(shape)))
    return ",".join(f"{value:.6f}" for value in drawn)


def branches() -> str:
    """One graph in which every branch has its own linear layer."""
    outputs, nodes, tokens = [], [], []
    for number, (text, rows, rest, amplitude) in enumerate(BRANCHES):
        shape = [int(size) for size in rest.split(",")]
        outputs.append(f"float[1,{rows},{rest}] y{number}")
        tokens.append(f"float[1,1,{rest}] c{number} = {{{values(*shape, size=amplitude, seed=number)}}}")
        nodes.append(f"h{number} = MatMul(x, w) {text.replace('#', str(number))}")
    return f"""g (float[1,6,8] x) => ({", ".join(outputs)})
        <float[8,8] w = {{{values(8, 8, size=1.0, seed=9)}}}, {", ".join(tokens)},
         int64[4] cut = {{1,8,2,3}}, int64[6] windows = {{1,2,3,2,4,1}}, int64[3] join = {{1,4,12}},
         int64[1] one = {{1}}, int64[1] four = {{4}}> {{ {" ".join(nodes)} }}"""


@pytest.fixture(scope="module")
def plan_and_program(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Lowered]:
    target, model = open_target("xnnpack"), graph(branches())
    # With float outputs, whole branches would be float up to the layer.
    plan = dataclasses.replace(planned(model, target, STATIC, data=noise(model), quantized_io=True), quantized_io=False)
    return plan, lowered(model, plan, target, tmp_path_factory.mktemp("layouts"))


def test_a_branch_has_one_storage_from_its_layer_to_its_output(plan_and_program: tuple[Plan, Lowered]) -> None:
    plan, _ = plan_and_program
    for number, (_, _, _, amplitude) in enumerate(BRANCHES):
        storages = {plan.tensors[name].storage for name in (f"h{number}", f"t{number}", f"y{number}")}
        assert len(storages) == 1
        (storage,) = storages
        assert isinstance(storage, QParams)
        width = 255 * float(storage.scale)
        assert width > amplitude, "the range is the union of the ranges of the layer's output and the class token"


def test_all_branches_load_and_are_in_the_file_as_planned(plan_and_program: tuple[Plan, Lowered]) -> None:
    _, program = plan_and_program
    assert [row for row in program.read_back.tensors if row.outcome is not Outcome.MATCHED] == []
    assert {kind for kind in program.kinds() if "fp32" in kind} == {"Convert fp32 -> qint8", "Convert qint8 -> fp32"}


def test_all_branches_are_bit_exact(plan_and_program: tuple[Plan, Lowered]) -> None:
    _, program = plan_and_program
    for number in range(4):
        sample = {"x": noise(graph(branches()))["x"][number]}
        simulated, outputs = program.simulate(sample), program.run(sample)
        for name, array in simulated.items():
            np.testing.assert_array_equal(array, outputs[name], err_msg=name)
