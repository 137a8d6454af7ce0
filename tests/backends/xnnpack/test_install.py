"""What is said where the packages are missing or do not go together; no package is needed for it."""

from __future__ import annotations

import pytest

from dovetail.errors import InputError
from dovetail.targets import open_target
from dovetail.targets.xnnpack.install import PACKAGES, obstacle

INSTALL = "pip install 'dovetail-fit[xnnpack]'"


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({}, ""),
        ({"torch": "2.13.0+cpu"}, ""),
        ({"executorch": ""}, f"executorch is not installed: {INSTALL}"),
        ({"executorch": "", "torch": ""}, f"executorch and torch are not installed: {INSTALL}"),
        ({"torch": "2.9.0+cpu"}, f"torch 2.9.0+cpu is installed, 2.13.0 is needed: {INSTALL}"),
        (
            {"executorch": "1.3.0", "torch": "2.9.0"},
            f"executorch 1.3.0 is installed, 1.5.1 is needed, torch 2.9.0 is installed, 2.13.0 is needed: {INSTALL}",
        ),
    ],
)
def test_one_sentence_with_the_line_that_installs(found: dict[str, str], said: str) -> None:
    assert obstacle({**PACKAGES, **found}) == said


@pytest.mark.parametrize(
    ("spec", "options", "why"),
    [
        ("xnnpack:arm", {}, "has no variant 'arm'"),
        ("xnnpack", {"threads": "2"}, "has no option 'threads'; there is time_limit_s, memory_limit_mb"),
        ("xnnpack", {"time_limit_s": "-1"}, "time_limit_s=-1: must be a number above zero"),
        ("xnnpack", {"memory_limit_mb": "much"}, "memory_limit_mb=much: must be a whole number above zero"),
    ],
)
def test_unknown_words_are_refused(spec: str, options: dict[str, str], why: str) -> None:
    with pytest.raises(InputError, match=why):
        open_target(spec, options)
