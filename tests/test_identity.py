"""Planning and emitting give the bytes that are recorded in identity.jsonl; how to record anew: identity_hashes.py."""

from __future__ import annotations

import pytest

from dovetail import zoo
from dovetail.versions import core_versions
from tests.identity_hashes import rows, stored


@pytest.mark.parametrize("model", zoo.names())
def test_what_is_emitted_is_as_recorded(model: str) -> None:
    known, versions = stored()
    wanted = {row: sha256 for row, sha256 in known.items() if row.startswith(f"{model}|")}
    found = dict(rows(model))
    changed = [row for row in {**wanted, **found} if wanted.get(row) != found.get(row)]
    now = core_versions()
    packages = [f"{name} {versions.get(name)} -> {now[name]}" for name in now if now[name] != versions.get(name)]
    assert changed == [], f"other packages than when it was recorded: {', '.join(packages) or 'none'}"


def test_every_row_is_of_a_shipped_model() -> None:
    assert {row.partition("|")[0] for row in stored()[0]} == set(zoo.names())
