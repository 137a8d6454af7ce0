"""ONNX Runtime on CPU: fit a shipped model in 8 bit, keep its residual stream and GELUs in 16 bit, compare both.

Run it with ``python examples/target_ort_cpu.py``. It needs the core only, and writes below ``runs/target_ort_cpu``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import dovetail
from dovetail import zoo

IN_16_BIT = ("blocks.?/Add*=w8a16", "*mlp.act*=w8a16")


def main(folder: Path) -> None:
    """Fit twice: in w8a8, and with some nodes, selected by their names in the file, in w8a16."""
    shipped = zoo.load("vit_digits")
    sqnr_db = {}
    for name, keep in (("w8a8", ()), ("mixed", IN_16_BIT)):
        result = dovetail.fit(
            shipped.model_path,
            target="ort-cpu",
            precision="w8a8",
            keep=keep,
            calibration=shipped.calib(),
            evaluation={**shipped.eval(), **shipped.targets()},
            metric=shipped.metric,
            output=folder / name,
            force=True,
        )
        print(f"{name}:")
        for check, verdict in result.verdicts.items():
            print(f"  {check:11} {verdict.status}: {verdict.reason}")
        if result.failed:
            sys.exit(f"{name}: failed {', '.join(result.failed)}")
        sqnr_db[name] = result.metrics.sqnr_db.simulation_vs_float["logits"]
        worst = min(result.metrics.tensors, key=lambda tensor: tensor.sqnr_db or 0.0)
        print(f"  SQNR of the logits {sqnr_db[name]:.1f} dB; worst: {worst.original_name}, {worst.sqnr_db:.1f} dB")
    if sqnr_db["mixed"] <= sqnr_db["w8a8"]:
        sys.exit("16 bit did not raise the SQNR")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/target_ort_cpu"))
