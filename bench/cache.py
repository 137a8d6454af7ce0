"""The same ``fit`` twice on each target, from an empty cache: what the second one saves.

    python -m bench.cache

Prints CPU seconds of the process and its children, and how many compile results and runs on the target the second one
took from the cache.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import dovetail
from dovetail import zoo
from dovetail.clock import cpu_seconds
from dovetail.report.result import Result
from dovetail.targets.tool_cache import FOLDER_VARIABLE

CASES = (
    ("ort-cpu", "w8a8"),
    ("qnn-htp:soc52", "w8a16"),
    ("xnnpack", "w8a8"),
    ("tensorrt:sm89", "fp8"),
)
MODEL = "detector_scenes"


def main() -> None:
    print(f"{'target':14} {'precision':9} {'first':>8} {'second':>8} ratio  from the cache: compile results, runs")
    for target, precision in CASES:
        with tempfile.TemporaryDirectory(prefix="dovetail-bench-") as folder:
            os.environ[FOLDER_VARIABLE] = str(Path(folder) / "cache")
            runs = [timed_fit(target, precision, Path(folder) / name) for name in ("first", "second")]
        (first, _), (second, result) = runs
        cached = ", ".join(f"{c['from_cache']} of {sum(c.values())}" for c in (result.compilations, result.target_runs))
        print(f"{target:14} {precision:9} {first:6.1f} s {second:6.1f} s {second / first:.2f}x  {cached}", flush=True)


def timed_fit(target: str, precision: str, output: Path) -> tuple[float, Result]:
    """One run with the target's baselines: CPU seconds, and its result."""
    model = zoo.load(MODEL)
    before = cpu_seconds()
    result = dovetail.fit(
        model.model_path,
        target=target,
        precision=precision,
        calibration=model.calib(),
        output=output,
        baselines="all",
    )
    return cpu_seconds() - before, result


if __name__ == "__main__":
    main()
