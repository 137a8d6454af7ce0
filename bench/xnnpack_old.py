"""Reproduce a program that does not load: the stock quantizer of executorch 1.3.1, in its own environment, and ours.

A DeiT whose class token has amplitude 4 is quantized and lowered with executorch 1.3.1's own tools. The program is
loaded with the runtimes of 1.3.1 and of the current version; then the same with our program.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

from bench.child import ROOT
from bench.xnnpack_programs import ours, sqnr_db

HOME = ROOT / "bench/.venvs/executorch-1.3.1"
# executorch 1.3.1 requires torch 2.12 or later and torchao 0.17.0 or later. torchao 0.17.0 fails with torch 2.13
# ("'aten.transpose' has no overload name 'Dimname'"), so the versions that this project uses are installed.
_WITH_DEPENDENCIES = ("torch==2.13.0", "numpy", "flatbuffers", "packaging", "pyyaml", "ruamel.yaml", "tabulate")
_WITHOUT_DEPENDENCIES = ("executorch==1.3.1", "torchao==0.18.0")
# The 1.3.1 runtime calls a function of torch 2.12 that torch 2.13 renamed; this shim forwards the old name.
_SHIM = """namespace c10 { class StorageImpl; namespace impl { namespace cow {
void materialize_cow(StorageImpl*);
void materialize_cow_storage(StorageImpl& storage) { materialize_cow(&storage); }
}}}
"""
AMPLITUDE = 4.0


class Deit(nn.Module):
    """A Hugging Face DeiT with few layers, random weights and a class token of a given amplitude."""

    def __init__(self, amplitude: float, layers: int = 2) -> None:
        from transformers import DeiTConfig, DeiTForImageClassification

        super().__init__()
        torch.manual_seed(0)
        sizes = {"hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768, "image_size": 64}
        self.model = DeiTForImageClassification(DeiTConfig(**sizes, num_hidden_layers=layers, num_labels=10))
        token = self.model.deit.embeddings.cls_token
        with torch.no_grad():
            token.copy_(amplitude * torch.randn(token.shape))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x).logits
        return logits


def main() -> None:
    error = install(HOME)
    if error:
        print(f"executorch 1.3.1 was not run: {error}")
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shim = _build_shim(folder)
        print(f"DeiT, 2 layers, random weights, class token of amplitude {AMPLITUDE:g}, static int8")
        _compare(folder, shim)


def _compare(folder: Path, shim: Path | None) -> None:
    module = Deit(AMPLITUDE).eval()
    samples = [torch.randn(1, 3, 64, 64) for _ in range(4)]
    torch.export.save(torch.export.export(module, (samples[0],), strict=False), folder / "model.pt2")
    torch.save(samples, folder / "samples.pt")
    stock_path, our_path = folder / "stock.pte", folder / "ours.pte"
    stock_error = _run_old("lower", str(folder / "model.pt2"), str(folder / "samples.pt"), str(stock_path))
    program = ours(module, samples, our_path, "w8a8")
    for label, path, error in (
        ("stock, 1.3.1's quantizer", stock_path, stock_error),
        ("ours", our_path, program.error),
    ):
        if error:
            print(f"    {label:26} was not lowered: {error}")
            continue
        print(f"    {label:26} under 1.3.1: {_run_old('load', str(path), preload=shim) or 'loads'}")
        print(f"    {'':26} under 1.5.1: {_run_current(path, samples[0], module)}")


def install(home: Path) -> str:
    """Create the environment if it does not exist; return an error message, empty if it succeeds."""
    if (home / "done").exists():
        return ""
    pip = [str(home / "bin/python"), "-m", "pip", "install", "--quiet"]
    steps = [
        [sys.executable, "-m", "venv", "--clear", str(home)],
        [*pip, *_WITH_DEPENDENCIES],
        [*pip, "--no-deps", *_WITHOUT_DEPENDENCIES],
    ]
    for step in steps:
        process = subprocess.run(step, capture_output=True, text=True, check=False)
        if process.returncode:
            message = (process.stderr.strip() or "no message").splitlines()[-1]
            return f"its environment could not be created ({message})"
    (home / "done").touch()
    return ""


def _build_shim(folder: Path) -> Path | None:
    """Compile the library with the function that the old runtime misses; None if there is no C++ compiler."""
    source, library = folder / "shim.cpp", folder / "shim.so"
    source.write_text(_SHIM)
    try:
        subprocess.run(["c++", "-shared", "-fPIC", "-o", library, source], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return library


def _run_old(*arguments: str, preload: Path | None = None) -> str:
    """Run the child in the old environment; return its error message with that of the runtime, empty if it succeeds."""
    path = f"{HOME / 'bin'}{os.pathsep}{os.environ['PATH']}"  # for flatc
    env = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
    env.pop("PYTHONPATH", None)
    if preload is not None:
        env["LD_PRELOAD"] = str(preload)
    command = [str(HOME / "bin/python"), "bench/xnnpack_old_child.py", *arguments]
    process = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    lines = process.stdout.strip().splitlines()
    try:
        error = str(json.loads(lines[-1])["error"])
    except (IndexError, ValueError, KeyError):
        last_line = (process.stderr.strip().splitlines() or ["no message"])[-1]
        error = f"exited with code {process.returncode}: {last_line}"
    return _with_runtime_messages(error, process.stderr + process.stdout)


def _run_current(path: Path, sample: Tensor, module: nn.Module) -> str:
    """Load and run a program with the installed runtime in a child process; return the SQNR or the error."""
    code = "import sys; from pathlib import Path; from dovetail.targets.xnnpack.session import load_program as f; "
    code += "import numpy, torch; m = f(Path(sys.argv[1])); "
    code += "numpy.save(sys.argv[3], m.execute([torch.load(sys.argv[2])])[0].numpy())"
    input_path, output_path = path.with_suffix(".in.pt"), path.with_suffix(".out.npy")
    torch.save(sample, input_path)
    command = [sys.executable, "-c", code, str(path), str(input_path), str(output_path)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        return _with_runtime_messages(process.stderr.strip().splitlines()[-1], process.stderr + process.stdout)
    import numpy as np

    with torch.no_grad():
        return f"loads, runs, {sqnr_db(module(sample).numpy(), np.load(output_path)):.1f} dB against float"


def _with_runtime_messages(error: str, log: str) -> str:
    """Put the runtime's messages about a failed load from the log before an error; empty stays empty."""
    if not error:
        return ""
    messages = [
        line.partition("] ")[2] for line in log.splitlines() if "Failed to create" in line or "Init failed" in line
    ]
    return "; ".join(dict.fromkeys([*messages, error]))
