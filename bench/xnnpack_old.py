"""The failure that this project began with, live: executorch 1.3.1 in an environment of its own, and ours beside it.

A DeiT whose class token has amplitude 4 is quantized and lowered by executorch 1.3.1's own tools. What comes out is
loaded by its runtime and by the newest one; then ours.
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
# executorch 1.3.1 asks for torch 2.12 or later and torchao 0.17.0 or later. torchao 0.17.0 fails under torch 2.13
# ("'aten.transpose' has no overload name 'Dimname'"), so both are those of today.
_WITH_DEPENDENCIES = ("torch==2.13.0", "numpy", "flatbuffers", "packaging", "pyyaml", "ruamel.yaml", "tabulate")
_ALONE = ("executorch==1.3.1", "torchao==0.18.0")
# Its runtime was built against torch 2.12, which had this function under another name; torch 2.13 has it as below.
_FORWARD = """namespace c10 { class StorageImpl; namespace impl { namespace cow {
void materialize_cow(StorageImpl*);
void materialize_cow_storage(StorageImpl& storage) { materialize_cow(&storage); }
}}}
"""
AMPLITUDE = 4.0


class Deit(nn.Module):
    """A Hugging Face DeiT of few layers with random weights, its class token of some amplitude."""

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
    why = install(HOME)
    if why:
        print(f"executorch 1.3.1 was not run: {why}")
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stub = _stub(folder)
        print(f"DeiT, 2 layers, random weights, class token of amplitude {AMPLITUDE:g}, static int8")
        _compare(folder, stub)


def _compare(folder: Path, stub: Path | None) -> None:
    module = Deit(AMPLITUDE).eval()
    samples = [torch.randn(1, 3, 64, 64) for _ in range(4)]
    torch.export.save(torch.export.export(module, (samples[0],), strict=False), folder / "model.pt2")
    torch.save(samples, folder / "samples.pt")
    stock, mine = folder / "stock.pte", folder / "ours.pte"
    said = _old("lower", str(folder / "model.pt2"), str(folder / "samples.pt"), str(stock))
    program = ours(module, samples, mine, "w8a8")
    for who, path, error in (("stock, 1.3.1's quantizer", stock, said), ("ours", mine, program.error)):
        if error:
            print(f"    {who:26} was not lowered: {error}")
            continue
        print(f"    {who:26} under 1.3.1: {_old('load', str(path), preload=stub) or 'loads'}")
        print(f"    {'':26} under 1.5.1: {_new(path, samples[0], module)}")


def install(home: Path) -> str:
    """Make the environment if it is not there; empty, or one sentence on why it could not be made."""
    if (home / "done").exists():
        return ""
    pip = [str(home / "bin/python"), "-m", "pip", "install", "--quiet"]
    steps = [
        [sys.executable, "-m", "venv", "--clear", str(home)],
        [*pip, *_WITH_DEPENDENCIES],
        [*pip, "--no-deps", *_ALONE],
    ]
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True, check=False)
        if done.returncode:
            words = (done.stderr.strip() or "no message").splitlines()[-1]
            return f"its environment could not be made ({words})"
    (home / "done").touch()
    return ""


def _stub(folder: Path) -> Path | None:
    """A library that gives the old runtime the one function that it misses; None where there is no compiler."""
    source, library = folder / "forward.cpp", folder / "forward.so"
    source.write_text(_FORWARD)
    try:
        subprocess.run(["c++", "-shared", "-fPIC", "-o", library, source], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return library


def _old(*arguments: str, preload: Path | None = None) -> str:
    """Run the child in the old environment; empty, or what it says went wrong, with the runtime's own words."""
    path = f"{HOME / 'bin'}{os.pathsep}{os.environ['PATH']}"  # flatc is there
    env = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
    env.pop("PYTHONPATH", None)
    if preload is not None:
        env["LD_PRELOAD"] = str(preload)
    command = [str(HOME / "bin/python"), "bench/xnnpack_old_child.py", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    try:
        error = str(json.loads(lines[-1])["error"])
    except (IndexError, ValueError, KeyError):
        error = f"ended with code {done.returncode}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}"
    return _with_words(error, done.stderr + done.stdout)


def _new(path: Path, sample: Tensor, module: nn.Module) -> str:
    """Load and run in the runtime of today, in a child, whose words are read."""
    code = "import sys; from pathlib import Path; from dovetail.targets.xnnpack.session import load_program as f; "
    code += "import numpy, torch; m = f(Path(sys.argv[1])); "
    code += "numpy.save(sys.argv[3], m.execute([torch.load(sys.argv[2])])[0].numpy())"
    given, found = path.with_suffix(".in.pt"), path.with_suffix(".out.npy")
    torch.save(sample, given)
    command = [sys.executable, "-c", code, str(path), str(given), str(found)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return _with_words(done.stderr.strip().splitlines()[-1], done.stderr + done.stdout)
    import numpy as np

    with torch.no_grad():
        return f"loads, runs, {sqnr_db(module(sample).numpy(), np.load(found)):.1f} dB against float"


def _with_words(error: str, log: str) -> str:
    if not error:
        return ""
    words = [
        line.partition("] ")[2] for line in log.splitlines() if "Failed to create" in line or "Init failed" in line
    ]
    return "; ".join(dict.fromkeys([*words, error]))
