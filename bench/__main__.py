"""Run all benchmarks one after another, or only the named ones: ``python -m bench [name ...]``."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

from bench.child import ROOT

# Name -> what it measures.
BENCHES: dict[str, str] = {
    "calibration": "CPU time of calibration and of exact simulation, relative to float inference of a ViT-tiny",
    "memory": "peak memory of calibration with 256 samples, relative to 16 samples",
    "htp": "HTP compiler's latency estimates, vs FP16 and onnxruntime.quantization; shipped models on the emulator",
    "peers": "dovetail, onnxruntime.quantization and aimet-onnx: calibration cost, and accuracy of the emitted models",
}


def main(arguments: list[str] | None = None) -> int:
    listing = "\n".join(f"  {name:12} {description}" for name, description in BENCHES.items())
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        epilog=f"benchmarks:\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="*", help="benchmarks to run (default: all)")
    names = parser.parse_args(arguments).name or list(BENCHES)
    unknown = [name for name in names if name not in BENCHES]
    if unknown:
        parser.error(f"unknown benchmark {unknown[0]!r}; expected one of {', '.join(BENCHES)}")
    failed = 0
    for name in names:
        print(f"== {name}: {BENCHES[name]}", flush=True)
        start = time.monotonic()
        command = [sys.executable, "-m", f"bench.{name}"]
        code = subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False).returncode
        print(f"== {name}: {'done' if code == 0 else f'exited with code {code}'}, {time.monotonic() - start:.0f} s\n")
        failed |= code != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
