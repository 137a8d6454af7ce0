"""The smallest part that the real HTP compiler refuses or computes incorrectly; YOLOv8n: python -m bench.bisect."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

from dovetail.bisect.parts import divided
from dovetail.bisect.search import PREDICATES, Judges, failing_part
from dovetail.cli.main import cli
from dovetail.sweep.fit_graph import FitRequest
from dovetail.targets import open_target
from tests.networks.planted_vit import PATTERNS, planted_vit, samples

pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")

TARGET = "qnn-htp:sm8550"
MOST_NODES, MOST_TRIED = 5, 40


@pytest.fixture(scope="module")
def judges() -> Iterator[Judges]:
    with Judges(quantized=True) as judges:
        yield judges


@pytest.mark.parametrize("name", PATTERNS)
def test_a_planted_pattern_is_found_in_a_vit_of_twelve_layers(name: str, judges: Judges, tmp_path: Path) -> None:
    path = planted_vit(name, open_target(TARGET), tmp_path)
    rows = [{"x0": row} for row in samples()["x0"]]
    whole = divided(path, {}, rows)
    assert len(whole.elements) > 250
    how = FitRequest(path, path, TARGET, "", build_only=True, cache=True)
    part = failing_part(whole, how, judges, PREDICATES["refused"])
    assert part is not None
    assert part.is_minimal
    assert PATTERNS[name].operator in [operator for operator, _ in part.nodes]
    assert len(part.nodes) <= MOST_NODES
    assert part.tried < MOST_TRIED


CONV_SILU = """<ir_version: 10, opset_import: ["": 21]>
g (float[1,16,10,10] x) => (float[1,16,10,10] y) <float[16,16,1,1] w = {%s}, float[16] b = {%s}>
{ [before] a = Relu(x)  [conv] c = Conv(a, w, b)  [sigmoid] s = Sigmoid(c)  [mul] m = Mul(c, s)
  [after] y = Tanh(m) }"""


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, int]:
    """A Conv with a SiLU at height 10 without the workaround, searched by the command: folder, output, exit code."""
    folder, random = tmp_path_factory.mktemp("wrong"), np.random.default_rng(2)
    weights, bias = random.standard_normal(256) / 4, random.standard_normal(16)
    text = CONV_SILU % tuple(",".join(f"{number:.5f}" for number in numbers) for numbers in (weights, bias))
    onnx.save(onnx.parser.parse_model(text), folder / "m.onnx")
    np.savez(folder / "calib.npz", x=random.standard_normal((2, 1, 16, 10, 10)).astype(np.float32))
    arguments = ["bisect", str(folder / "m.onnx"), "--target", TARGET, "--precision", "w8a16", "--option"]
    arguments += ["workarounds=off", "--calib", str(folder / "calib.npz"), "-o", str(folder / "found")]
    result = CliRunner().invoke(cli, arguments)
    return folder / "found", result.output, result.exit_code


def test_a_wrong_convolution_is_found(wrong: tuple[Path, str, int]) -> None:
    folder, output, code = wrong
    assert code == 1, output
    part = onnx.load(folder / "part.onnx")
    assert [node.op_type for node in part.graph.node] == ["Conv", "Sigmoid", "Mul"]
    assert "fixed by: " in output
    assert "with the target's default options" in output.partition("fixed by: ")[2]


def test_the_report_says_what_where_and_how(wrong: tuple[Path, str, int]) -> None:
    text = (wrong[0] / "report.md").read_text()
    assert text.startswith(f"# Conv, Sigmoid, Mul: computed incorrectly on {TARGET}\n")
    for expected in ("| Conv | conv |", "workarounds=off", "| onnxruntime-qnn |", "`python reproduce.py`", "SHA-256"):
        assert expected in text


def test_the_failure_is_seen_without_dovetail(wrong: tuple[Path, str, int]) -> None:
    code = "import sys; sys.modules['dovetail'] = None; import runpy; runpy.run_path('reproduce.py')"
    done = subprocess.run([sys.executable, "-c", code], cwd=wrong[0], capture_output=True, text=True, check=True)
    (line,) = [line for line in done.stdout.splitlines() if " dB against" in line]
    assert float(line.rpartition(": ")[2].split()[0]) < 20


def test_a_model_that_does_not_fail(tmp_path: Path) -> None:
    text = '<ir_version: 10, opset_import: ["": 21]> g (float[1,8] x) => (float[1,8] y) { y = Relu(x) }'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    arguments = ["bisect", str(tmp_path / "m.onnx"), "--target", TARGET, "-o", str(tmp_path / "found")]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    assert "m.onnx does not fail on qnn-htp:sm8550: it compiles as planned" in result.output
    assert not (tmp_path / "found").exists()
