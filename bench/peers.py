"""Dovetail, ``onnxruntime.quantization`` and ``aimet-onnx`` side by side: cost of calibration, and what comes out.

Every tool quantizes in a process of its own; every emitted model is scored by the same code on the same held-out data.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnxruntime.capi.onnxruntime_pybind11_state import Fail as OrtFail

from bench.child import MEGABYTE, ROOT, ChildFailed, ask
from bench.score import VIT_TINY, WAYS, Scorer, Subject, subject
from dovetail import zoo

AIMET = "aimet-onnx==2.42.0"
AIMET_VARIABLE = "DOVETAIL_AIMET_PYTHON"
AIMET_FOLDER = "bench/.venvs/aimet"


@dataclass(frozen=True)
class Peer:
    """A tool, the module that drives it, and its methods that are compared."""

    name: str
    module: str
    methods: tuple[str, ...]


PEERS = (
    Peer("dovetail", "bench.peer_dovetail", ("minmax", "percentile", "mse", "entropy")),
    Peer(
        "onnxruntime",
        "bench.peer_onnxruntime",
        ("MinMax", "MinMax reduce_range", "Percentile", "Entropy", "defaults"),
    ),
    Peer("aimet", "bench.peer_aimet", ("min_max", "percentile", "tf_enhanced")),
)


def python_of(peer: Peer) -> Path | None:
    """The Python that runs a peer; None if it is not installed."""
    if peer.name != "aimet":
        return Path(sys.executable)
    found = Path(os.environ.get(AIMET_VARIABLE) or ROOT / AIMET_FOLDER / "bin" / "python")
    return found if found.exists() else None


def not_checked(peer: Peer) -> str:
    """What to say of a peer that is not installed."""
    pip = f"{AIMET_FOLDER}/bin/pip"
    return (
        f"{peer.name:12}not checked: aimet-onnx is not installed; to install: python3 -m venv {AIMET_FOLDER} && "
        f"{pip} install torch==2.13.0 {AIMET} (2 GB), or set {AIMET_VARIABLE}"
    )


class Table:
    """The lines about one model, printed as they are measured."""

    def __init__(self, about: Subject, folder: Path, float_seconds: float) -> None:
        self._folder = folder
        self._float_seconds = float_seconds
        self._data = folder / "calibration.npz"
        np.savez(self._data, **about.calibration)
        self._about = about
        self._scorer = Scorer(about)

    def head(self) -> None:
        count = len(next(iter(self._about.calibration.values())))
        figure = "agree" if self._about.metric is None else "acc."
        print(f"\n{self._about.name}: {count} samples to calibrate, {len(self._scorer.samples)} held out")
        print(f"{'':57}" + "".join(f"| {way:20}" for way in WAYS))
        ways = "".join(f"|{'dB':>6}{figure:>8}{'time':>7}" for _ in WAYS)
        print(f"{'tool':12}{'method':20}{'calibrate':>9}{'whole':>8}{'peak':>8}{ways}")
        print(f"{'float':12}{'':20}{'1.00x':>9}{'':16}|{'':6}{self._scorer.float_accuracy:8.4f}{'1.00x':>7}")

    def row(self, peer: Peer, method: str, python: Path) -> None:
        output = self._folder / f"{peer.name}_{method}.onnx".replace(" ", "_")
        request = {
            "model": str(self._about.path),
            "data": str(self._data),
            "method": method,
            "output": str(output),
            "float_seconds": self._float_seconds,
        }
        try:
            cost = ask(peer.module, request, python)
        except ChildFailed as error:
            print(f"{peer.name:12}{method:21}failed: {str(error).splitlines()[-1]}", flush=True)
            return
        ratio = cost["calibrate_s"] / cost["float_s"]
        peak = cost["peak_bytes"] / MEGABYTE
        scores = "".join(self._scored(output, way) for way in WAYS)
        print(f"{peer.name:12}{method:20}{ratio:8.2f}x{cost['whole_s']:6.1f} s{peak:5.0f} MB{scores}", flush=True)

    def _scored(self, output: Path, way: str) -> str:
        try:
            score = self._scorer.score(output, way)
        except OrtFail:
            return f"|{'does not load':>21}"
        return f"|{score.sqnr_db:6.2f}{score.accuracy:8.4f}{score.slowdown:6.2f}x"


def main(arguments: list[str] | None = None) -> None:
    models = (VIT_TINY, *zoo.names())
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=models, action="append", help="only this one (repeatable)")
    parser.add_argument("--peer", choices=[peer.name for peer in PEERS], action="append", help="only this one")
    parser.add_argument("--methods", type=int, help="only the first so many methods of each tool")
    parser.add_argument("--samples", type=int, default=16, help="to calibrate the ViT-tiny with")
    parser.add_argument("--zoo-samples", type=int, default=64, help="to calibrate the shipped models with")
    parser.add_argument("--held-out", type=int, help="score on no more than so many samples")
    parser.add_argument("--layers", type=int, default=12, help="of the ViT-tiny")
    parser.add_argument("--float-seconds", type=float, default=0.3, help="least CPU time of each float forward")
    options = parser.parse_args(arguments)
    print("calibrate: CPU time over the float forward of the same samples, sessions' creation left out; whole: CPU")
    print("seconds from the float file to the emitted one; peak: memory of the tool's process. dB: SQNR of the worst")
    print("output against float; time: CPU time of a forward over float's. Sessions: " + ", ".join(WAYS) + ".")
    peers = [peer for peer in PEERS if options.peer is None or peer.name in options.peer]
    for name in options.model or models:
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            samples = options.samples if name == VIT_TINY else options.zoo_samples
            made = subject(name, Path(folder), samples=samples, held_out=options.held_out, layers=options.layers)
            table = Table(made, Path(folder), options.float_seconds)
            table.head()
            for peer in peers:
                python = python_of(peer)
                if python is None:
                    print(not_checked(peer))
                    continue
                for method in peer.methods[: options.methods]:
                    table.row(peer, method, python)


if __name__ == "__main__":
    main()
