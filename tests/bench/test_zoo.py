"""What ``python -m bench.zoo`` runs: every whole network at every precision, and a failure is told."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the package torch")
pytest.importorskip("transformers", reason="needs the package transformers")
pytest.importorskip("PIL", reason="needs the package pillow")

from bench import zoo
from tests.networks import backbones, detectors, encoders, htp_checks


def test_every_network_is_there_at_every_precision() -> None:
    names = [name for _, name, _ in zoo.rows()]
    assert len(names) == len(set(names))
    for network in (*backbones.NETWORKS, *encoders.NETWORKS, *detectors.NETWORKS, "PP-OCRv6", "PP-OCRv6 lines"):
        for precision in htp_checks.PRECISIONS:
            assert [name for name in names if name.startswith(f"{network} {precision}")], (network, precision)


def test_a_check_that_fails_is_told_and_is_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(run: Path) -> None:
        raise AssertionError("it runs otherwise")

    monkeypatch.setattr(zoo, "rows", lambda: [("lines", "a w8a8", fail), ("lines", "b w8a16", lambda run: None)])
    assert zoo.main(["lines"]) == 1
    printed = capsys.readouterr().out
    assert "FAILS" in printed
    assert "it runs otherwise" in printed
    assert printed.endswith("1 of 2 failed\n")
    assert zoo.main(["lines", "--only", "w8a16"]) == 0
    with pytest.raises(SystemExit):
        zoo.main(["speed"])
    assert "unknown part 'speed'" in capsys.readouterr().err


def test_a_text_that_no_row_has_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--only", "SwinV9"], ["lines", "--only", "SwinV2"]):
        with pytest.raises(SystemExit) as ended:
            zoo.main(arguments)
        assert ended.value.code == 2
        assert f"has {arguments[-1]!r} in its name" in capsys.readouterr().err
