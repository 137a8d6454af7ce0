"""Every example runs as a user runs it, and fails if what it shows does not hold."""

from __future__ import annotations

import ast
import re
import runpy
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dovetail
from dovetail.finding import Status
from dovetail.targets import FAMILIES

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
# What the first argument of pytest.importorskip has to be, by the name of the extra.
PACKAGES = {"qnn": "onnxruntime_qnn", "tensorrt": "tensorrt_rtx", "xnnpack": "executorch"}
# Example -> what it prints.
SHOWN = {
    "attention_on_tensorrt": ("Q421 the attention block", "as given: 1 attention blocks: as one kernel in the planned"),
    "class_token_on_xnnpack": ("as given:   not compiled: Failed to create static transpose", "numerics    pass"),
    "int4_blocks_on_htp": ("17 weights have integer scales now, 0 have not", "fidelity  pass", "top-1 repaired: 0.99"),
    "mixed_precision_on_qairt": ("compiled not_checked", "62 tensors silently", "16: 0 tensors silently"),
    "target_ort_cpu": ("fidelity    pass", "mixed:", "SQNR of the logits"),
    "target_qnn_htp": ("numerics    pass", "device      not_checked", "context_qnn.bin"),
    "target_tensorrt": ("4 attention blocks: as one kernel in the planned type: 4", "numerics    not_checked"),
    "target_xnnpack": ("numerics    pass", "operations in 1 partition"),
    "vit_on_htp": ("Q104 MatMul 'mix'", "2.37 of fp16", "fitted    105 us estimated, 0.76 of fp16", "fidelity pass"),
}
Call = Callable[..., Any]


def run(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(path), str(folder)])
    runpy.run_path(str(path), run_name="__main__")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_shows_what_it_says_and_fails_otherwise(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for extra, package in PACKAGES.items():
        if f"the extra ``[{extra}]``" in path.read_text():
            pytest.importorskip(package, reason=f"needs the extra [{extra}]")
    monkeypatch.chdir(tmp_path)
    results: list[Any] = []
    with monkeypatch.context() as recording:
        for name in ("check", "fit", "repair"):
            recording.setattr(dovetail, name, recorded(getattr(dovetail, name), results), raising=False)
        run(path, tmp_path / "run", recording)
    out = capsys.readouterr().out
    for text in SHOWN[path.stem]:
        assert text in out
    assert max(map(len, out.splitlines())) < 400

    # The same results, but all verdicts after `compiled` have failed and nothing is found: it must not end with 0.
    replayed = iter(results)
    with monkeypatch.context() as broken:
        for name in ("check", "fit", "repair"):
            broken.setattr(dovetail, name, failed(replayed), raising=False)
        with pytest.raises(SystemExit) as ended:
            run(path, tmp_path / "run", broken)
    assert ended.value.code not in (0, None)


def recorded(function: Call, results: list[Any]) -> Call:
    def call(*arguments: Any, **options: Any) -> Any:
        results.append(function(*arguments, **options))
        return results[-1]

    return call


def failed(results: Iterator[Any]) -> Call:
    def call(*arguments: Any, **options: Any) -> Any:
        result = next(results)
        if isinstance(result, tuple):
            return ()
        verdicts = {
            name: verdict if name == "compiled" else replace(verdict, status=Status.FAIL)
            for name, verdict in result.verdicts.items()
        }
        return replace(result, verdicts=verdicts)

    return call


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_needs_only_what_is_installed_with_dovetail(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 100
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    core = {re.split(r"[<>=]", line)[0].replace("-", "_") for line in project["dependencies"]}
    imported = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(str(node.module).partition(".")[0])
    assert imported - set(sys.stdlib_module_names) <= core | {"dovetail"}


def test_the_table_has_an_example_per_target_and_problem() -> None:
    table = (ROOT / "examples" / "README.md").read_text()
    assert {path.name for path in EXAMPLES} == set(re.findall(r"\(([\w_]+\.py)\)", table)) == {f"{n}.py" for n in SHOWN}
    targets = re.findall(r"^\| \[[\w.]+\]\([\w.]+\) \| target `([\w-]+)`", table, flags=re.MULTILINE)
    assert sorted(targets) == sorted(FAMILIES)
    assert re.findall(r"^\| (\d)\. .*?\((\w+\.py)\)", table, flags=re.MULTILINE) == [
        ("1", "vit_on_htp.py"),
        ("2", "mixed_precision_on_qairt.py"),
        ("3", "int4_blocks_on_htp.py"),
        ("4", "class_token_on_xnnpack.py"),
        ("5", "attention_on_tensorrt.py"),
    ]
