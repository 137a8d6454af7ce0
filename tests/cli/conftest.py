"""Runs the command line: exit code, standard output, standard error."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dovetail.cli.main import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return int(stop.value.code or 0), out, err

    return call
