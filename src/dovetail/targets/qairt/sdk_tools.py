"""Qualcomm's SDK, if it is installed: which one, run the script of the chosen way, read back what was converted."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from dovetail.backend import Artifact, CompileResult, Probe
from dovetail.targets.qairt.commands import BACKEND, HOST, ROOTS, SCRIPT
from dovetail.targets.qairt.options import QairtFacts

_TOOL = Path("bin") / HOST / "qnn-context-binary-generator"
# The version in the name of the SDK's folder, which is how it is unpacked, or in its own file.
_VERSION = re.compile(r"(\d+\.\d+\.\d+(?:\.\d+)?)")
_FILE = "sdk.yaml"
NET, CONTEXT = "qairt_net", "context"


def sdk_root(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The folder of the SDK; None if no variable names one."""
    named = next((environment[name] for name in ROOTS if environment.get(name)), None)
    return None if named is None else Path(named)


def probe(facts: QairtFacts) -> Probe:
    """Whether the SDK of the target's version is installed."""
    root = sdk_root()
    if root is None:
        return Probe(
            False,
            {},
            f"the QAIRT SDK is not installed: the files, commands and a prediction for QAIRT {facts.sdk_text} were "
            f"written, but nothing was checked; set {ROOTS[0]} to its folder to run them",
        )
    if not (root / _TOOL).is_file():
        return Probe(False, {}, f"{ROOTS[0]}={root}: there is no {_TOOL}, so that this is not the QAIRT SDK")
    version = _version(root)
    if version.split(".")[:2] != facts.sdk_text.split("."):
        found = version or "of an unknown version"
        return Probe(False, {"qairt": version}, f"{ROOTS[0]}={root} is QAIRT {found}, not {facts.sdk_text}")
    return Probe(True, {"qairt": version})


def _version(root: Path) -> str:
    file = root / _FILE
    text = file.read_text(errors="replace") if file.is_file() else root.resolve().name
    match = _VERSION.search(text)
    return match[1] if match else ""


def part_names(folder: Path) -> list[str]:
    """The graphs whose context binaries the script of a folder writes."""
    names: list[str] = json.loads((folder / BACKEND).read_bytes())["graphs"][0]["graph_names"]
    return names


def run_script(
    facts: QairtFacts, folder: Path, artifacts: tuple[Artifact, ...], log: Path, own_model: Path | None = None
) -> CompileResult:
    """Run the script of a way; the artifacts then include what the converter wrote about its graphs.

    ``own_model``: the caller's own ONNX file, where that is converted.
    """
    for earlier in (*(folder / CONTEXT).glob("*.bin"), *folder.glob("*_net.json")):
        earlier.unlink()
    try:
        done = subprocess.run(
            ["/bin/sh", str(folder / SCRIPT), *([] if own_model is None else [str(own_model)])],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=facts.limits.time_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        error = f"{SCRIPT} did not end within {facts.limits.time_s:g} s"
        return CompileResult(artifacts, error=error, finished=False)
    text = done.stdout + done.stderr
    log.write_text(text)
    if done.returncode:
        lines = [line for line in text.strip().splitlines() if line.strip()]
        error = f"{SCRIPT} ended with code {done.returncode}: {lines[-1] if lines else 'no message'}"
        return CompileResult(artifacts, error=error, log=text)
    made_by = f"QAIRT {facts.sdk_text}"
    graphs = [Artifact(NET, path, made_by) for path in sorted(folder.glob("*_net.json"))]
    contexts = [Artifact(CONTEXT, p, made_by, shipped=True) for p in sorted((folder / CONTEXT).glob("*.bin"))]
    made = {context.path.stem for context in contexts}
    if missing := [name for name in part_names(folder) if name not in made]:
        error = f"{SCRIPT} ended without an error, but wrote no {', '.join(f'{CONTEXT}/{n}.bin' for n in missing)}"
        return CompileResult((*artifacts, *graphs, *contexts), error=error, log=text)
    return CompileResult((*artifacts, *graphs, *contexts), log=text)
