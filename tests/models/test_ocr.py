"""The PP-OCRv6 recogniser reads the same text after normalization, and nearly the same after quantization.

At one precision; at both: python -m bench.zoo lines.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir
import pytest

from dovetail.model.read import read
from dovetail.model.session import Mode, open_session
from dovetail.passes.normalize import normalize
from dovetail.report.result import Result
from tests.equality import Array

pytest.importorskip("PIL", reason="needs the package pillow")

from tests.networks import recogniser_checks, rendered_lines
from tests.networks.wheels import ocr_model

CLEAN_LINES = 40
PRECISION = "w8a16"


@pytest.fixture(scope="module")
def recognizer() -> Path:
    return ocr_model(rendered_lines.MODEL)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return recogniser_checks.fit_recogniser(PRECISION, tmp_path_factory.mktemp(PRECISION) / "run")


def _read_lines(model: Path | bytes, images: Array, dictionary: list[str]) -> list[str]:
    session = open_session(model, Mode.FLOAT)
    return [rendered_lines.read_line(session.run(None, {"x": image[None]})[0], dictionary) for image in images]


@pytest.mark.parametrize(
    ("draw", "count", "floor"),
    [
        (rendered_lines.clean, CLEAN_LINES, CLEAN_LINES - 2),
        (rendered_lines.degraded, recogniser_checks.DEGRADED_LINES, recogniser_checks.FLOAT_LINES),
    ],
    ids=["clean", "degraded"],
)
def test_normalization_does_not_change_the_text(
    recognizer: Path, draw: Callable[[list[str], int], Array], count: int, floor: int
) -> None:
    lines = rendered_lines.texts(count, seed=7)
    images = draw(lines, 8)
    dictionary = rendered_lines.characters(recognizer)
    normalized, _ = normalize(read(recognizer, {"x": rendered_lines.SHAPE}))
    before = _read_lines(recognizer, images, dictionary)
    assert _read_lines(ir.to_proto(normalized).SerializeToString(), images, dictionary) == before
    assert sum(text == line for text, line in zip(before, lines, strict=True)) >= floor


def test_exact_lines_are_reported_and_nearly_all_survive(
    result: Result, record_property: Callable[[str, object], None]
) -> None:
    for way, count in recogniser_checks.check_lines(result, PRECISION).items():
        record_property(f"{PRECISION}_{way}_exact_lines_of_{recogniser_checks.DEGRADED_LINES}", count)


def test_the_hash_says_which_lines_were_read(result: Result) -> None:
    """That it is the same in every precision: tests/test_run.py."""
    recogniser_checks.check_hash(result)


def test_every_verdict_is_there_and_passes(result: Result) -> None:
    recogniser_checks.check_verdicts(result, PRECISION)


def test_the_weights_are_a_quarter_of_their_size(result: Result) -> None:
    recogniser_checks.check_size(result)
