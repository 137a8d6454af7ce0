"""Block-quantized int4 weights: estimates on SoC 52, every layer alone on the emulator, and a large transformer.

``python -m bench.block [part ...]``; the parts are ``shipped`` (the shipped ViTs), ``estimate``, ``vit_b``, ``layers``
and ``large``, which also runs aimet-onnx where it is installed (see ``bench.peers``).
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

import dovetail
from bench.block_child import TOKENS, WIDTH, transformer
from bench.block_layers import layers_alone
from bench.block_shipped import print_shipped
from bench.block_vit import compiled, export_vit_b
from bench.child import MEGABYTE, ChildFailed, run_child
from bench.peers import PEERS, not_checked, python_of
from dovetail.finding import Status
from dovetail.op_support import BLOCK_SIZE

SOC = "qnn-htp:soc52"
PRECISIONS = ("w8a16", "w4a16", "w4a16-bq", "w4a16-lpbq")
# Of aimet-onnx, for the large transformer.
AIMET_LIMIT_S = 1800.0
PARTS = ("shipped", "estimate", "vit_b", "layers", "large")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.block", description=__doc__)
    parser.add_argument("part", nargs="*", help=f"one or more of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--tokens", type=int, default=257, help="tokens in each of the DINOv2-S block's four windows")
    parser.add_argument("--layers", type=int, default=24, help="layers of the large transformer, 12.6 million each")
    options = parser.parse_args(arguments)
    unknown = [part for part in options.part if part not in PARTS]
    if unknown:
        parser.error(f"unknown part {unknown[0]!r}; expected one of {', '.join(PARTS)}")
    parts = options.part or PARTS
    with tempfile.TemporaryDirectory(prefix="dovetail-bench-") as name:
        if "shipped" in parts:
            print_shipped(Path(name))
        if "estimate" in parts:
            _estimates(Path(name), options.tokens)
        if "vit_b" in parts:
            _vit_b(Path(name))
        if "layers" in parts:
            _layers(Path(name))
        if "large" in parts:
            _large(Path(name), options.layers)


def _estimates(folder: Path, tokens: int) -> None:
    """Print the vendor's estimate of a DINOv2-S block at every precision, and the bytes it reads."""
    from tests.networks import vit_export  # needs torch

    shape = (4, tokens, 384)
    data = {"x": np.random.default_rng(0).standard_normal((4, *shape)).astype(np.float32)}
    print(f"DINOv2-S block {list(shape)}, 8 MB VTCM, estimated by the vendor's compiler for SoC 52, not measured")
    print(
        f"  {'':14}{'us':>8}{'vs w8a16':>10}{'MB read':>10}{'dB':>8}   (dB: simulation against float, random weights)"
    )
    first = None
    for precision in PRECISIONS:
        result = dovetail.fit(
            vit_export.block(shape),
            target=SOC,
            calibration=data,
            output=folder / precision,
            option={"vtcm_mb": "8"},
            precision=precision,
            baselines="none",
            operand_bits="8",
        )
        failed = [name for name, verdict in result.verdicts.items() if verdict.status is Status.FAIL]
        estimate, traffic = (
            figures.get("fitted") for figures in (result.metrics.latency_estimate_us, result.metrics.traffic_bytes)
        )
        if estimate is None or traffic is None:
            print(f"  {precision:14}no estimate: {result.metrics.not_estimated}")
            continue
        first = first or estimate
        ratio = estimate.ratio_to(first)
        sqnr_db = min(value or 0.0 for value in result.metrics.sqnr_db.simulation_vs_float.values())
        print(
            f"  {precision:14}{estimate.mid_us:>8}{'-' if ratio is None else f'{ratio:.2f}':>10}"
            f"{traffic.read_bytes / 1e6:>10.2f}{sqnr_db:>8.1f}   {', '.join(failed)}",
            flush=True,
        )


def _vit_b(folder: Path) -> None:
    """Print the vendor's estimate of a ViT-B, what it reads, and how many tensors were changed."""
    path = export_vit_b(folder / "vit_b.onnx")
    print("ViT-B, 8 MB VTCM, estimated by the vendor's compiler for SoC 52, not measured; compiled, not emulated")
    print(f"  {'':14}{'us':>8}{'MB read':>10}{'MB context':>12}{'changed':>9}")
    for precision in ("w8a16", "w4a16", "w4a16-lpbq"):
        result, changed = compiled(path, SOC, precision, folder / f"vit_b_{precision}")
        if result.estimate is None or result.traffic is None:
            print(f"  {precision:14}no estimate: {result.error or result.not_estimated}")
            continue
        context = sum(a.path.stat().st_size for a in result.artifacts if a.path.suffix == ".bin")
        read_mb, context_mb = result.traffic.read_bytes / 1e6, context / 1e6
        print(f"  {precision:14}{result.estimate.mid_us:>8}{read_mb:>10.1f}{context_mb:>12.1f}{changed:>9}", flush=True)


def _layers(folder: Path) -> None:
    """Print how well the emulator agrees with the simulation on every layer of a shipped ViT alone."""
    print("vit_digits, every w4a16-lpbq layer alone, fed its simulated input: emulator against simulation, dB")
    for size in (16, 32, 64):
        figures = layers_alone(size, folder / f"layers{size}")
        lowest = min(figures, key=figures.__getitem__)
        print(
            f"  blocks of {size}: {len(figures)} layers, lowest {figures[lowest]:.1f} ({lowest}), "
            f"median {np.median(list(figures.values())):.1f}",
            flush=True,
        )


def _large(folder: Path, layers: int) -> None:
    """Print time, memory and size of quantizing the weights of a large transformer."""
    print(f"a transformer of {layers} layers, width 1024: planned and written, in one process each")
    print(f"  {'':22}{'range':8}{'parameters':>12}{'s':>8}{'MB peak':>10}{'MB float':>10}{'MB file':>10}{'ratio':>8}")
    for precision, method in (
        ("w8a16", "minmax"),
        ("w4a16", "minmax"),
        ("w4a16-lpbq", "minmax"),
        ("w4a16-lpbq", "mse"),
    ):
        request = {"precision": precision, "layers": layers, "folder": str(folder), "method": method}
        _print_row(precision, method, run_child("bench.block_child", request))
    _large_by_aimet(folder, layers)


def _large_by_aimet(folder: Path, layers: int) -> None:
    """The same transformer quantized by aimet-onnx, in LPBQ of the same block size."""
    (peer,) = [peer for peer in PEERS if peer.name == "aimet"]
    python = python_of(peer)
    if python is None:
        print(not_checked(peer))
        return
    model, output = folder / "float.onnx", folder / "aimet.onnx"
    ir.save(transformer(layers), model)
    request = {"model": str(model), "output": str(output), "input": [TOKENS, WIDTH], "block_size": BLOCK_SIZE}
    try:
        figures = run_child("bench.block_aimet", request, python, time_limit_s=AIMET_LIMIT_S)
    except ChildFailed as error:
        print(f"  aimet-onnx failed: {str(error).splitlines()[-1]}")
        return
    sizes = {"parameters": _parameters(layers), "float_bytes": 4 * _parameters(layers)}
    _print_row(f"aimet-onnx {figures['version']}", "min_max", {**figures, **sizes})


def _parameters(layers: int) -> int:
    return layers * (12 * WIDTH * WIDTH + 9 * WIDTH)


def _print_row(name: str, method: str, figures: Mapping[str, Any]) -> None:
    print(
        f"  {name:22}{method:8}{figures['parameters'] / 1e6:>10.0f} M{figures['seconds']:>8.1f}"
        f"{figures['peak_bytes'] / MEGABYTE:>10.0f}{figures['float_bytes'] / 1e6:>10.0f}"
        f"{figures['file_bytes'] / 1e6:>10.0f}{figures['file_bytes'] / figures['float_bytes']:>8.4f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
