"""All benches one after another, or those named: ``python -m bench [name ...]``."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

from bench.child import ROOT

# Name -> what it prints.
BENCHES: dict[str, str] = {
    "calibration": "CPU time of calibration and of exact simulation over the plain float forward of a ViT-tiny",
    "memory": "peak memory of calibration with 256 samples over that with 16",
    "htp": "the HTP compiler's estimates beside FP16 and a naive export; detectors; shipped models emulated",
    "peers": "dovetail, onnxruntime.quantization and aimet-onnx: cost of calibration, and what comes out",
}


def main(arguments: list[str] | None = None) -> int:
    listing = "\n".join(f"  {name:12} {what}" for name, what in BENCHES.items())
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        epilog=f"benches:\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="*", help="which to run; all if none is named")
    names = parser.parse_args(arguments).name or list(BENCHES)
    unknown = [name for name in names if name not in BENCHES]
    if unknown:
        parser.error(f"no bench is called {unknown[0]!r}; there is {', '.join(BENCHES)}")
    failed = 0
    for name in names:
        print(f"== {name}: {BENCHES[name]}", flush=True)
        start = time.monotonic()
        command = [sys.executable, "-m", f"bench.{name}"]
        code = subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False).returncode
        print(f"== {name}: {'done' if code == 0 else f'ended with code {code}'}, {time.monotonic() - start:.0f} s\n")
        failed |= code != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
