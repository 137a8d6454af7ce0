"""Messages about missing or incompatible packages; the test requires none of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import dovetail
from dovetail.errors import InputError
from dovetail.finding import Status
from dovetail.targets import open_target
from dovetail.targets.xnnpack import install
from dovetail.targets.xnnpack.install import PACKAGES, problem

INSTALL = "pip install 'dovetail-fit[xnnpack]'"


@pytest.mark.parametrize(
    ("installed", "message"),
    [
        ({}, ""),
        ({"torch": "2.13.0+cpu"}, ""),
        ({"executorch": ""}, f"executorch is not installed: {INSTALL}"),
        ({"executorch": "", "torch": ""}, f"executorch and torch are not installed: {INSTALL}"),
        ({"torch": "2.9.0+cpu"}, f"torch 2.9.0+cpu is installed, 2.13.0 is required: {INSTALL}"),
        (
            {"executorch": "1.3.0", "torch": "2.9.0"},
            "executorch 1.3.0 is installed, 1.5.1 is required, "
            f"torch 2.9.0 is installed, 2.13.0 is required: {INSTALL}",
        ),
    ],
)
def test_the_message_has_the_install_command(installed: dict[str, str], message: str) -> None:
    assert problem({**PACKAGES, **installed}) == message


@pytest.mark.parametrize(
    ("spec", "options", "why"),
    [
        ("xnnpack:arm", {}, "unknown target suffix 'arm': xnnpack has none"),
        ("xnnpack", {"threads": "2"}, "has no option 'threads'; expected one of time_limit_s, memory_limit_mb"),
        ("xnnpack", {"time_limit_s": "-1"}, "time_limit_s=-1: expected a number above zero"),
        ("xnnpack", {"memory_limit_mb": "much"}, "memory_limit_mb=much: expected a whole number from 1"),
    ],
)
def test_unknown_suffixes_and_options_are_refused(spec: str, options: dict[str, str], why: str) -> None:
    with pytest.raises(InputError, match=why):
        open_target(spec, options)


@pytest.mark.parametrize(
    ("installed", "message"),
    [
        ({"executorch": ""}, f"executorch is not installed: {INSTALL}"),
        ({"torch": "2.9.0"}, f"torch 2.9.0 is installed, 2.13.0 is required: {INSTALL}"),
    ],
)
def test_a_run_reports_it_and_is_not_checked(
    installed: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(install, "_version", lambda name: {**PACKAGES, **installed}[name])
    text = "g (float[2,4] x) => (float[2,4] y) <float[4,4] w = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7}> { y = MatMul(x, w) }"
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')
    data = {"x": np.random.default_rng(0).standard_normal((4, 2, 4)).astype(np.float32)}
    result = dovetail.fit(model, target="xnnpack", precision="auto", calibration=data, output=tmp_path / "run")
    compiled = result.verdicts["compiled"]
    assert compiled.status is Status.NOT_CHECKED
    assert message in compiled.reason
    assert "none was compiled" in result.decisions[0].reason
