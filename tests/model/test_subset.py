"""A part of a model is a valid model, and computes what its nodes compute in the whole."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.model.session import Mode, open_session, run_session
from dovetail.model.subset import subset_of
from dovetail.sweep.case import make_case


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 200), st.data())
def test_any_part_computes_what_it_computes_in_the_whole(index: int, data: st.DataObject) -> None:
    case = make_case(2, index)
    (name, samples), *_ = case.samples.items()
    proto = onnx.ModelProto()
    proto.CopyFrom(case.model)
    proto.graph.output.extend(proto.graph.value_info)
    values = {name: samples[0], **run_session(open_session(proto.SerializeToString(), Mode.FLOAT), {name: samples[0]})}

    nodes = range(len(case.model.graph.node))
    chosen = data.draw(st.sets(st.sampled_from(nodes), min_size=1))
    part = subset_of(ir.from_proto(case.model), chosen)
    assert [node.name for node in part.graph] == [case.model.graph.node[index].name for index in sorted(chosen)]
    part_proto = ir.to_proto(part)
    onnx.checker.check_model(part_proto, full_check=True)
    outputs = run_session(open_session(part_proto.SerializeToString(), Mode.FLOAT), values)
    assert outputs
    for output, array in outputs.items():
        np.testing.assert_allclose(array, values[output], rtol=1e-3, atol=1e-4)
