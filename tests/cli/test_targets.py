from __future__ import annotations

import pytest

from dovetail.cli.main import main
from dovetail.targets import FAMILIES
from tests.cli.conftest import Run


def test_what_can_be_named_is_listed(run: Run) -> None:
    code, out, err = run("targets")
    assert (code, err) == (0, "")
    words = " ".join(out.split())
    assert all(f" {family} " in words for family in FAMILIES)
    assert "qnn-htp: may be followed by :sm8450, :sm8550," in words
    assert "qnn-htp: --option takes vtcm_mb, optimization," in words
    assert "tensorrt: may be followed by :sm75," in words


@pytest.mark.parametrize(("option", "owner"), [("--compute", "tensorrt"), ("--device-qairt", "qnn-htp")])
def test_an_option_of_a_target_in_its_old_spelling_is_said_anew(
    option: str, owner: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["fit", "model.onnx", option, "1", "-o", "run"])
    assert stop.value.code == 2
    key = option.lstrip("-").replace("-", "_")
    said = capsys.readouterr().err
    assert said == f"dovetail: {option} is an option of the target {owner}: say --option {key}=VALUE\n"


def test_an_option_that_nobody_has_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["fit", "model.onnx", "--colour", "red", "-o", "run"])
    assert stop.value.code == 2
    assert "--colour" in capsys.readouterr().err
