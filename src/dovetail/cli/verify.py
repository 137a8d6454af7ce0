"""``dovetail verify``: set verdicts of a run from the outputs of a device, or from files of the vendor's converter."""

from __future__ import annotations

from pathlib import Path

import click

from dovetail.cli.fit import show
from dovetail.errors import InputError


@click.command("verify")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--device-outputs",
    "outputs",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Folder that run_on_device.py or the vendor's tool wrote; by default RUN/device/outputs.",
)
@click.option(
    "--converter-output",
    "converted",
    multiple=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="What the vendor's own converter wrote from the run: its graph as *_net.json or .cpp, or its log; sets the "
    "verdict fidelity.",
)
@click.option(
    "--require",
    multiple=True,
    metavar="VERDICT",
    help="Exit with code 3 if this verdict is not checked: normalized, repaired, compiled, fidelity, "
    "numerics, accuracy, budget or device. One that the run does not have is not checked.",
)
@click.pass_context
def verify_command(
    context: click.Context, run: Path, outputs: Path | None, converted: tuple[Path, ...], require: tuple[str, ...]
) -> None:
    """Compare the outputs of a device with the simulation, or what the vendor's converter wrote with the plan.

    The device must have run the folder RUN/device. RUN/result.json is rewritten with the verdict and
    the metrics of the device, and RUN/report.html if there is one. With --converter-output, every tensor whose
    precision or scale is not the planned one is listed.
    """
    from dovetail.backend import Outcome
    from dovetail.device.pack import FOLDER, OUTPUTS
    from dovetail.device.verify_converted import verify_converted
    from dovetail.device.verify_device import verify_device
    from dovetail.finding import PASSES_WHEN
    from dovetail.printable import printable
    from dovetail.rundir import PAGE

    for name in require:
        if name not in PASSES_WHEN:
            raise InputError(f"--require {name}: unknown verdict; expected one of {', '.join(PASSES_WHEN)}")
    page = (run / PAGE).exists()
    if converted:
        if outputs is not None:
            raise InputError("--converter-output and --device-outputs are checked one after another: give one of them")
        result = verify_converted(run, converted)
        code = show(result, run, require, page=page)
        for row in result.read_back:
            if row.outcome is Outcome.CHANGED:
                click.echo(printable(f"changed: {row.edge or row.tensor}: {row.detail}"))
        context.exit(code)
    context.exit(show(verify_device(run, outputs or run / FOLDER / OUTPUTS), run, require, page=page))
