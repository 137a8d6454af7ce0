"""Qualcomm HTP: fit a shipped model for a Snapdragon 8 Gen 2, emulate three images, see what was not checked.

Run it with ``python examples/target_qnn_htp.py``. It needs the extra ``[qnn]``, and writes ``runs/target_qnn_htp``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import dovetail
from dovetail import zoo


def main(folder: Path) -> None:
    """Compile with the vendor's compiler, compare emulator and simulation, and list what goes to the device."""
    shipped = zoo.load("vit_digits")
    result = dovetail.fit(
        shipped.model_path,
        target="qnn-htp:sm8550",
        precision="w8a16",
        emulate=3,
        calibration=shipped.calib(),
        evaluation={**shipped.eval(), **shipped.targets()},
        metric=shipped.metric,
        output=folder,
        force=True,
    )
    for check, verdict in result.verdicts.items():
        print(f"{check:11} {verdict.status}: {verdict.reason}")
    if result.verdicts["compiled"].status != "pass":
        sys.exit(result.verdicts["compiled"].reason)
    sqnr_db = result.metrics.sqnr_db
    print(f"SQNR of the logits: simulation {sqnr_db.simulation_vs_float['logits']:.1f} dB", end=", ")
    print(f"emulator {(sqnr_db.target_vs_float or {}).get('logits', float('nan')):.1f} dB")
    for artifact in result.artifacts:
        if artifact.shipped:
            print(f"for the device: {folder / artifact.path}, {artifact.bytes / 1e6:.1f} MB")
    for check in ("compiled", "fidelity", "numerics", "accuracy"):
        if result.verdicts[check].status != "pass":
            sys.exit(f"{check} did not pass: {result.verdicts[check].reason}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/target_qnn_htp"))
