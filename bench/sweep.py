"""Small generated graphs on one target: which are refused, changed or wrong, and the smallest pattern that shows it.

    python -m bench.sweep --target qnn-htp:sm8550 --precision w8a16 --count 1000 --seed 1 --output sweep_w8a16
    python -m bench.sweep --target qnn-htp:sm8550 --precision w8a16 --seed 1 --index 17      # one graph, again
    python -m bench.sweep ... --output sweep_w8a16 --recheck      # the patterns that were found, after a change

The graphs of a seed are numbered 0, 1, 2, ...; ``--count`` is how many of them are fitted in total, over all runs with
the same folder, so a run that was interrupted is continued by the same command. The folder has one line per graph
(``graphs.jsonl``) and per shrunk failure (``patterns.jsonl``), the failing graphs, the smallest pattern of each
failure as an ONNX file with its calibration samples, and ``report.md``. The exit code is 1 if a graph has a wrong
output while the verdict ``numerics`` passes (with ``--recheck``: if a pattern still fails), 2 for bad input, 130 if it
was interrupted by Ctrl-C, SIGTERM or SIGHUP.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from dovetail.cli.signals import interrupted_by_signals
from dovetail.config import parse_options
from dovetail.document import encode
from dovetail.errors import InputError
from dovetail.sweep.fit_process import FitProcess
from dovetail.sweep.records import SweepSettings
from dovetail.sweep.report import as_markdown
from dovetail.sweep.sweep import Sweep, require_usable


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        with interrupted_by_signals():
            return _run(options)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command continues", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True, help="such as qnn-htp:sm8550; `dovetail targets` lists them")
    parser.add_argument("--precision", default="w8a8", help="such as w8a16 (default w8a8)")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="an option of the target")
    parser.add_argument("--count", type=int, default=100, help="how many graphs in total, over all runs (default 100)")
    parser.add_argument("--seed", type=int, default=1, help="which graphs are generated (default 1)")
    parser.add_argument("--output", type=Path, help="the folder of the sweep; needed unless --index is given")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no further graph after this time")
    parser.add_argument("--time-limit", type=float, default=300.0, help="seconds for one graph (default 300)")
    parser.add_argument("--index", type=int, help="fit this graph only, and print what comes of it")
    parser.add_argument("--recheck", action="store_true", help="fit one pattern of every group of the folder again")
    parser.add_argument("--no-shrink", action="store_true", help="count failures, without shrinking the graphs")
    parser.add_argument(
        "--build-only",
        action="store_true",
        help="judge the first build: no verdict `numerics`, no operator is located, no workaround is tried",
    )
    return parser


def _run(options: argparse.Namespace) -> int:
    settings = SweepSettings(
        options.target,
        options.precision,
        options.seed,
        parse_options(tuple(options.option)),
        options.build_only,
    )
    require_usable(settings)
    with FitProcess(options.time_limit) as fit, tempfile.TemporaryDirectory(prefix="sweep-") as scratch:
        if options.index is not None:
            outcome = Sweep(settings, Path(scratch), fit).outcome_of(options.index)
            print(encode(outcome, indent=1).decode())
            return 0
        if options.output is None:
            raise InputError("--output is missing; name the folder for the results of the sweep")
        if options.recheck and not options.output.exists():
            raise InputError(f"{options.output} does not exist, so there is no sweep to check again")
        if options.recheck:
            return _recheck(Sweep(settings, options.output, fit))
        until = time.monotonic() + options.seconds
        sweep = Sweep(settings, options.output, fit, lambda line: print(line, flush=True))
        report = sweep.run(options.count, lambda: time.monotonic() > until, shrinks=not options.no_shrink)
    print(as_markdown(report))
    return int(bool(report.wrong_and_passed))


def _recheck(sweep: Sweep) -> int:
    """Print what comes of the known patterns with the code as it is now; 1 if one of them still fails."""
    still = 0
    for group, outcome in sweep.recheck():
        still += bool(outcome.failures)
        causes = "; ".join(f"{failure.kind}: {failure.cause}" for failure in outcome.failures)
        print(f"{group.kind} at {group.pattern} ({group.smallest.file}): {causes or 'passes now'}", flush=True)
    return int(still > 0)


if __name__ == "__main__":
    sys.exit(main())
