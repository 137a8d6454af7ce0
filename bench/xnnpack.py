"""Compare Dovetail with the stock XNNPACKQuantizer of ExecuTorch: ``python -m bench.xnnpack [PART] [--quick]``."""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from bench import xnnpack_networks, xnnpack_norms, xnnpack_old, xnnpack_resize
from bench.xnnpack_deit import IMPLEMENTATIONS, deit_tiny, matrix_operations
from bench.xnnpack_layouts import AMPLITUDES, NAMED, ROWS, WIDTH, Branches, Tokens, batched, generated
from bench.xnnpack_programs import Program, interleaved_us, ours, sqnr_db, stock, stock_of_file

PARTS = ("layouts", "deit", "networks", "norms", "resize", "stock", "old", "all")
MATRIX_OPS = "matrix ops alone"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="?", choices=PARTS, default="all")
    parser.add_argument(
        "--only", default="", help="deit: only programs whose name contains this; ratios are to the first"
    )
    parser.add_argument(
        "--stock", choices=IMPLEMENTATIONS, default=IMPLEMENTATIONS[0], help="deit: implementation of the model"
    )
    parser.add_argument("--layers", type=int, default=12, help="deit: number of layers")
    parser.add_argument("--quick", action="store_true", help="only two layouts, and models with one layer")
    options = parser.parse_args(arguments)
    part, quick = options.part, options.quick
    with tempfile.TemporaryDirectory() as folder:
        if part in ("layouts", "all"):
            layouts(Path(folder), quick=quick)
        if part in ("deit", "all"):
            layers, seconds = (1, 1) if quick else (options.layers, 30)
            deit(Path(folder), options.stock, layers=layers, seconds=seconds, only=options.only)
        if part in ("networks", "all"):
            xnnpack_networks.main(Path(folder), quick=quick)
        if part in ("norms", "all"):
            xnnpack_norms.main(Path(folder), seconds=0.1 if quick else 3, quick=quick)
        if part in ("resize", "all"):
            xnnpack_resize.main(Path(folder), seconds=0.1 if quick else 2, quick=quick)
        if part in ("stock", "all"):
            stock_programs(Path(folder), layers=1 if quick else 2, seconds=1 if quick else 10)
        if part in ("old", "all"):
            xnnpack_old.main()


def layouts(folder: Path, *, quick: bool) -> None:
    """Count the layouts that load: stock one by one, ours with several layouts as branches of one model."""
    named_cases = {f"{name}, amplitude 4": Tokens(layout, 4.0) for name, layout in NAMED.items()}
    generated_cases = {
        f"{name}, {order}, {amplitude:.3g}": Tokens(layout, amplitude, order)
        for name, layout, order, amplitude in generated(32)
    }
    batches = [Branches([Tokens(layout, amplitude) for amplitude in AMPLITUDES]) for layout in NAMED.values()]
    batches += [Branches(batch) for batch in batched(list(generated_cases.values()), 4)]
    if quick:
        named_cases = {name: module for name, module in named_cases.items() if name.startswith(("movedim", "flatten"))}
        generated_cases, batches = {}, batches[2:3]
    torch.manual_seed(0)
    samples = [torch.randn(1, ROWS, WIDTH) for _ in range(8)]
    for title, cases in (("named", named_cases), ("generated", generated_cases)):
        programs = {name: stock(module, samples, folder / "stock.pte", "w8a8") for name, module in cases.items()}
        errors = {name: program.error for name, program in programs.items() if program.error}
        print(f"stock, {title}: {len(cases) - len(errors)} of {len(cases)} load")
        for name, error in errors.items():
            print(f"    {name}: {error}")
    for shared in (False, True):
        _our_layouts(batches, samples, folder, shared=shared)


def _our_layouts(batches: list[Branches], samples: list[torch.Tensor], folder: Path, *, shared: bool) -> None:
    loaded = total = in_float = 0
    worst = float("inf")
    for batch in batches:
        program = ours(batch.eval(), samples, folder / "ours.pte", "w8a8", shared=shared)
        total += len(batch.branches)
        if program.error:
            print(f"    {program.error}")
            continue
        loaded += len(batch.branches)
        in_float += len(program.notes)
        with torch.no_grad():
            outputs = zip(batch(samples[0]), program.run(samples[0]), strict=True)
        worst = min([worst, *(sqnr_db(expected.numpy(), actual) for expected, actual in outputs)])
    concats = "all Concat quantized with one range" if shared else f"{in_float} Concat kept in float by measurement"
    amplitudes = f"amplitudes {min(AMPLITUDES):g} to {max(AMPLITUDES):g}"
    print(f"ours, {concats}: {loaded} of {total} load and run, {amplitudes}, worst output {worst:.1f} dB against float")


def deit(folder: Path, implementation: str, *, layers: int, seconds: float, only: str = "") -> None:
    """Print latency, SQNR and undelegated operations of DeiT-tiny with random weights.

    Its matrix operations alone are timed too: the rest of the time is all that rewrites could save.
    """
    module, samples = deit_tiny(implementation, layers), [torch.randn(1, 3, 224, 224) for _ in range(8)]
    matrix_only = matrix_operations(layers)
    programs: dict[str, Program] = {}
    for precision in ("fp32", "w8a8", "w8a8-dynamic"):
        for label, make, network in (
            ("stock", stock, module),
            ("ours", ours, module),
            (MATRIX_OPS, stock, matrix_only),
        ):
            if only in f"{label} {precision}":
                path = folder / f"{label.replace(' ', '_')}_{precision}.pte"
                programs[f"{label} {precision}"] = make(network, samples, path, precision)
    loaded = {name: program for name, program in programs.items() if not program.error}
    with torch.no_grad():
        expected = module(samples[0]).numpy()
    one_thread = interleaved_us(list(loaded.values()), samples[0], seconds)
    two_threads = interleaved_us(list(loaded.values()), samples[0], seconds, threads=2)
    title = f"DeiT-tiny, {implementation}, {layers} layers, random weights"
    print(f"{title}, {len(one_thread)} interleaved rounds: CPU time on one thread, then wall time on two")
    for index, (name, program) in enumerate(loaded.items()):
        quality = "" if name.startswith(MATRIX_OPS) else _quality(program, samples[0], expected)
        times = f"{_times(one_thread, index)}, two threads {_times(two_threads, index)}"
        print(f"  {name:30} {times}  {quality}".rstrip())
    for name, program in programs.items():
        if program.error:
            print(f"  {name:30} failed: {program.error}")


def _times(times_us: np.ndarray, index: int) -> str:
    """Format a program's median time and the median ratio to the first program (stock fp32, unless --only skips it)."""
    return f"{np.median(times_us[:, index]) / 1e3:6.1f} ms {np.median(times_us[:, index] / times_us[:, 0]):.2f}"


def _quality(program: Program, sample: torch.Tensor, expected: np.ndarray) -> str:
    """Format the SQNR against float, and the operations that are not delegated to XNNPACK."""
    kinds = ", ".join(f"{n} {k.removeprefix('aten.')}" for k, n in Counter(program.undelegated).most_common(5))
    simulated = f", simulated {sqnr_db(expected, program.simulated[0]):.1f}" if program.simulated else ""
    db = f"{sqnr_db(expected, program.run(sample)[0]):.1f} dB{simulated}"
    return f"{db}, {program.delegates} delegates, {len(program.undelegated)} undelegated{': ' * bool(kinds)}{kinds}"


def stock_programs(folder: Path, *, layers: int, seconds: float) -> None:
    """Compare the stock fp32 program made from the ONNX file, which ``fit`` uses, with that of the torch module."""
    print(f"DeiT-tiny, {layers} layers, fp32, CPU time on one thread, interleaved")
    sample = torch.randn(1, 3, 224, 224)
    for attention in ("eager", "sdpa"):
        module = deit_tiny(f"hf-{attention}", layers)
        programs = {
            "from the module": stock(module, [sample], folder / f"module_{attention}.pte", "fp32"),
            "from the file": stock_of_file(module, sample, folder / f"file_{attention}.pte"),
        }
        times_us = interleaved_us(list(programs.values()), sample, seconds)
        ratios = times_us[:, 1] / times_us[:, 0]
        low, high = np.quantile(ratios, (0.25, 0.75))
        for index, (name, program) in enumerate(programs.items()):
            placement = f"{len(program.undelegated):3} undelegated, {program.delegates:3} delegates"
            print(f"  {attention:6} {name:16} {placement} {float(np.median(times_us[:, index])) / 1e3:7.2f} ms")
        spread = f"quartiles of {len(times_us)} rounds: {low:.2f} to {high:.2f}"
        print(f"  {attention:6} ratio of file to module  {float(np.median(ratios)):.2f} ({spread})")


if __name__ == "__main__":
    main()
