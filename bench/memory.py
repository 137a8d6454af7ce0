"""Peak memory with 256 calibration samples, relative to 16, from one ``.npz``; each figure is from a fresh process.

``stage`` runs read, normalize, calibrate and plan; ``fit`` runs the whole pipeline, as ``dovetail fit`` does.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from tests.networks.vit_tiny import pictures, save

from bench.child import MEGABYTE, run_child

# The highest ratio that we aim for; printed, not enforced.
GOAL = 1.10
# What runs, the range method, and whether the .npz is compressed.
CASES = (
    ("stage", "minmax", False),
    ("stage", "minmax", True),
    ("stage", "mse", False),
    ("stage", "mse", True),
    ("fit", "mse", True),
)


def write_data(path: Path, count: int, compressed: bool) -> Path:
    """Write ``count`` images into one ``.npz``."""
    (np.savez_compressed if compressed else np.savez)(path, image=pictures(count))
    return path


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--few", type=int, default=16, help="the smaller number of samples")
    parser.add_argument("--many", type=int, default=256, help="the larger number of samples")
    parser.add_argument("--layers", type=int, default=12, help="layers of the ViT-tiny")
    parser.add_argument("--cases", type=int, default=len(CASES), help="run only the first N cases")
    options = parser.parse_args(arguments)
    counts = (options.few, options.many)
    print(f"ViT-tiny, {options.layers} layers: peak memory, {options.few} and {options.many} samples from one .npz")
    with tempfile.TemporaryDirectory() as name:
        model = save(Path(name), options.layers)
        files = {
            (count, compressed): write_data(Path(name) / f"{count}_{compressed}.npz", count, compressed)
            for count in counts
            for compressed in {compressed for _, _, compressed in CASES[: options.cases]}
        }
        for scope, method, compressed in CASES[: options.cases]:
            request = {"scope": scope, "method": method, "model": str(model)}
            few, many = (
                run_child("bench.memory_child", {**request, "data": str(file)})
                for file in (files[count, compressed] for count in counts)
            )
            ratio = many["peak_bytes"] / few["peak_bytes"]
            file_kind = "compressed" if compressed else "plain"
            print(
                f"{scope:6}{method:8}{file_kind:11}{few['peak_bytes'] / MEGABYTE:7.0f} MB ->"
                f"{many['peak_bytes'] / MEGABYTE:5.0f} MB  {ratio:5.3f}x   (goal: at most {GOAL:.2f}x)",
                flush=True,
            )


if __name__ == "__main__":
    main()
