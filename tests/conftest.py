"""What holds for every test: none is skipped under CI=true, whole models are run without counting lines, and tests
that share a fixture run in one process.

With CI=true every backend is installed, so a skipped test, or a file skipped while it is collected, is a failure.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.networks.htp_checks", "tests.networks.recogniser_checks")

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


# Before pytest-xdist, which reads the groups in the same hook.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    distributed = config.pluginmanager.hasplugin("xdist")
    for item in items:
        if distributed and shares_a_fixture(item):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
        if any(item.path.is_relative_to(_HERE / place) for place in WITHOUT_COVERAGE):
            item.add_marker("no_cover")


def shares_a_fixture(item: pytest.Item) -> bool:
    """Whether a test uses something that is made once for its file: two processes would make it twice."""
    if not isinstance(item, pytest.Function):
        return False
    found = item._fixtureinfo.name2fixturedefs  # the names alone do not say how long a fixture lives
    return any(definition.scope == "module" for definitions in found.values() for definition in definitions)


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
