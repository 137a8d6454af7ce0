"""Every entry of an op table names its source: the backend version and how the fact was found out."""

from __future__ import annotations

import pytest

from dovetail.targets import FAMILIES, open_target


@pytest.mark.parametrize("name", FAMILIES)
def test_every_row_names_its_source(name: str) -> None:
    ops = open_target(name).table.ops
    assert ops
    assert [op for op, support in ops.items() if not support.known_from] == []
