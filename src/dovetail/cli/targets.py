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
    more: list[str] = []
    for family in sorted(FAMILIES):
        target = open_target(family)
        probe = target.probe()
        versions = ", ".join(f"{name} {version}" for name, version in probe.versions.items())
        here = versions if probe.available else f"not checked: {probe.missing}"
        table.add_row(family, here, ", ".join((*target.precisions, *target.choices)))
        if target.variants:
            more.append(f"{family}: may be followed by :{', :'.join(target.variants)}")
        if target.option_keys:
            more.append(f"{family}: --option takes {', '.join(target.option_keys)}")
    out = Console()
    out.print(table)
    for line in more:
        out.print(line, highlight=False)
