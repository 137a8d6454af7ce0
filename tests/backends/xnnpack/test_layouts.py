"""No layout between a layer and a Concat has other numbers behind it than in front: all load, run and are exact.

The sweep over many more is ``python -m bench.xnnpack layouts``.
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

# Nodes of a branch, # for its number; what they give is 1 x rows x rest; the amplitude of its class token.
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
)


def numbers(*shape: int, size: float, seed: int) -> str:
    drawn = size * np.random.default_rng(seed).standard_normal(int(np.prod(shape)))
    return ",".join(f"{one:.6f}" for one in drawn)


def branches() -> str:
    """One graph with every branch behind a linear layer of its own."""
    outputs, nodes, tokens = [], [], []
    for number, (text, rows, rest, amplitude) in enumerate(BRANCHES):
        shape = [int(size) for size in rest.split(",")]
        outputs.append(f"float[1,{rows},{rest}] y{number}")
        tokens.append(f"float[1,1,{rest}] c{number} = {{{numbers(*shape, size=amplitude, seed=number)}}}")
        nodes.append(f"h{number} = MatMul(x, w) {text.replace('#', str(number))}")
    return f"""g (float[1,6,8] x) => ({", ".join(outputs)})
        <float[8,8] w = {{{numbers(8, 8, size=1.0, seed=9)}}}, {", ".join(tokens)},
         int64[4] cut = {{1,8,2,3}}, int64[1] one = {{1}}, int64[1] four = {{4}}> {{ {" ".join(nodes)} }}"""


@pytest.fixture(scope="module")
def plan_and_program(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Lowered]:
    target, model = open_target("xnnpack"), graph(branches())
    # Outputs in integers too, or whole branches would be float up to the layer.
    plan = dataclasses.replace(planned(model, target, STATIC, data=noise(model), quantized_io=True), quantized_io=False)
    return plan, lowered(model, plan, target, tmp_path_factory.mktemp("layouts"))


def test_a_branch_has_one_storage_from_its_layer_to_its_output(plan_and_program: tuple[Plan, Lowered]) -> None:
    plan, _ = plan_and_program
    for number, (_, _, _, amplitude) in enumerate(BRANCHES):
        stored = {plan.tensors[name].storage for name in (f"h{number}", f"t{number}", f"y{number}")}
        assert len(stored) == 1
        (only,) = stored
        assert isinstance(only, QParams)
        reach = 255 * float(only.scale)
        assert reach > amplitude, "the range is the union of what the layer gives and of the class token"


def test_all_of_them_load_and_stand_in_the_file_as_planned(plan_and_program: tuple[Plan, Lowered]) -> None:
    _, program = plan_and_program
    assert [row for row in program.read_back.tensors if row.outcome is not Outcome.MATCHED] == []
    assert {kind for kind in program.kinds() if "fp32" in kind} == {"Convert fp32 -> qint8", "Convert qint8 -> fp32"}


def test_all_of_them_are_exact_to_the_bit(plan_and_program: tuple[Plan, Lowered]) -> None:
    _, program = plan_and_program
    for number in range(4):
        sample = {"x": noise(graph(branches()))["x"][number]}
        expected, found = program.simulate(sample), program.run(sample)
        for name, array in expected.items():
            np.testing.assert_array_equal(array, found[name], err_msg=name)
