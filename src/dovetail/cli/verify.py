"""``dovetail verify``: set the verdict ``device`` of a run from the outputs of a device."""

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
    "--require",
    multiple=True,
    metavar="VERDICT",
    help="Exit with code 3 if this verdict is not checked: normalized, compiled, fidelity, numerics, accuracy "
    "or device.",
)
@click.pass_context
def verify_command(context: click.Context, run: Path, outputs: Path | None, require: tuple[str, ...]) -> None:
    """Compare the outputs of a device with the simulation.

    The device must have run the folder RUN/device. RUN/result.json is rewritten with the verdict and
    the metrics of the device, and RUN/report.html if there is one.
    """
    from dovetail.device.pack import FOLDER, OUTPUTS
    from dovetail.device.verify_device import verify_device
    from dovetail.finding import PASSES_WHEN
    from dovetail.rundir import PAGE

    for name in require:
        if name not in PASSES_WHEN:
            raise InputError(f"--require {name}: unknown verdict; expected one of {', '.join(PASSES_WHEN)}")
    page = (run / PAGE).exists()
    context.exit(show(verify_device(run, outputs or run / FOLDER / OUTPUTS), run, require, page=page))
