"""Planning and emitting give the bytes recorded in identity.jsonl; identity_hashes.py says how to record them again."""

from __future__ import annotations

import pytest

from dovetail import zoo
from dovetail.versions import core_versions
from tests.identity_hashes import rows, stored


@pytest.mark.parametrize("model", zoo.names())
def test_emitted_files_have_the_recorded_hashes(model: str) -> None:
    recorded, versions = stored()
    expected = {row: sha256 for row, sha256 in recorded.items() if row.startswith(f"{model}|")}
    emitted = dict(rows(model))
    changed = [row for row in {**expected, **emitted} if expected.get(row) != emitted.get(row)]
    now = core_versions()
    packages = [f"{name} {versions.get(name)} -> {now[name]}" for name in now if now[name] != versions.get(name)]
    assert changed == [], f"packages that changed since the recording: {', '.join(packages) or 'none'}"


def test_every_recorded_row_belongs_to_a_shipped_model() -> None:
    assert {row.partition("|")[0] for row in stored()[0]} == set(zoo.names())
