"""Run the model on the samples in this folder and write its outputs.

    python run_on_device.py [--model FILE] [--backend PATH] [--outputs DIR]

Requires Python, NumPy and what device_session.py imports. Copy the outputs to the PC on which the model was fitted, and
run there:

    dovetail verify RUN --device-outputs DIR
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import platform
import sys
from pathlib import Path
from typing import Any

import numpy as np


def main(arguments: list[str] | None = None) -> int:
    """Read the inputs, run the model and write the outputs; ``ran.json``, the record of the run, is written last."""
    here = Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description="Run the model on the samples in this folder and write its outputs.")
    parser.add_argument("--model", type=Path, help="model file to run (default: `run` in manifest.json)")
    parser.add_argument(
        "--backend", default="", help="path of the vendor's backend library (default: the one device_session.py finds)"
    )
    parser.add_argument(
        "--outputs",
        type=Path,
        default=here / "outputs",
        help="folder to write the outputs to (default: outputs, next to this script)",
    )
    options = parser.parse_args(arguments)
    content = (here / "manifest.json").read_bytes()
    manifest = json.loads(content)
    changed = [name for name, digest in manifest["models"].items() if not _is_unchanged(here / name, digest)]
    if changed and options.model is None:
        print(f"{changed[0]} is missing or was changed; copy the whole device folder again", file=sys.stderr)
        return 2
    sys.path.insert(0, str(here))
    session = importlib.import_module("device_session")
    model = options.model or here / manifest["run"]
    run = session.open_model(str(model), options.backend)
    options.outputs.mkdir(parents=True, exist_ok=True)
    if hasattr(session, "export_to"):  # the vendor's tool also writes layer information and times
        session.export_to(options.outputs)
    for number in range(manifest["samples"]):
        feed = {t["name"]: _read(here / f"input_{number:03d}" / f"{t['file']}.raw", t) for t in manifest["inputs"]}
        outputs = run(feed)
        folder = options.outputs / f"{number:03d}"
        folder.mkdir(exist_ok=True)
        for tensor in manifest["outputs"]:
            np.save(folder / f"{tensor['file']}.npy", outputs[tensor["name"]], allow_pickle=False)
        print(f"sample {number + 1} of {manifest['samples']}")
    record = {
        "manifest_sha256": hashlib.sha256(content).hexdigest(),
        "model": model.name,
        "machine": f"{platform.system()} {platform.machine()}",
        "emulated": session.emulated(),
        "versions": session.versions(),
    }
    (options.outputs / "ran.json").write_text(json.dumps(record, indent=1))
    print(f"outputs are in {options.outputs}")
    return 0


def _is_unchanged(path: Path, digest: str) -> bool:
    state = hashlib.sha256()
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            state.update(chunk)
    return state.hexdigest() == digest


def _read(path: Path, tensor: dict[str, Any]) -> Any:
    """Read a raw file: little endian, in C order."""
    array = np.fromfile(path, np.dtype(tensor["dtype"]).newbyteorder("<"))
    return array.reshape(tensor["shape"]).astype(tensor["dtype"])


if __name__ == "__main__":
    sys.exit(main())
