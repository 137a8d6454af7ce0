"""Cases of rules: ONNX text whose leading comments say how to check it.

``# target: ort-cpu``, ``# max_rank: 5`` (the target with another highest rank), ``# shape: x=1,4``,
``# calib: random`` (statistics on seeded noise); other comments are for people.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import onnx

from dovetail.config import parse_shapes
from dovetail.finding import Finding
from dovetail.rules.check import check_file
from dovetail.targets import open_target


def findings_in(text: str, folder: Path) -> tuple[Finding, ...]:
    """What the rules find in a case."""
    head = dict(re.findall(r"^# (target|max_rank|shape|calib): (.+)$", text, flags=re.MULTILINE))
    target = open_target(head.get("target", "ort-cpu"))
    if "max_rank" in head:
        target = replace(target, max_rank=int(head["max_rank"]))
    shapes = parse_shapes((head["shape"],) if "shape" in head else ())
    return check_file(write(text, folder), target, shapes, head.get("calib"))


def write(text: str, folder: Path) -> Path:
    """The model of an ONNX text as a file."""
    path = folder / "model.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    return path


def codes_in(findings: tuple[Finding, ...]) -> set[str]:
    return {finding.code for finding in findings}
