"""ExecuTorch XNNPACK: fit a shipped model in int8, run the program, list what XNNPACK does not run.

Run it with ``python examples/target_xnnpack.py``. It needs the extra ``[xnnpack]``, and writes ``runs/target_xnnpack``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import dovetail
from dovetail import zoo


def main(folder: Path) -> None:
    """Lower the model, run it in the ExecuTorch runtime, and print what was delegated to XNNPACK."""
    shipped = zoo.load("vit_digits")
    result = dovetail.fit(
        shipped.model_path,
        target="xnnpack",
        precision="w8a8",
        baselines="none",  # without it, the latency is compared with that of the stock fp32 program
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
    placement = result.metrics.placement
    accuracy = result.metrics.accuracy.figures
    print(f"top-1 in float {accuracy['float']['top1']:.4f}, on the target {accuracy['target']['top1']:.4f}")
    print(f"XNNPACK runs {placement.delegated} operations in {placement.partitions} partition")
    for operation in placement.undelegated:
        print(f"  not {operation.operation} of {operation.node}: {operation.reason}")
    for check in ("compiled", "fidelity", "numerics", "accuracy"):
        if result.verdicts[check].status != "pass":
            sys.exit(f"{check} did not pass: {result.verdicts[check].reason}")
    if placement.undelegated:
        sys.exit("XNNPACK does not run the whole network")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/target_xnnpack"))
