"""Cases of rules: ONNX text whose leading comments say how to check it.

``# target: ort-cpu``, ``# max_rank: 5`` (overrides the target's maximum rank), ``# shape: x=1,4``, ``# calib: random``
(calibrate with seeded noise), ``# option: KEY=VALUE`` (an option of the target, one a line), ``# encodings: {...}``
(an encodings file beside the model), ``# compiled: rejected`` (what the target's compiler does with it, verified by the
backend tests of that target; ``rule_docs.COMPILED`` defines the values); other comments are for readers.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx

from dovetail import rule_docs as docs
from dovetail.catalog import all_rules
from dovetail.checking import check_file
from dovetail.config import parse_options, parse_shapes
from dovetail.encodings_run import check_with_encodings
from dovetail.finding import Finding
from dovetail.targets import open_target
from tests.changed import changed


def findings_in(text: str, folder: Path) -> tuple[Finding, ...]:
    """Return the findings in a case."""
    head = head_of(text)
    options = parse_options(tuple(re.findall(r"^# option: (.+)$", text, flags=re.MULTILINE)))
    if "encodings" in head:
        file = folder / "encodings.json"
        file.write_text(head["encodings"])
        values = {"target": head["target"], "option": options}
        return check_with_encodings(write(text, folder), values, encodings=file)
    target = open_target(head.get("target", "ort-cpu"), options)
    if "max_rank" in head:
        target = changed(target, max_rank=int(head["max_rank"]))
    shapes = parse_shapes((head["shape"],) if "shape" in head else ())
    return check_file(write(text, folder), target, shapes, head.get("calib"))


def head_of(text: str) -> dict[str, str]:
    """Return the values of the leading comments by key."""
    return dict(re.findall(r"^# (target|max_rank|shape|calib|encodings|compiled): (.+)$", text, flags=re.MULTILINE))


def cases_of(family: str) -> list[tuple[str, str, str, str]]:
    """Return every case for a target: its name, the rule's code, ``bad`` or ``good``, its text."""
    cases = [
        (name.removesuffix(".onnxtxt"), rule.code, kind, text)
        for rule in all_rules()
        for kind in ("bad", "good")
        for name, text in docs.case_texts(rule.code, kind).items()
        if head_of(text).get("target", "").startswith(family)
    ]
    assert cases, f"no rule has a case for {family}"
    return cases


def write(text: str, folder: Path) -> Path:
    """Write the model of an ONNX text to a file, with the node names that ``read`` would give."""
    path = folder / "model.onnx"
    model = onnx.parser.parse_model(text)
    _fold_long_constants(model.graph)
    for node in model.graph.node:
        node.name = node.name or f"{node.op_type}/{node.output[0]}"
    for tensor in model.graph.initializer:
        _pack(tensor)
    onnx.save(model, path)
    return path


def _fold_long_constants(graph: onnx.GraphProto) -> None:
    """Make an initializer of each ConstantOfShape, which stands for a constant that is too long to be written out."""
    shapes = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for node in [node for node in graph.node if node.op_type == "ConstantOfShape"]:
        value = onnx.numpy_helper.to_array(onnx.helper.get_node_attr_value(node, "value"))
        array = np.full(shapes[node.input[0]], value[0])
        graph.initializer.append(onnx.numpy_helper.from_array(array, node.output[0]))
        graph.node.remove(node)


def _pack(tensor: onnx.TensorProto) -> None:
    """Pack two 4-bit values into each byte: onnx 1.23's parser stores one in each, which no reader supports."""
    if tensor.data_type in (onnx.TensorProto.INT4, onnx.TensorProto.UINT4):
        values = list(tensor.int32_data)
        tensor.CopyFrom(onnx.helper.make_tensor(tensor.name, tensor.data_type, tensor.dims, values))


def codes_in(findings: tuple[Finding, ...]) -> set[str]:
    return {finding.code for finding in findings}
