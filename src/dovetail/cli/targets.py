"""``dovetail targets``: what is installed, which versions, what can be checked here."""

from __future__ import annotations

import click


@click.command("targets")
def targets_command() -> None:
    """List the targets, the backends that are installed here and their precisions."""
    from rich.console import Console
    from rich.table import Table

    from dovetail.targets import FAMILIES, open_target

    table = Table(title="Targets", title_justify="left")
    for column in ("target", "backend here", "precisions"):
        table.add_column(column, overflow="fold")
    for family in sorted(FAMILIES):
        target = open_target(family)
        probe = target.probe()
        versions = ", ".join(f"{name} {version}" for name, version in probe.versions.items())
        table.add_row(
            family, versions if probe.available else f"not checked: {probe.missing}", ", ".join(target.precisions)
        )
    Console().print(table)
