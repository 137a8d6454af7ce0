"""Statistics on disk: ``stats.npz``, so that a run can be resumed after calibration."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from dovetail.stats import DataInfo, Stats, TensorStats


def save_stats(stats: Stats, path: Path) -> tuple[Path, ...]:
    """Write the calibration statistics."""
    names = list(stats.tensors)
    info = stats.data
    header = {
        "names": names,
        "data": [info.source, info.samples, info.sha256, info.random],
        "digests": [digest.hex() for digest in stats.digests],
    }
    counts = {f"counts_{i}": s.counts for i, n in enumerate(names) if (s := stats.tensors[n]).counts is not None}
    partial = path.with_name(path.name + ".part.npz")
    np.savez_compressed(
        partial,
        allow_pickle=False,
        header=np.frombuffer(json.dumps(header).encode(), np.uint8),
        low=np.asarray([stats.tensors[n].low for n in names]),
        high=np.asarray([stats.tensors[n].high for n in names]),
        **counts,
    )
    partial.replace(path)
    return (path,)


def load_stats(path: Path) -> Stats:
    """Read what ``save_stats`` wrote."""
    with np.load(path) as arrays:
        header = json.loads(bytes(arrays["header"]))
        tensors = {
            name: TensorStats(
                float(arrays["low"][i]),
                float(arrays["high"][i]),
                arrays[f"counts_{i}"] if f"counts_{i}" in arrays.files else None,
            )
            for i, name in enumerate(header["names"])
        }
    source, samples, sha256, random = header["data"]
    digests = tuple(bytes.fromhex(digest) for digest in header["digests"])
    return Stats(tensors, DataInfo(source, samples, sha256, random), digests)
