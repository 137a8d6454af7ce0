"""Every network of the HTP tests, and more, in float on XNNPACK: what runs outside it, stock and ours, and how exact.

The stock program is that of the file as it is; where an operator of it has no form in torch, of the normalized graph.
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
    """One line per network; small ones with random weights, as the tests have them."""
    print("networks in float: operations outside XNNPACK, worst output against ONNX Runtime")
    for name in NETWORKS[:1] if quick else NETWORKS:
        file = network(name)
        with _quiet():
            line = _line(file, folder / "network.pte")
        print(f"  {name:24} {line}", flush=True)


def _line(file: Path, program: Path) -> str:
    stock = _stock(file, program)
    model, _ = normalize(read(file))
    for each in (*open_target("xnnpack").rewrites.graph, infer_shapes):
        each(model)
    placed = lower(model, program)
    inputs = random_inputs(model)
    found = load_program(program).execute([torch.from_numpy(array) for array in inputs.values()])
    pairs = zip(run(model, inputs).values(), found, strict=True)
    worst = min(sqnr_db(wanted, tensor.numpy()) for wanted, tensor in pairs)
    kinds = ", ".join(f"{n} {k}" for k, n in Counter(each["op"].partition(".")[0] for each in placed.outside).items())
    return (
        f"stock {stock:4}, ours {len(placed.outside):3} in {placed.parts} delegates, {worst:.0f} dB  {kinds}".rstrip()
    )


def _stock(file: Path, program: Path) -> int:
    given = read(file)
    infer_shapes(given)
    try:
        return len(lower(given, program, PLAIN).outside)
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
