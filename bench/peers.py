"""Compare Dovetail, ``onnxruntime.quantization`` and ``aimet-onnx``: calibration cost and accuracy of the result.

Every tool quantizes in its own process; every emitted model is scored by the same code on the same held-out data.
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

from bench.child import MEGABYTE, ROOT, ChildFailed, run_child
from bench.score import SESSION_MODES, VIT_TINY, Scorer, Subject, load_subject
from dovetail import zoo

AIMET = "aimet-onnx==2.42.0"
AIMET_VARIABLE = "DOVETAIL_AIMET_PYTHON"
AIMET_FOLDER = "bench/.venvs/aimet"


@dataclass(frozen=True)
class Peer:
    """One of the quantizers compared, the module that runs it, and the calibration methods to compare."""

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
    """The Python of the environment that has the quantizer; None if it is not installed."""
    if peer.name != "aimet":
        return Path(sys.executable)
    python = Path(os.environ.get(AIMET_VARIABLE) or ROOT / AIMET_FOLDER / "bin" / "python")
    return python if python.exists() else None


def not_checked(peer: Peer) -> str:
    """The line that is printed for a quantizer that is not installed."""
    pip = f"{AIMET_FOLDER}/bin/pip"
    return (
        f"{peer.name:12}not checked: aimet-onnx is not installed; to install: python3 -m venv {AIMET_FOLDER} && "
        f"{pip} install torch==2.13.0 {AIMET} (2 GB), or set {AIMET_VARIABLE}"
    )


class Table:
    """The table of one model; each row is printed when it is measured."""

    def __init__(self, subject: Subject, folder: Path, float_seconds: float) -> None:
        self._folder = folder
        self._float_seconds = float_seconds
        self._data = folder / "calibration.npz"
        np.savez(self._data, **subject.calibration)
        self._subject = subject
        self._scorer = Scorer(subject)

    def head(self) -> None:
        """Print the title, the column headings and the float row."""
        count = len(next(iter(self._subject.calibration.values())))
        metric = "agree" if self._subject.metric is None else "acc."
        print(f"\n{self._subject.name}: {count} calibration samples, {len(self._scorer.samples)} held out")
        print(f"{'':57}" + "".join(f"| {mode:20}" for mode in SESSION_MODES))
        mode_columns = "".join(f"|{'dB':>6}{metric:>8}{'time':>7}" for _ in SESSION_MODES)
        print(f"{'tool':12}{'method':20}{'calibrate':>9}{'total':>8}{'peak':>8}{mode_columns}")
        print(f"{'float':12}{'':20}{'1.00x':>9}{'':16}|{'':6}{self._scorer.float_accuracy:8.4f}{'1.00x':>7}")

    def row(self, peer: Peer, method: str, python: Path) -> None:
        """Quantize with one method of one quantizer, score the result and print the row."""
        output = self._folder / f"{peer.name}_{method}.onnx".replace(" ", "_")
        request = {
            "model": str(self._subject.path),
            "data": str(self._data),
            "method": method,
            "output": str(output),
            "float_seconds": self._float_seconds,
        }
        try:
            cost = run_child(peer.module, request, python)
        except ChildFailed as error:
            print(f"{peer.name:12}{method:21}failed: {str(error).splitlines()[-1]}", flush=True)
            return
        ratio = cost["calibrate_s"] / cost["float_s"]
        peak = cost["peak_bytes"] / MEGABYTE
        scores = "".join(self._scored(output, mode) for mode in SESSION_MODES)
        print(f"{peer.name:12}{method:20}{ratio:8.2f}x{cost['total_s']:6.1f} s{peak:5.0f} MB{scores}", flush=True)

    def _scored(self, output: Path, mode: str) -> str:
        try:
            score = self._scorer.score(output, mode)
        except OrtFail:
            return f"|{'does not load':>21}"
        return f"|{score.sqnr_db:6.2f}{score.accuracy:8.4f}{score.slowdown:6.2f}x"


def main(arguments: list[str] | None = None) -> None:
    models = (VIT_TINY, *zoo.names())
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=models, action="append", help="only this model (repeatable)")
    parser.add_argument("--peer", choices=[peer.name for peer in PEERS], action="append", help="only this tool")
    parser.add_argument("--methods", type=int, help="only the first N methods of each tool")
    parser.add_argument("--samples", type=int, default=16, help="calibration samples for the ViT-tiny")
    parser.add_argument("--zoo-samples", type=int, default=64, help="calibration samples for the shipped models")
    parser.add_argument("--held-out", type=int, help="score on at most N held-out samples")
    parser.add_argument("--layers", type=int, default=12, help="layers of the ViT-tiny")
    parser.add_argument("--float-seconds", type=float, default=0.3, help="minimum CPU seconds of float inference")
    options = parser.parse_args(arguments)
    print("calibrate: CPU time relative to float inference of the same samples, without session creation")
    print("total: CPU seconds from the float file to the emitted file; peak: memory of the tool's process")
    print("dB: SQNR of the worst output against float; time: CPU time of inference relative to float")
    print(f"session modes: {', '.join(SESSION_MODES)}")
    peers = [peer for peer in PEERS if options.peer is None or peer.name in options.peer]
    for name in options.model or models:
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            samples = options.samples if name == VIT_TINY else options.zoo_samples
            subject = load_subject(
                name, Path(folder), samples=samples, held_out=options.held_out, layers=options.layers
            )
            table = Table(subject, Path(folder), options.float_seconds)
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
