"""Figures that were measured before: what is not exactly what was written is measured again."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from dovetail.trials.cached_measurements import CachedMeasurements

KEY = ("simulated", "abc", 16)


def kept(folder: Path) -> Path:
    """The one file that is written for the key."""
    CachedMeasurements(folder).of(KEY, lambda: {"mean": 1.5, "pooled": math.inf})
    (file,) = folder.glob("*.json")
    return file


def never() -> dict[str, float]:
    raise AssertionError("it is known")


def test_what_was_measured_is_not_measured_again(tmp_path: Path) -> None:
    kept(tmp_path)
    assert CachedMeasurements(tmp_path).of(KEY, never, ("pooled", "mean")) == {"mean": 1.5, "pooled": math.inf}
    assert CachedMeasurements(tmp_path).of((*KEY[:2], 17), lambda: {"mean": 2.0}) == {"mean": 2.0}
    assert CachedMeasurements().of(KEY, lambda: {"mean": 3.0}) == {"mean": 3.0}


def malformed() -> list[object]:
    key = [str(part) for part in KEY]
    figures: list[object] = [{}, [], None, 1, {"mean": "1.5", "pooled": 1}, {"mean": None, "pooled": 1}, {"mean": True}]
    whole = [{"key": key, "figures": row} for row in (*figures, {"mean": 1.5}, {"mean": 1, "pooled": 1, "more": 1})]
    other = {"key": ["simulated", "abd", "16"], "figures": {"mean": 1.5, "pooled": 1}}
    return [{}, [], 1, "text", {"mean": 1.5, "pooled": 1}, other, *whole]


@pytest.mark.parametrize("content", [*map(json.dumps, malformed()), "", "{", "\udcff"])
def test_a_malformed_file_is_replaced(content: str, tmp_path: Path) -> None:
    file = kept(tmp_path)
    whole = file.read_bytes()
    file.write_bytes(content.encode(errors="surrogateescape"))
    figures = {"mean": 1.5, "pooled": math.inf}
    assert CachedMeasurements(tmp_path).of(KEY, lambda: dict(figures), tuple(figures)) == figures
    assert file.read_bytes() == whole
