"""The benchmarks run and print every row; sizes are tiny, and no figure is checked."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from bench.child import ROOT, ChildFailed, run_child
from bench.score import SESSION_MODES

from bench import __main__ as all_benches
from bench import (
    block,
    calibration,
    check_time,
    encodings,
    htp,
    htp_patterns,
    memory,
    peers,
    ranges,
    rounding,
    sensitivity,
)
from dovetail.backend import Estimate


def test_calibration_prints_a_ratio_for_every_measurement(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["calibration", "--samples", "1", "--rounds", "1"])
    monkeypatch.setattr(calibration, "save", lambda folder: memory.save(folder, layers=1))
    calibration.main()
    printed = capsys.readouterr().out
    assert all(label in printed for label in calibration.GOALS)


def test_encodings_prints_every_version(monkeypatch, capsys):
    monkeypatch.setattr(encodings, "ENTRIES", 20)
    encodings.main()
    printed = capsys.readouterr().out
    assert all(f"\n{version} " in printed for version in ("0.6.1", "1.0.0", "2.0.0"))


def test_check_time_prints_a_row_per_model(capsys):
    check_time.main(["--layers", "2", "--few-layers", "1", "--targets", "ort-cpu"])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [row[2] for row in rows] == ["float", "QDQ", "QDQ"]
    assert all(float(cell.rstrip("s")) > 0 for row in rows for cell in row[3:7])


def test_sensitivity_prints_all_three_ways(capsys):
    sensitivity.main(["--model", "vit_digits", "--samples", "1", "--rebuild", "2"])
    printed = capsys.readouterr().out
    assert all(label in printed for label in ("rebuild", "exact", "first order", "rank correlation"))


def test_htp_patterns_print_every_form(monkeypatch, capsys):
    pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")
    monkeypatch.setattr(htp_patterns, "SIZES", ((1, 16, 32, 32),))
    monkeypatch.setattr(htp_patterns, "BLOCKS", ((2, 16),))
    htp_patterns.main([])
    rows = [line.rsplit(maxsplit=2) for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    attention = (*htp_patterns.ATTENTION, *htp_patterns.ATTENTION, *htp_patterns.BEHIND_LAYERS)
    assert [row[0].strip() for row in rows] == [*htp_patterns.LINEAR, *attention]
    assert all(float(time_us) > 0 for _, time_us, _ in rows)


def test_rounding_prints_a_row_per_method(monkeypatch, capsys):
    monkeypatch.setattr(rounding, "FRESH", 4)
    assert rounding.main(["shipped", "--networks", "vit_digits", "--cases", "ort-cpu/w8a16"]) == 0
    printed = capsys.readouterr().out
    assert all(text in printed for text in ("ort-cpu/w8a16: nearest", "scale-search", "second-order", "18 layers"))


def test_memory_prints_the_peak_of_the_child_and_not_of_its_parent(capsys):
    parent_memory = b"\1" * (512 << 20)
    memory.main(["--few", "1", "--many", "2", "--layers", "1", "--cases", "1"])
    cells = capsys.readouterr().out.splitlines()[1].split()
    assert cells[:3] == ["stage", "minmax", "plain"]
    assert cells[4] == "MB"
    assert 0 < int(cells[3]) < len(parent_memory) >> 20


def test_peers_print_a_row_per_tool_with_every_session_mode(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv(peers.AIMET_VARIABLE, str(tmp_path / "missing"))
    sizes = ["--zoo-samples", "2", "--held-out", "2", "--float-seconds", "0.01"]
    peers.main(["--model", "vit_digits", "--methods", "1", *sizes])
    printed = capsys.readouterr().out
    rows = {line.split()[0]: line for line in printed.splitlines() if line.count("|") == len(SESSION_MODES)}
    assert {"dovetail", "onnxruntime"} <= set(rows)
    assert "failed" not in printed
    assert "not checked: aimet-onnx is not installed; to install: python3 -m venv bench/.venvs/aimet" in printed


def test_htp_prints_a_ratio_only_if_equally_many_operators_have_no_cost(capsys):
    estimate, base = Estimate(9, 10, 11, 0, 0, 0), Estimate(18, 20, 22, 0, 0, 0)
    assert htp._ratio(estimate, base) == "0.500x"
    assert htp._ratio(estimate, replace(base, ops_without_cost=3)) == "0/3 uncosted"
    assert htp._ratio(estimate, None) == "-"
    with pytest.raises(SystemExit):
        htp.main(["speed"])
    assert "unknown part 'speed'; expected one of vit, block, detectors, shipped" in capsys.readouterr().err


def test_a_failed_child_is_reported_with_its_last_lines():
    with pytest.raises(ChildFailed, match=r"^bench\.nothing exited with code 1:\n.*No module named"):
        run_child("bench.nothing", {})


def test_an_unknown_benchmark_is_refused_by_name(capsys):
    with pytest.raises(SystemExit):
        all_benches.main(["speed"])
    assert "unknown benchmark 'speed'; expected one of calibration, memory, htp, peers" in capsys.readouterr().err


def test_every_benchmark_is_a_script_and_in_the_readme():
    readme = Path(ROOT, "bench", "README.md").read_text()
    for name in all_benches.BENCHES:
        assert Path(ROOT, "bench", f"{name}.py").exists()
        assert f"python -m bench {name}" in readme


def test_ranges_print_what_was_repaired(capsys):
    assert ranges.main(["--target", "ort-cpu", "--only", ranges.ALL]) == 0
    printed = capsys.readouterr().out
    assert "range repaired: 'masked_anchors'" in printed
    assert "Q508 constant 'masked_anchors'" in printed


def test_block_prints_the_size_of_every_precision(capsys):
    block.main(["large", "--layers", "1"])
    *rows, aimet = capsys.readouterr().out.splitlines()[2:]
    figures = [row.split() for row in rows]
    assert [row[0] for row in figures] == ["w8a16", "w4a16", "w4a16-lpbq", "w4a16-lpbq"]
    assert all(0 < float(row[-1]) < 0.16 for row in figures[1:])
    assert "aimet" in aimet
    assert "failed" not in aimet
    with pytest.raises(SystemExit):
        block.main(["speed"])
    assert "unknown part 'speed'; expected one of shipped, estimate, vit_b, layers, large" in capsys.readouterr().err
