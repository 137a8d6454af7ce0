"""Every row of every op table says how it is known: the package version and the method."""

from __future__ import annotations

import pytest

from dovetail.targets import FAMILIES, open_target


@pytest.mark.parametrize("name", FAMILIES)
def test_every_row_says_how_it_is_known(name: str) -> None:
    ops = open_target(name).table.ops
    assert ops
    assert [op for op, support in ops.items() if not support.known_from] == []
