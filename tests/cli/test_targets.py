from __future__ import annotations

import pytest

from dovetail.cli.main import main
from dovetail.targets import FAMILIES
from tests.cli.conftest import Run


def test_suffixes_and_options_of_the_targets_are_listed(run: Run) -> None:
    code, out, err = run("targets")
    assert (code, err) == (0, "")
    text = " ".join(out.split())
    assert all(f" {family} " in text for family in FAMILIES)
    assert "qnn-htp suffixes, as in qnn-htp:sm8450: sm8450, sm8550," in text
    assert "qnn-htp options, as in --option vtcm_mb=VALUE: vtcm_mb, optimization," in text
    assert "tensorrt suffixes, as in tensorrt:sm75: sm75," in text


@pytest.mark.parametrize(("option", "owner"), [("--compute", "tensorrt"), ("--device-qairt", "qnn-htp")])
def test_the_message_says_how_to_set_an_option_of_a_target(
    option: str, owner: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["fit", "model.onnx", option, "1", "-o", "run"])
    assert stop.value.code == 2
    key = option.lstrip("-").replace("-", "_")
    message = capsys.readouterr().err
    assert message == f"dovetail: {option} is an option of the target {owner}: use --option {key}=VALUE\n"


def test_an_unknown_option_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["fit", "model.onnx", "--colour", "red", "-o", "run"])
    assert stop.value.code == 2
    assert "--colour" in capsys.readouterr().err
