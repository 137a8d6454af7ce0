"""Problem 3: int4 weights with a float scale per block, which HTP does not run in integers, become LPBQ.

A shipped model with such weights, written for ONNX Runtime, stands for the model of another tool. ``repair --to-lpbq``
chooses integer scales per block, rounds the weights on the new grid, and reads every scale back.

Run it with ``python examples/int4_blocks_on_htp.py``. It needs the extra ``[qnn]``, and writes below
``runs/int4_blocks_on_htp``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import dovetail
from dovetail import zoo


def main(folder: Path) -> None:
    """Write int4 blocks with float scales, convert them, and print what was converted and what was read back."""
    shipped = zoo.load("vit_digits")
    data = {
        "calibration": {"images": shipped.calib()["images"][:16]},
        "evaluation": {**shipped.eval(), **shipped.targets()},
        "metric": shipped.metric,
        "force": True,
    }
    given = dovetail.fit(
        shipped.model_path, target="ort-cpu", precision="w4a16-bq", block_size=32, output=folder / "given", **data
    )
    result = dovetail.repair(
        folder / "given" / "model.onnx",
        target="qnn-htp:sm8550",
        to_lpbq=True,
        float_model=shipped.model_path,
        output=folder / "repaired",
        **data,
    )
    if result.verdicts["compiled"].status != "pass":
        sys.exit(result.verdicts["compiled"].reason)
    record = json.loads((folder / "repaired" / "repair.json").read_bytes())
    (conversion,) = [rewrite for rewrite in record["rewrites"] if rewrite["name"] == "to_lpbq"]
    print(f"{len(conversion['changed'])} weights have integer scales now, {len(conversion['declined'])} have not")
    print("  {where}: {what}".format(**conversion["changed"][0]))
    in_blocks = [row for row in result.plan if row.granularity == "expanded_block"]
    print(f"planned with integer scales per block: {len(in_blocks)} weights")
    for check in ("repaired", "compiled", "fidelity", "numerics"):
        print(f"{check:9} {result.verdicts[check].status}: {result.verdicts[check].reason}")
    for name, run in (("given", given), ("repaired", result)):
        print(f"top-1 {name}: {run.metrics.accuracy.figures['simulation']['top1']:.4f}")
    if result.failed or len(in_blocks) != len(conversion["changed"]) or conversion["declined"]:
        sys.exit("not every block was converted, or a verdict failed")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/int4_blocks_on_htp"))
