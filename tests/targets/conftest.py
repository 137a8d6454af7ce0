"""Fixtures for tests of the compile cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dovetail.targets import tool_cache
from dovetail.targets.tool_call import ToolSession, tool_session
from tests.targets.tool_functions import CALLS


@pytest.fixture
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cache of the test's own, and a file that counts the calls."""
    monkeypatch.setenv(CALLS, str(tmp_path / "calls"))
    monkeypatch.setenv(tool_cache.FOLDER_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.delenv(tool_cache.LIMIT_VARIABLE, raising=False)


@pytest.fixture
def session() -> Iterator[ToolSession]:
    with tool_session(use_cache=True) as session:
        yield session
