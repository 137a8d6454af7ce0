"""Encodings files of the sample model, with entries left out or changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dovetail.encodings_run import check_with_encodings
from dovetail.finding import Finding

SAMPLES = Path(__file__).parents[2] / "encodings" / "samples"
MODEL = SAMPLES / "tiny.onnx"
FLOAT16 = [{"bitwidth": 16, "dtype": "float"}]


def edited(folder: Path, *, without: tuple[str, ...] = (), floats: tuple[str, ...] = ()) -> Path:
    """The W8A16 sample of version 0.6.1 without some entries, and with others as float16."""
    document: dict[str, Any] = json.loads((SAMPLES / "w8a16_0.6.1.json").read_bytes())
    for part in ("activation_encodings", "param_encodings"):
        entries = {name: entry for name, entry in document[part].items() if name not in without}
        document[part] = {name: FLOAT16 if name in floats else entry for name, entry in entries.items()}
    path = folder / "edited.json"
    path.write_text(json.dumps(document))
    return path


def findings(encodings: Path, target: str = "qairt:2.33/v75", **option: str) -> dict[str, dict[str, Finding]]:
    """The findings on the sample model with these encodings, by code and place."""
    by_code: dict[str, dict[str, Finding]] = {}
    for finding in check_with_encodings(MODEL, {"target": target, "option": option}, encodings=encodings):
        by_code.setdefault(finding.code, {})[str(finding.place)] = finding
    return by_code
