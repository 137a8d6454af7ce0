"""XNNPACK: the stock quantizer and Dovetail side by side. ``python -m bench.xnnpack [PART] [--quick]``"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from bench import xnnpack_networks, xnnpack_norms, xnnpack_old
from bench.xnnpack_deit import SPELLINGS, deit_tiny, products
from bench.xnnpack_layouts import AMPLITUDES, NAMED, ROWS, WIDTH, Branches, Tokens, batched, generated
from bench.xnnpack_programs import Program, interleaved_us, ours, sqnr_db, stock, stock_of_file

PARTS = ("layouts", "deit", "networks", "norms", "stock", "old", "all")
PRODUCTS = "products alone"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=PARTS, default="all")
    parser.add_argument(
        "--only", default="", help="of deit: the programs whose name has this in it; ratios are to the first"
    )
    parser.add_argument("--stock", choices=SPELLINGS, default=SPELLINGS[0], help="of deit: how the model is written")
    parser.add_argument("--layers", type=int, default=12, help="of deit: how many")
    parser.add_argument("--quick", action="store_true", help="two layouts, one layer")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        if asked.what in ("layouts", "all"):
            layouts(Path(folder), quick=asked.quick)
        if asked.what in ("deit", "all"):
            layers, seconds = (1, 1) if asked.quick else (asked.layers, 30)
            deit(Path(folder), asked.stock, layers=layers, seconds=seconds, only=asked.only)
        if asked.what in ("networks", "all"):
            xnnpack_networks.main(Path(folder), quick=asked.quick)
        if asked.what in ("norms", "all"):
            xnnpack_norms.main(Path(folder), seconds=0.1 if asked.quick else 3, quick=asked.quick)
        if asked.what in ("stock", "all"):
            stock_of_the_file(Path(folder), layers=1 if asked.quick else 2, seconds=1 if asked.quick else 10)
        if asked.what in ("old", "all"):
            xnnpack_old.main()


def layouts(folder: Path, *, quick: bool) -> None:
    """Which layouts load: stock one by one, ours with every amplitude as a branch of one model."""
    named = {f"{name}, amplitude 4": Tokens(layout, 4.0) for name, layout in NAMED.items()}
    more = {f"{name}, {order}, {a:.3g}": Tokens(layout, a, order) for name, layout, order, a in generated(32)}
    batches = [Branches([Tokens(layout, amplitude) for amplitude in AMPLITUDES]) for layout in NAMED.values()] + [
        Branches(part) for part in batched(list(more.values()), 4)
    ]
    if quick:
        named = {name: module for name, module in named.items() if name.startswith(("movedim", "flatten"))}
        more, batches = {}, batches[2:3]
    torch.manual_seed(0)
    samples = [torch.randn(1, ROWS, WIDTH) for _ in range(8)]
    for title, cases in (("named", named), ("generated", more)):
        results = {name: stock(module, samples, folder / "stock.pte", "w8a8") for name, module in cases.items()}
        refused = {name: program.error for name, program in results.items() if program.error}
        print(f"stock, {title}: {len(cases) - len(refused)} of {len(cases)} load")
        for name, error in refused.items():
            print(f"    {name}: {error}")
    for shared in (False, True):
        _ours(batches, samples, folder, shared=shared)


def _ours(batches: list[Branches], samples: list[torch.Tensor], folder: Path, *, shared: bool) -> None:
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
            pairs = zip(batch(samples[0]), program.run(samples[0]), strict=True)
        worst = min([worst, *(sqnr_db(expected.numpy(), found) for expected, found in pairs)])
    how = "every Concat on one range" if shared else f"{in_float} Concat float by measurement"
    amplitudes = f"amplitudes {min(AMPLITUDES):g} to {max(AMPLITUDES):g}"
    print(f"ours, {how}: {loaded} of {total} load and run, {amplitudes}, the worst {worst:.1f} dB against float")


def deit(folder: Path, spelling: str, *, layers: int, seconds: float, only: str = "") -> None:
    """DeiT-tiny with random weights: what runs outside, what it costs, how far from float.

    And what its matrix products cost alone, next to which the rest is what rewrites can save.
    """
    module, samples = deit_tiny(spelling, layers), [torch.randn(1, 3, 224, 224) for _ in range(8)]
    alone = products(layers)
    programs: dict[str, Program] = {}
    for precision in ("fp32", "w8a8", "w8a8-dynamic"):
        for who, make, what in (("stock", stock, module), ("ours", ours, module), (PRODUCTS, stock, alone)):
            if only in f"{who} {precision}":
                place = folder / f"{who.replace(' ', '_')}_{precision}.pte"
                programs[f"{who} {precision}"] = make(what, samples, place, precision)
    whole = {name: program for name, program in programs.items() if not program.error}
    with torch.no_grad():
        expected = module(samples[0]).numpy()
    timed = interleaved_us(list(whole.values()), samples[0], seconds)
    together = interleaved_us(list(whole.values()), samples[0], seconds, threads=2)
    what = f"DeiT-tiny, {spelling}, {layers} layers, random weights"
    print(f"{what}, {len(timed)} interleaved rounds: CPU time on one thread, then passed time on two")
    for index, (name, program) in enumerate(whole.items()):
        quality = "" if name.startswith(PRODUCTS) else _quality(program, samples[0], expected)
        print(f"  {name:26} {_times(timed, index)}, two threads {_times(together, index)}  {quality}".rstrip())
    for name, program in programs.items():
        if program.error:
            print(f"  {name:26} failed: {program.error}")


def _times(timed: np.ndarray, index: int) -> str:
    """The median of a program, and of its ratios to the first one, which is stock fp32 unless that is left out."""
    return f"{np.median(timed[:, index]) / 1e3:6.1f} ms {np.median(timed[:, index] / timed[:, 0]):.2f}"


def _quality(program: Program, sample: torch.Tensor, expected: np.ndarray) -> str:
    """What runs outside, and how far the outputs are from float."""
    kinds = ", ".join(f"{n} {k.removeprefix('aten.')}" for k, n in Counter(program.outside).most_common(5))
    simulated = f", simulated {sqnr_db(expected, program.simulated[0]):.1f}" if program.simulated else ""
    db = f"{sqnr_db(expected, program.run(sample)[0]):.1f} dB{simulated}"
    return f"{db}, {program.delegates} delegates, {len(program.outside)} outside{': ' * bool(kinds)}{kinds}"


def stock_of_the_file(folder: Path, *, layers: int, seconds: float) -> None:
    """The stock fp32 program that ``fit`` compares with, made from the ONNX file, beside that of the torch module."""
    print(f"DeiT-tiny, {layers} layers, fp32, CPU time on one thread, by turns")
    sample = torch.randn(1, 3, 224, 224)
    for attention in ("eager", "sdpa"):
        module = deit_tiny(f"hf-{attention}", layers)
        programs = {
            "from the module": stock(module, [sample], folder / f"module_{attention}.pte", "fp32"),
            "from the file": stock_of_file(module, sample, folder / f"file_{attention}.pte"),
        }
        timed = interleaved_us(list(programs.values()), sample, seconds)
        ratios = timed[:, 1] / timed[:, 0]
        low, high = np.quantile(ratios, (0.25, 0.75))
        for index, (name, program) in enumerate(programs.items()):
            outside = f"{len(program.outside):3} outside, {program.delegates:3} delegates"
            print(f"  {attention:6} {name:16} {outside} {float(np.median(timed[:, index])) / 1e3:7.2f} ms")
        spread = f"half of {len(timed)} rounds: {low:.2f} to {high:.2f}"
        print(f"  {attention:6} file over module  {float(np.median(ratios)):.2f} ({spread})")


if __name__ == "__main__":
    main()
