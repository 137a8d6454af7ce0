"""The Python API on a shipped model: fit it, print the verdicts, keep the residual stream in 16 bit, fit it again.

Run it with ``python examples/digits.py``; it writes ``runs/digits`` and ``runs/digits_16bit``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import dovetail
from dovetail import zoo


def main(folder: Path) -> None:
    """Fit twice: in w8a8, and in w8a8 with the residual stream and the GELUs in 16 bit, selected by node name."""
    shipped = zoo.load("vit_digits")
    options = {
        "target": "ort-cpu",
        "precision": "w8a8",
        "calibration": shipped.calib(),
        "evaluation": {**shipped.eval(), **shipped.targets()},
        "metric": shipped.metric,
        "force": True,
    }
    w8a8 = dovetail.fit(shipped.model_path, output=folder / "digits", **options)
    for name, verdict in w8a8.verdicts.items():
        print(f"{name:12}{verdict.status:12}{verdict.reason}")

    worst = min(w8a8.metrics.tensors, key=lambda tensor: tensor.sqnr_db or 0.0)
    print(f"worst tensor in the simulation: {worst.original_name}, {worst.sqnr_db:.1f} dB")
    keep = ("blocks.?/Add*=w8a16", "*mlp.act*=w8a16")
    mixed = dovetail.fit(shipped.model_path, output=folder / "digits_16bit", keep=keep, **options)
    for label, result in (("w8a8", w8a8), ("w8a8, residual stream and GELU in 16 bit", mixed)):
        print(f"{label}: {result.metrics.sqnr_db.simulation_vs_float['logits']:.1f} dB")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("runs"))
