"""The Python API on a shipped model: fit it, look at the verdicts, keep the residual stream wider, fit again.

Run it with ``python examples/digits.py``; it writes ``runs/digits`` and ``runs/digits_wider``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import dovetail
from dovetail import zoo


def main(folder: Path) -> None:
    """Two runs: plain w8a8, and w8a8 with the residual stream and the GELUs in 16 bit, by their names in the file."""
    shipped = zoo.load("vit_digits")
    given = {
        "target": "ort-cpu",
        "precision": "w8a8",
        "calibration": shipped.calib(),
        "evaluation": {**shipped.eval(), **shipped.targets()},
        "metric": shipped.metric,
        "force": True,
    }
    plain = dovetail.fit(shipped.model_path, output=folder / "digits", **given)
    for name, verdict in plain.verdicts.items():
        print(f"{name:12}{verdict.status:12}{verdict.reason}")

    worst = min(plain.metrics.tensors, key=lambda tensor: tensor.sqnr_db or 0.0)
    print(f"worst tensor in the simulation: {worst.original_name}, {worst.sqnr_db:.1f} dB")
    keep = ("blocks.?/Add*=w8a16", "*mlp.act*=w8a16")
    wider = dovetail.fit(shipped.model_path, output=folder / "digits_wider", keep=keep, **given)
    for label, result in (("w8a8", plain), ("w8a8, residual stream and GELU in 16 bit", wider)):
        print(f"{label}: {result.metrics.sqnr_db.simulation_vs_float['logits']:.1f} dB")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("runs"))
