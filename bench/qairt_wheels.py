"""Is it fixed in a newer QAIRT? The block of the first public report, compiled with every onnxruntime-qnn wheel.

``python -m bench.qairt_wheels [wheel ...]``: W8A16, HTP v73 (SoC 52), 8 MB VTCM; tokens [4,257,384] in windows and
[1,1028,384] globally. Each wheel has an environment of its own, which is made in ``bench/.venvs``. It needs torch.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import dovetail
from bench.child import ROOT, ChildFailed, run_child
from dovetail.targets.htp.chips import chip_named
from dovetail.targets.qnn_htp.naive import export_naive
from dovetail.targets.qnn_htp.options import read_options
from dovetail.targets.qnn_htp.qairt import WHEELS

SHAPES = {"windows": (4, 257, 384), "global": (1, 1028, 384)}
CHIP, VTCM_MB = "soc52", "8"
# Wheels before 2.4.0 do not start with onnxruntime 1.28 and later.
ONNXRUNTIME = {"2.3.0": "1.27.0"}
NEWEST_ONNXRUNTIME = "1.31.1"
TIME_LIMIT_S = 900


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.qairt_wheels", description=__doc__)
    parser.add_argument("wheel", nargs="*", help=f"one or more of {', '.join(WHEELS.values())} (default: all)")
    wheels = parser.parse_args(arguments).wheel or list(WHEELS.values())
    versions = {wheel: ".".join(map(str, qairt)) for qairt, wheel in WHEELS.items()}
    if unknown := [wheel for wheel in wheels if wheel not in versions]:
        parser.error(f"unknown wheel {unknown[0]!r}; expected one of {', '.join(versions)}")
    with tempfile.TemporaryDirectory(prefix="dovetail-bench-") as name:
        models = {label: path for shape in SHAPES for label, path in _models(shape, Path(name)).items()}
        print(f"| wheel | QAIRT | {' | '.join(models)} |")
        print("|---|---|" + "---|" * len(models))
        for wheel in wheels:
            cells = [_compiled(python_of(wheel), path) for path in models.values()]
            print(f"| {wheel} | {versions[wheel]} | {' | '.join(cells)} |", flush=True)


def _models(shape: str, folder: Path) -> dict[str, Path]:
    """The block as onnxruntime quantizes it, MatMul and Add apart, and as Dovetail does; nothing is compiled."""
    from tests.networks import vit_export  # needs torch

    block, size = vit_export.block(SHAPES[shape]), SHAPES[shape]
    samples = np.random.default_rng(0).standard_normal((4, *size)).astype(np.float32)
    options = read_options(chip_named(CHIP), {})
    naive = folder / f"{shape}_naive"
    naive.mkdir()
    error = export_naive(options, block, "w8a16", [{"x": sample} for sample in samples], {}, naive / "model.onnx")
    if error:
        raise RuntimeError(error)
    run = folder / f"{shape}_dovetail"
    dovetail.fit(block, target=f"qairt:2.51/{CHIP}", calibration={"x": samples}, precision="w8a16", output=run)
    return {f"{shape}, MatMul + Add": naive / "model.onnx", f"{shape}, rewritten": run / "model.onnx"}


def python_of(wheel: str) -> Path:
    """The Python of the environment with a wheel, which is made if it does not exist."""
    folder = ROOT / "bench" / ".venvs" / f"onnxruntime-qnn-{wheel}"
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        packages = [f"onnxruntime=={ONNXRUNTIME.get(wheel, NEWEST_ONNXRUNTIME)}", f"onnxruntime-qnn=={wheel}"]
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *packages, "numpy"], check=True)
    return python


def _compiled(python: Path, model: Path) -> str:
    """``compiles``, or the first error of the compiler."""
    options = {"soc_model": str(chip_named(CHIP).soc), "vtcm_mb": VTCM_MB}
    options |= {"htp_graph_finalization_optimization_mode": "3", "enable_htp_fp16_precision": "1"}
    request = {"model": str(model), "options": options}
    try:
        answer = run_child("bench.qairt_wheels_child", request, python, time_limit_s=TIME_LIMIT_S)
    except ChildFailed as error:
        return f"failed: {str(error).splitlines()[-1][:120]}"
    return answer["error"] or "compiles"


if __name__ == "__main__":
    main()
