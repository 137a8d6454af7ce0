"""Time to read and convert an encodings file with 100 000 entries, in every version: ``python -m bench.encodings``."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from dovetail.encodings.convert import convert
from dovetail.encodings.read import read_encodings
from dovetail.encodings.shapes import ModelTensor

ENTRIES = 100_000
# Every tenth entry is a weight with this many output channels.
CHANNELS = 16
LIMIT_S = 2.0


def main() -> None:
    tensors = {_name(i): ModelTensor(_is_weight(i), (CHANNELS, 4), 0, 1) for i in range(ENTRIES)}
    print(f"{ENTRIES} entries, every tenth a weight of {CHANNELS} channels; at most {LIMIT_S} s to read")
    print(f"{'version':8} {'size':>8} {'read':>8} {'written':>8}")
    with tempfile.TemporaryDirectory(prefix="dovetail-bench-") as folder:
        path = Path(folder) / "encodings.json"
        path.write_text(json.dumps(_document()))
        for version in ("1.0.0", "0.6.1", "2.0.0"):
            path.write_bytes(convert(read_encodings(path), version, tensors).content)
            seconds, encodings = _timed(partial(read_encodings, path))
            write_seconds, _ = _timed(partial(convert, encodings, version, tensors))
            size_mb = path.stat().st_size / 1e6
            verdict = "" if seconds < LIMIT_S else "  too slow"
            print(f"{version:8} {size_mb:5.0f} MB {seconds:6.2f} s {write_seconds:6.2f} s{verdict}", flush=True)


def _timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """The fastest of three calls, in CPU seconds, and its result."""
    times = []
    for _ in range(3):
        start = time.process_time()
        result = function()
        times.append(time.process_time() - start)
    return min(times), result


def _name(index: int) -> str:
    return f"/model/layers.{index}/MatMul_output_0"


def _is_weight(index: int) -> bool:
    return index % 10 == 0


def _document() -> dict[str, Any]:
    entries: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    for index in range(ENTRIES):
        weight = _is_weight(index)
        count, offset = (CHANNELS, -128) if weight else (1, -(index % 65536))
        entries[weight].append({
            "name": _name(index), "dtype": "INT", "bw": 8 if weight else 16, "is_sym": weight,
            "enc_type": "PER_CHANNEL" if weight else "PER_TENSOR",
            "scale": [(index + 1 + channel) * 1.1e-7 for channel in range(count)], "offset": [offset] * count,
        })  # fmt: skip
    return {"version": "1.0.0", "activation_encodings": entries[False], "param_encodings": entries[True]}


if __name__ == "__main__":
    main()
