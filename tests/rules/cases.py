"""Cases of rules: ONNX text whose leading comments say how to check it.

``# target: ort-cpu``, ``# max_rank: 5`` (the target with another highest rank), ``# shape: x=1,4``,
``# calib: random`` (statistics on seeded noise), ``# compiled: refused`` (what the target's compiler makes of it,
proved by the tests of that target); other comments are for people.
"""

from __future__ import annotations

import re
from pathlib import Path

import onnx

from dovetail import rule_docs as docs
from dovetail.catalog import all_rules
from dovetail.checking import check_file
from dovetail.config import parse_shapes
from dovetail.finding import Finding
from dovetail.targets import open_target
from tests.changed import changed


def findings_in(text: str, folder: Path) -> tuple[Finding, ...]:
    """What the rules find in a case."""
    head = head_of(text)
    target = open_target(head.get("target", "ort-cpu"))
    if "max_rank" in head:
        target = changed(target, max_rank=int(head["max_rank"]))
    shapes = parse_shapes((head["shape"],) if "shape" in head else ())
    return check_file(write(text, folder), target, shapes, head.get("calib"))


def head_of(text: str) -> dict[str, str]:
    """What the leading comments say, by key."""
    return dict(re.findall(r"^# (target|max_rank|shape|calib|compiled): (.+)$", text, flags=re.MULTILINE))


def cases_of(family: str) -> list[tuple[str, str, str, str]]:
    """Every case of every rule for a target: its name, the rule's code, ``bad`` or ``good``, its text."""
    found = [
        (name.removesuffix(".onnxtxt"), rule.code, kind, text)
        for rule in all_rules()
        for kind in ("bad", "good")
        for name, text in docs.case_texts(rule.code, kind).items()
        if head_of(text).get("target", "").startswith(family)
    ]
    assert found, f"no rule has a case for {family}"
    return found


def write(text: str, folder: Path) -> Path:
    """The model of an ONNX text as a file; nodes are named as reading the file names them."""
    path = folder / "model.onnx"
    model = onnx.parser.parse_model(text)
    for node in model.graph.node:
        node.name = node.name or f"{node.op_type}/{node.output[0]}"
    for tensor in model.graph.initializer:
        _pack(tensor)
    onnx.save(model, path)
    return path


def _pack(tensor: onnx.TensorProto) -> None:
    """Put two 4-bit numbers into each byte: onnx 1.23's parser leaves one in each, which nothing reads."""
    if tensor.data_type in (onnx.TensorProto.INT4, onnx.TensorProto.UINT4):
        numbers = list(tensor.int32_data)
        tensor.CopyFrom(onnx.helper.make_tensor(tensor.name, tensor.data_type, tensor.dims, numbers))


def codes_in(findings: tuple[Finding, ...]) -> set[str]:
    return {finding.code for finding in findings}
