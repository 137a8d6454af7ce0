"""NVIDIA GPUs: build a shipped model in FP8 for sm89 without a GPU, and count the fused attention blocks.

Run it with ``python examples/target_tensorrt.py``. It needs the extra ``[tensorrt]``, and writes
``runs/target_tensorrt``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import dovetail
from dovetail import zoo


def main(folder: Path) -> None:
    """Build the engine; ``fidelity`` fails if an attention block is not one FP8 kernel."""
    shipped = zoo.load("vit_digits")
    result = dovetail.fit(
        shipped.model_path,
        target="tensorrt:sm89",
        precision="fp8",
        range="mse",
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
    (attention,) = [note for note in result.notes if "attention blocks" in note]
    print(attention)
    if "as one kernel in the planned type: 4" not in attention:
        sys.exit("not all four attention blocks are one FP8 kernel")
    for check in ("compiled", "fidelity", "accuracy"):
        if result.verdicts[check].status != "pass":
            sys.exit(f"{check} did not pass: {result.verdicts[check].reason}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/target_tensorrt"))
