"""Qualcomm's SDK, if it is installed: which one, run the script of the chosen way, read back what was converted."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from dovetail.backend import Artifact, CompileResult, Probe
from dovetail.targets.qairt.commands import HOST, ROOTS, SCRIPT
from dovetail.targets.qairt.options import QairtFacts

_TOOL = Path("bin") / HOST / "qnn-context-binary-generator"
# The version in the name of the SDK's folder, which is how it is unpacked, or in its own file.
_VERSION = re.compile(r"(\d+\.\d+\.\d+(?:\.\d+)?)")
_FILE = "sdk.yaml"
NET = "qairt_net"


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


def run_script(facts: QairtFacts, folder: Path, artifacts: tuple[Artifact, ...], log: Path) -> CompileResult:
    """Run the script of a way; the artifacts then include what the converter wrote about its graph."""
    try:
        done = subprocess.run(
            ["/bin/sh", str(folder / SCRIPT)],
            capture_output=True,
            text=True,
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
    contexts = [Artifact("context", p, made_by, shipped=True) for p in sorted((folder / "context").glob("*.bin"))]
    return CompileResult((*artifacts, *graphs, *contexts), log=text)
