"""Problem 2: float16 beside integers through the converter of QAIRT 2.33, to which a device is locked.

The last decoder layer of a shipped detector stays in float16. ``fit`` writes the ways to convert it, ranked; ``check``
says what the converter makes of the encodings file, as it is usually called and as it has to be called.

Run it with ``python examples/mixed_precision_on_qairt.py``. It needs the core only, and writes
``runs/mixed_precision_on_qairt``. Without the SDK everything is a prediction, and the verdicts say so.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import dovetail
from dovetail import zoo

TARGET = "qairt:2.33/v75"
CALLS = {
    "--input_list": {},
    "--float_fallback --float_bitwidth 16": {"input_list": "0", "float_fallback": "1", "float_bitwidth": "16"},
}


def main(folder: Path) -> None:
    """Fit with one float16 layer, print the ranked ways, and check the written encodings under two calls."""
    shipped = zoo.load("detector_scenes")
    result = dovetail.fit(
        shipped.model_path,
        target=TARGET,
        precision="w8a16",
        keep=("decoder.1*=fp16",),
        calibration={"images": shipped.calib()["images"][:4]},
        output=folder,
        force=True,
    )
    print(f"compiled {result.verdicts['compiled'].status}: {result.verdicts['compiled'].reason}")
    ways = json.loads((folder / "qairt" / "ways.json").read_bytes())["ways"]
    for way in ways:
        print(f"{way['name']:9} {way['can']:8} {way['why']}")

    model, encodings = (folder / "qairt" / "fallback" / name for name in ("model.onnx", "encodings.json"))
    silent = {}
    for call, option in CALLS.items():
        findings = dovetail.check(model, target=TARGET, encodings=encodings, option=option)
        silent[call] = [str(finding.place) for finding in findings if finding.code == "Q711"]
        print(f"converter called with {call}: {len(silent[call])} tensors silently become 8 bit")
        for name in silent[call][:3]:
            print(f"  {name}")
    if ways[0]["name"] != "fallback" or ways[0]["can"] != "yes":
        sys.exit("the first way is not the encodings with float fallback")
    if not silent["--input_list"] or any(silent[call] for call in list(CALLS)[1:]):
        sys.exit("the calls do not differ as expected")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/mixed_precision_on_qairt"))
