"""Whole networks at every precision, by the check functions of the suite, which runs each at one precision.

``python -m bench.zoo [--only TEXT] [part ...]``; the parts are ``backbones``, ``encoders``, ``recogniser``,
``detectors`` (all four on the HTP compiler and emulator), ``lines`` (text read on ONNX Runtime) and ``targets``
(detectors and encoders on HTP, XNNPACK and TensorRT).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path

from tests.networks import backbones, detectors, encoders, htp_checks, recogniser_checks, target_checks
from tests.networks.htp_checks import AUTOMOTIVE, PHONE, PRECISIONS

PARTS = ("backbones", "encoders", "recogniser", "detectors", "lines", "targets")
Check = Callable[[Path], object]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.zoo", description=__doc__)
    parser.add_argument("part", nargs="*", help=f"{', '.join(PARTS)}; all if none is named")
    parser.add_argument("--only", default="", help="rows whose name has this text")
    given = parser.parse_args(arguments)
    unknown = [part for part in given.part if part not in PARTS]
    if unknown:
        parser.error(f"unknown part {unknown[0]!r}; expected one of {', '.join(PARTS)}")
    selected = [(name, check) for part, name, check in rows() if part in (given.part or PARTS) and given.only in name]
    if not selected:
        parser.error(f"no row of {', '.join(given.part or PARTS)} has {given.only!r} in its name")
    failed = sum(not _passes(name, check) for name, check in selected)
    print(f"{failed} of {len(selected)} failed")
    return int(failed > 0)


def rows() -> Iterator[tuple[str, str, Check]]:
    """The part, the name and the check of every network at every precision."""
    for name, precision in product(backbones.NETWORKS, PRECISIONS):
        yield "backbones", f"{name} {precision}", _bound(htp_checks.check_backbone, name, precision)
    for precision, target in product(PRECISIONS, (PHONE, AUTOMOTIVE)):
        check = _bound(htp_checks.check_large_backbone, precision, target)
        yield "backbones", f"DINOv2-S at its sizes {precision} {target}", check
    for name, precision in product(encoders.NETWORKS, PRECISIONS):
        yield "encoders", f"{name} {precision}", _bound(htp_checks.check_encoder, name, precision)
    for precision in PRECISIONS:
        yield "recogniser", f"PP-OCRv6 {precision}", _bound(htp_checks.check_recogniser, precision)
    for name, precision, target in product(detectors.NETWORKS, PRECISIONS, (PHONE, AUTOMOTIVE)):
        yield "detectors", f"{name} {precision} {target}", _bound(htp_checks.check_detector, name, precision, target)
    for precision in recogniser_checks.LOST_LINES:
        yield "lines", f"PP-OCRv6 lines {precision} ort-cpu", _bound(_check_lines, precision)
    for name, (target, precision) in product(target_checks.NETWORKS, target_checks.TARGETS):
        row = f"{name} on {target} {precision}"
        yield "targets", row, _bound(target_checks.check_network, name, target, precision)


def _bound(check: Callable[..., object], *arguments: str) -> Check:
    return lambda run: check(*arguments, run)


def _check_lines(precision: str, run: Path) -> None:
    result = recogniser_checks.fit_recogniser(precision, run)
    recogniser_checks.check_lines(result, precision)
    recogniser_checks.check_verdicts(result, precision)
    recogniser_checks.check_size(result)
    recogniser_checks.check_hash(result)


def _passes(name: str, check: Check) -> bool:
    start, reason = time.monotonic(), ""
    with tempfile.TemporaryDirectory(prefix="dovetail-bench-") as folder:
        try:
            check(Path(folder) / "run")
        except AssertionError as error:
            reason = f": {str(error) or 'an assertion without words'}"
    print(f"  {name:44} {'FAILS' if reason else 'pass'} {time.monotonic() - start:5.1f} s{reason}", flush=True)
    return not reason


if __name__ == "__main__":
    sys.exit(main())
