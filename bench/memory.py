"""Peak memory with 256 calibration samples against 16, from one ``.npz``: a fresh process per figure.

``stage`` is read, normalize, calibrate and plan; ``fit`` is the whole line, as ``dovetail fit`` runs it.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from tests.networks.vit_tiny import pictures, save

from bench.child import MEGABYTE, ask

WANTED = 1.10
# What is run, the range method, and whether the file is compressed.
CASES = (
    ("stage", "minmax", False),
    ("stage", "minmax", True),
    ("stage", "mse", False),
    ("stage", "mse", True),
    ("fit", "mse", True),
)


def write_data(path: Path, count: int, compressed: bool) -> Path:
    """``count`` pictures in one ``.npz``."""
    (np.savez_compressed if compressed else np.savez)(path, image=pictures(count))
    return path


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--few", type=int, default=16)
    parser.add_argument("--many", type=int, default=256)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--cases", type=int, default=len(CASES), help="only the first so many")
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
        for way, method, compressed in CASES[: options.cases]:
            few, many = (
                ask("bench.memory_child", {"way": way, "method": method, "model": str(model), "data": str(file)})
                for file in (files[count, compressed] for count in counts)
            )
            ratio = many["peak_bytes"] / few["peak_bytes"]
            packed = "compressed" if compressed else "plain"
            print(
                f"{way:6}{method:8}{packed:11}{few['peak_bytes'] / MEGABYTE:7.0f} MB ->"
                f"{many['peak_bytes'] / MEGABYTE:5.0f} MB  {ratio:5.3f}x   (wanted: at most {WANTED:.2f}x)",
                flush=True,
            )


if __name__ == "__main__":
    main()
