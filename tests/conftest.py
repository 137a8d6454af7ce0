"""Hooks for all tests: no test is skipped under CI=true, tests of whole models run without coverage, and tests that
share a fixture run in one process.

With CI=true every backend is installed, so a skipped test, or a file skipped at collection, is a failure.
"""

from __future__ import annotations

import functools
import gc
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest

from dovetail.targets.tool_cache import FOLDER_VARIABLE

pytest.register_assert_rewrite(
    "tests.networks.htp_checks", "tests.networks.recogniser_checks", "tests.networks.target_checks"
)

_HERE = Path(__file__).parent
_LOWERING = "tests.backends.xnnpack.lowering"
# Whole networks, exported and fitted. Smaller tests cover the same lines, and coverage takes a third of the time here.
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


def pytest_configure() -> None:
    """A shell starts what runs in the background with SIGINT ignored, and children inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # torch sets it when it lowers in the process of the tests; every server of children would then be replaced.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(tempfile.gettempdir()) / "torchinductor"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if runs_without_coverage(item.path):
            item.add_marker("no_cover")


def pytest_collection_finish() -> None:
    """Collect garbage seldom, and never in the collected tests, which live to the end: it took 1/8 of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``--dist loadgroup`` a worker gets one test at a time, or a whole file where that shares a fixture.

    The files that lower to ExecuTorch in their own process are one group.

    Not by the marks of pytest-xdist: version 3.8 forgets them with pytest 9.2 (pytest-xdist issue 1386).
    """
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            if lowers_in_process(config.rootpath / file):
                return _LOWERING
            return file if shares_a_fixture(config.rootpath / file) else nodeid

    return Scheduler(config, log)


@functools.cache
def runs_without_coverage(file: Path) -> bool:
    """Whether the tests of a file are of whole networks."""
    return any(file.is_relative_to(_HERE / path) for path in WITHOUT_COVERAGE)


@functools.cache
def shares_a_fixture(file: Path) -> bool:
    """Whether tests of a file use something that is made once for all of them: two workers would make it twice."""
    return 'scope="module"' in file.read_text()


@functools.cache
def lowers_in_process(file: Path) -> bool:
    """Whether tests of a file import executorch into their own process: once is enough, it takes 4 seconds."""
    return _LOWERING in file.read_text()


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
