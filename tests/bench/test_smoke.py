"""The benches run and print what they promise; sizes are tiny, and no figure is judged."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from bench.child import ROOT, ChildFailed, ask
from bench.score import WAYS

from bench import __main__ as all_benches
from bench import calibration, htp, memory, peers
from dovetail.backend import Estimate


def test_calibration_prints_a_ratio_for_every_way(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["calibration", "--samples", "1", "--rounds", "1"])
    monkeypatch.setattr(calibration, "save", lambda folder: memory.save(folder, layers=1))
    calibration.main()
    printed = capsys.readouterr().out
    assert all(way in printed for way in calibration.WANTED)


def test_memory_prints_a_ratio_of_the_children_whatever_their_parent_holds(capsys):
    ballast = b"\1" * (512 << 20)
    memory.main(["--few", "1", "--many", "2", "--layers", "1", "--cases", "1"])
    words = capsys.readouterr().out.splitlines()[1].split()
    assert words[:3] == ["stage", "minmax", "plain"]
    assert words[4] == "MB"
    assert 0 < int(words[3]) < len(ballast) >> 20


def test_peers_print_a_row_per_tool_with_every_way_of_running(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv(peers.AIMET_VARIABLE, str(tmp_path / "missing"))
    sizes = ["--zoo-samples", "2", "--held-out", "2", "--float-seconds", "0.01"]
    peers.main(["--model", "vit_digits", "--methods", "1", *sizes])
    printed = capsys.readouterr().out
    rows = {line.split()[0]: line for line in printed.splitlines() if line.count("|") == len(WAYS)}
    assert {"dovetail", "onnxruntime"} <= set(rows)
    assert "failed" not in printed
    assert "not checked: aimet-onnx is not installed; to install: python3 -m venv bench/.venvs/aimet" in printed


def test_htp_compares_estimates_only_where_the_same_operators_have_a_cost(capsys):
    one, other = Estimate(9, 10, 11, 0, 0, 0), Estimate(18, 20, 22, 0, 0, 0)
    assert htp._ratio(one, other) == "0.500x"
    assert htp._ratio(one, replace(other, ops_without_cost=3)) == "0/3 uncosted"
    assert htp._ratio(one, None) == "-"
    with pytest.raises(SystemExit):
        htp.main(["speed"])
    assert "no part is called 'speed'; there is vit, block, detectors, shipped" in capsys.readouterr().err


def test_a_child_that_fails_is_told_with_its_last_words():
    with pytest.raises(ChildFailed, match="No module named"):
        ask("bench.nothing", {})


def test_an_unknown_bench_is_refused_by_name(capsys):
    with pytest.raises(SystemExit):
        all_benches.main(["speed"])
    assert "no bench is called 'speed'; there is calibration, memory, htp, peers" in capsys.readouterr().err


def test_every_bench_is_a_script_and_in_the_readme():
    readme = Path(ROOT, "bench", "README.md").read_text()
    for name in all_benches.BENCHES:
        assert Path(ROOT, "bench", f"{name}.py").exists()
        assert f"python -m bench {name}" in readme
