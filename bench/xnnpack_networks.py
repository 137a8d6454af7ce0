"""Fifteen networks in fp32 on XNNPACK: operations that are not delegated, stock and ours, and SQNR of our outputs.

The stock program is lowered from the unchanged ONNX file, or from the normalized graph if the file has operators that
we cannot lower to torch.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch
from tests.equality import random_inputs, run, sqnr_db
from tests.networks.catalog import NETWORKS, network

from dovetail.errors import InputError
from dovetail.model.read import read
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.passes.normalize import normalize
from dovetail.targets import open_target
from dovetail.targets.xnnpack.lower import lower
from dovetail.targets.xnnpack.operators.plain import PLAIN
from dovetail.targets.xnnpack.session import load_program


def main(folder: Path, *, quick: bool) -> None:
    """Print one line per network; the networks are those of the tests, small and with random weights."""
    print("networks in fp32: operations not delegated to XNNPACK, worst output against ONNX Runtime")
    for name in NETWORKS[:1] if quick else NETWORKS:
        file = network(name)
        with _quiet():
            line = _line(file, folder / "network.pte")
        print(f"  {name:24} {line}", flush=True)


def _line(file: Path, program: Path) -> str:
    stock = _stock(file, program)
    model, _ = normalize(read(file))
    for rewrite in (*open_target("xnnpack").rewrites.graph, infer_shapes):
        rewrite(model)
    placement = lower(model, program)
    inputs = random_inputs(model)
    outputs = load_program(program).execute([torch.from_numpy(array) for array in inputs.values()])
    pairs = zip(run(model, inputs).values(), outputs, strict=True)
    worst = min(sqnr_db(expected, actual.numpy()) for expected, actual in pairs)
    undelegated = Counter(operation["op"].partition(".")[0] for operation in placement.outside)
    kinds = ", ".join(f"{count} {kind}" for kind, count in undelegated.items())
    ours = f"ours {len(placement.outside):3} in {placement.parts} delegates"
    return f"stock {stock:4}, {ours}, {worst:.0f} dB  {kinds}".rstrip()


def _stock(file: Path, program: Path) -> int:
    """Count the operations of the stock program that are not delegated."""
    model = read(file)
    infer_shapes(model)
    try:
        return len(lower(model, program, PLAIN).outside)
    except InputError:
        normalized, _ = normalize(read(file))
        infer_shapes(normalized)
        return len(lower(normalized, program, PLAIN).outside)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield
