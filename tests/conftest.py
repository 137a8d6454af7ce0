"""What holds for every test: none is skipped under CI=true, and whole models are run without counting lines.

With CI=true every backend is installed, so a skipped test, or a file skipped while it is collected, is a failure.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dovetail.targets.compile_cache import FOLDER_VARIABLE

_HERE = Path(__file__).parent
# Whole networks, exported and fitted. Smaller tests run the same lines, and counting takes a third of the time here.
WITHOUT_COVERAGE = (
    "backends/qnn_htp/test_exporters.py",
    "backends/qnn_htp/test_naive.py",
    "backends/qnn_htp/test_operands.py",
    "backends/qnn_htp/test_repair.py",
    "backends/qnn_htp/test_tail.py",
    "backends/qnn_htp/zoo",
    "backends/tensorrt/test_models.py",
    "backends/tensorrt/test_repair.py",
    "backends/xnnpack/test_lowering.py",
    "backends/xnnpack/test_models.py",
    "backends/xnnpack/test_rules.py",
    "bench",
    "exporters",
    "models",
    "test_examples.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(item.path.is_relative_to(_HERE / place) for place in WITHOUT_COVERAGE):
            item.add_marker("no_cover")


@pytest.fixture
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A compile cache of the test's own: for tests of what a compiler does that is stopped, killed or broken."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path_factory.mktemp("cache")))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):  # type: ignore[no-untyped-def]
    outcome = yield
    _refuse_skip(outcome.get_result())


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report(collector: pytest.Collector):  # type: ignore[no-untyped-def]
    outcome = yield
    _refuse_skip(outcome.get_result())


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped and os.environ.get("CI") == "true" and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped under CI=true, where everything is installed: {report.longrepr}"
