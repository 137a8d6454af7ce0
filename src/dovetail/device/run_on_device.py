"""Run the samples of this folder on the device, and leave its outputs beside them.

    python run_on_device.py [--model FILE] [--backend PATH] [--outputs DIR]

Needs Python, NumPy and what device_session.py imports. Copy the outputs back, then, where the model was fitted:

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
    """The whole run: read, compute, write; the record of it comes last."""
    here = Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description="Run the samples of this folder on the device.")
    parser.add_argument("--model", type=Path, help="the file to run, instead of the one that the manifest names")
    parser.add_argument("--backend", default="", help="the vendor's backend library, instead of the usual one")
    parser.add_argument("--outputs", type=Path, default=here / "outputs", help="where the outputs go")
    given = parser.parse_args(arguments)
    content = (here / "manifest.json").read_bytes()
    manifest = json.loads(content)
    changed = [name for name, digest in manifest["models"].items() if not _is_whole(here / name, digest)]
    if changed and given.model is None:
        print(f"{changed[0]} is missing, or not the file that this folder was made with", file=sys.stderr)
        return 2
    sys.path.insert(0, str(here))
    session = importlib.import_module("device_session")
    model = given.model or here / manifest["run"]
    run = session.open_model(str(model), given.backend)
    given.outputs.mkdir(parents=True, exist_ok=True)
    if hasattr(session, "export_to"):  # its tool can say more than outputs
        session.export_to(given.outputs)
    for number in range(manifest["samples"]):
        feed = {t["name"]: _read(here / f"input_{number:03d}" / f"{t['file']}.raw", t) for t in manifest["inputs"]}
        outputs = run(feed)
        folder = given.outputs / f"{number:03d}"
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
    (given.outputs / "ran.json").write_text(json.dumps(record, indent=1))
    print(f"outputs are in {given.outputs}")
    return 0


def _is_whole(path: Path, digest: str) -> bool:
    state = hashlib.sha256()
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        while piece := stream.read(1 << 20):
            state.update(piece)
    return state.hexdigest() == digest


def _read(path: Path, tensor: dict[str, Any]) -> Any:
    """A raw file: little endian, in C order."""
    array = np.fromfile(path, np.dtype(tensor["dtype"]).newbyteorder("<"))
    return array.reshape(tensor["shape"]).astype(tensor["dtype"])


if __name__ == "__main__":
    sys.exit(main())
