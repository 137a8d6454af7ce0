"""``dovetail report``: write a page about a run, or about two runs compared with each other."""

from __future__ import annotations

from pathlib import Path

import click

from dovetail.printable import one_line


@click.command("report")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("run_b", type=click.Path(path_type=Path), required=False)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The page to write; by default RUN/report.html, with RUN_B RUN/comparison.html.",
)
def report_command(run: Path, run_b: Path | None, output: Path | None) -> None:
    """Write an HTML page about the result of a run.

    RUN is the run directory of fit, repair or demo, or a result.json of this or an earlier schema version. With RUN_B
    the page compares RUN with it. The page is one file that loads nothing from the network.
    """
    from dovetail.report.page.write import write_page

    click.echo(one_line(str(write_page(run, run_b, output))))
