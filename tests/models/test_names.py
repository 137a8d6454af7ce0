"""Original names are kept or mapped through every stage, and any name from the user's file can be pinned."""

from __future__ import annotations

import glob
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

import dovetail
from dovetail import zoo
from dovetail.encoding import DType
from dovetail.errors import InputError
from dovetail.model.session import Mode, open_session
from dovetail.op_support import FP32
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.plan.constraints import build_problem
from dovetail.plan.pins import resolve_keeps
from dovetail.plan.request import Keep
from dovetail.plan.rows import PlanRow
from dovetail.report.result import Result
from dovetail.targets import open_target
from tests.equality import Array, assert_traceable, names_in, sqnr_db
from tests.networks import rendered_lines
from tests.networks.wheels import ocr_model

EXACT_FLOOR_DB = 80.0
CALIBRATION_SAMPLES = 4


@dataclass(frozen=True)
class Pin:
    """A name from the user's file to keep, the tensor that must get which dtype from it, and others that may change."""

    name: str
    precision: str
    follows: str
    dtype: DType
    near: tuple[str, ...] = ()


# The pins of one model are far apart, and are fitted together.
PINS = {
    "vit_digits": (
        # A node that is now inside a Gelu.
        Pin("blocks.0.mlp.act/Erf", "fp32", "blocks.0.mlp.act/Mul_2_out", DType.F32, ("blocks.0.mlp.fc1/Add_out",)),
        # A node that a Split now replaces; Q, K and V are one group after it.
        Pin(
            "blocks.1.attn/Gather_2",
            "w8a16",
            "blocks.1.attn/Transpose_2_out",
            DType.U16,
            ("blocks.1.*", "*attn/Mul_const1"),
        ),
        # A node that is now part of a Gemm.
        Pin(
            "blocks.2.mlp.fc1/MatMul",
            "fp32",
            "blocks.2.mlp.fc1.weight",
            DType.F32,
            ("blocks.2.mlp.*", "blocks.2.norm2*"),
        ),
        # A tensor that is now the output of a Gemm.
        Pin(
            "blocks.3.attn.proj/Add_out",
            "w8a16",
            "blocks.3.attn.proj/Add_out",
            DType.U16,
            ("blocks.3.attn/Reshape_2_out", "blocks.2/Add_2_out"),  # the residual that it is added to
        ),
    ),
    "recognizer": (
        # A node that is now inside a Gelu.
        Pin("Erf.0", "fp32", "p2o.pd_op.gelu.0.0", DType.F32, ("Add.17", "conv2d_76.w_0", "p2o.pd_op.conv2d.8.0")),
        # A node that is now inside a LayerNormalization.
        Pin("Div.26", "fp32", "Add.161", DType.F32, ("p2o.pd_op.transpose.0.0",)),
        # A tensor after an Identity that was removed.
        Pin("p2o.pd_op.layer_norm.2.0", "w8a16", "Add.183", DType.U16, ("Add.179",)),
        # A node that is now folded into its convolution, which reads float; the swish after it changes too.
        Pin(
            "BatchNormalization.0",
            "fp32",
            "conv2d_67.w_0",
            DType.F32,
            (
                *("p2o.pd_op.pool2d.1.0", "p2o.pd_op.conv2d.41.0", "p2o.pd_op.batch_norm_.0.0"),
                *("Sigmoid.1", "p2o.pd_op.swish.0.0"),
            ),
        ),
    ),
}


@dataclass(frozen=True)
class Case:
    """A model file, one run without and one with the pins, and the data of both."""

    path: Path
    pins: tuple[Pin, ...]
    data: dict[str, Array]
    folder: Path
    plain: Result
    pinned: Result

    @property
    def graph(self) -> onnx.GraphProto:
        return onnx.load(self.path).graph

    @property
    def tensors(self) -> set[str]:
        return names_in(ir.load(self.path))

    def rewritten(self) -> ir.Model:
        """The float graph that was planned, from the run directory."""
        model = ir.load(self.folder / "plain/stages/rewritten.onnx")
        infer_shapes(model)
        return model


@pytest.fixture(scope="module", params=PINS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    name: str = request.param
    shape: dict[str, tuple[int, ...]] = {}
    if name == "recognizer":
        path, shape = ocr_model(rendered_lines.MODEL), {"x": rendered_lines.SHAPE}
        data = {"x": rendered_lines.clean(rendered_lines.texts(CALIBRATION_SAMPLES, seed=1), seed=2)}
    else:
        entry = zoo.load(name)
        path = entry.model_path
        data = {key: array[:CALIBRATION_SAMPLES] for key, array in entry.calib().items()}
    folder = tmp_path_factory.mktemp(name)
    keep = tuple(f"{glob.escape(pin.name)}={pin.precision}" for pin in PINS[name])
    plain, pinned = (
        dovetail.fit(path, target="ort-cpu", calibration=data, shape=shape, keep=patterns, output=folder / run)
        for run, patterns in (("plain", ()), ("pinned", keep))
    )
    return Case(path, PINS[name], data, folder, plain, pinned)


def test_every_row_of_the_plan_has_a_name_from_the_users_file(case: Case) -> None:
    names = case.tensors
    assert [row for row in case.plain.plan if row.original_name not in names] == []
    assert [tensor for tensor in case.plain.metrics.tensors if tensor.original_name not in names] == []
    exact = {row.original_name for row in case.plain.plan if row.original_exact}
    assert {value.name for value in (*case.graph.input, *case.graph.output)} <= exact


def test_every_site_of_a_pass_is_in_the_users_file(case: Case) -> None:
    names = case.tensors | {node.name for node in case.graph.node}
    names.add(case.graph.name)  # the site of infer_shapes
    sites = [(record.name, site) for record in case.plain.passes for site in (*record.changed, *record.declined)]
    assert sites
    assert [(name, site) for name, site in sites if site.where not in names] == []


def test_every_emitted_tensor_has_an_origin(case: Case) -> None:
    assert_traceable(case.rewritten(), case.tensors)
    assert_traceable(ir.load(case.folder / "plain/model.onnx"), case.tensors)


def test_tensor_with_an_exact_origin_equals_the_original(case: Case) -> None:
    rows = [row for row in case.plain.plan if row.original_exact and row.edge is None]
    assert len(rows) > len(case.plain.plan) // 4
    feed = {name: array[:1] for name, array in case.data.items()}
    before = _tensors_of(onnx.load(case.path), {row.original_name for row in rows}, feed)
    after = _tensors_of(ir.to_proto(case.rewritten()), {row.tensor for row in rows}, feed)
    for row in rows:
        expected, actual = before[row.original_name], after[row.tensor]
        assert expected.shape == actual.shape, row
        assert sqnr_db(expected, actual) >= EXACT_FLOOR_DB, row


def _tensors_of(model: onnx.ModelProto, names: set[str], feed: dict[str, Array]) -> dict[str, Array]:
    """The named tensors of a model, anywhere in the graph."""
    inputs = {value.name for value in model.graph.input}
    outputs = {value.name for value in model.graph.output}
    for name in sorted(names - inputs - outputs):
        model.graph.output.append(onnx.helper.make_empty_tensor_value_info(name))
    session = open_session(model.SerializeToString(), Mode.FLOAT)
    computed = sorted(names - inputs)
    return {**feed, **dict(zip(computed, session.run(computed, feed), strict=True))}


def _changed(case: Case) -> list[PlanRow]:
    """The rows that are new, or have another dtype, with the pins."""
    plain = {(row.tensor, row.edge): row.dtype for row in case.plain.plan}
    return [row for row in case.pinned.plan if plain.get((row.tensor, row.edge)) is not row.dtype]


def test_pinned_name_changes_the_tensor_that_it_became(case: Case) -> None:
    changed = _changed(case)
    for pin in case.pins:
        assert pin.dtype in {row.dtype for row in changed if row.original_name == pin.follows}, pin


def test_pinned_name_changes_nothing_far_away(case: Case) -> None:
    near = [pattern for pin in case.pins for pattern in (pin.follows, *pin.near)]
    changed = {row.original_name for row in _changed(case)}
    assert [name for name in changed if not any(fnmatchcase(name, pattern) for pattern in near)] == []


def test_every_name_that_depends_on_the_inputs_can_be_pinned(case: Case) -> None:
    problem = build_problem(case.rewritten(), open_target("ort-cpu").table)
    refused = []
    for name in _data_dependent_names(case.graph):
        try:
            resolve_keeps(problem, [Keep(glob.escape(name), FP32)])
        except InputError:
            refused.append(name)
    assert refused == []


def _data_dependent_names(graph: onnx.GraphProto) -> list[str]:
    """Every node and tensor that depends on the values of the inputs, not only on their shapes."""
    reached = {value.name for value in graph.input}
    names = sorted(reached)
    for node in graph.node:
        if node.op_type != "Shape" and reached & set(node.input):
            reached |= set(node.output)
            names += [node.name, *node.output]
    return names
