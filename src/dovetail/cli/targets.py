"""``dovetail targets``: what is installed, which versions, what can be checked here."""

from __future__ import annotations

import click


@click.command("targets")
def targets_command() -> None:
    """List the targets, the backends that are installed here and their precisions."""
    from rich.console import Console
    from rich.table import Table

    from dovetail.targets import FAMILIES, family_named, open_target

    table = Table(title="Targets", title_justify="left")
    for column in ("target", "backend here", "precisions"):
        table.add_column(column, overflow="fold")
    more: list[str] = []
    for name in sorted(FAMILIES):
        target, family = open_target(name), family_named(name)
        probe = target.backend.probe()
        versions = ", ".join(f"{package} {version}" for package, version in probe.versions.items())
        here = versions if probe.available else f"not checked: {probe.missing}"
        table.add_row(name, here, ", ".join((*target.table.precisions, *target.table.choices)))
        if family.variants:
            more.append(f"{name}: may be followed by :{', :'.join(family.variants)}")
        if family.option_keys:
            more.append(f"{name}: --option takes {', '.join(family.option_keys)}")
    out = Console()
    out.print(table)
    for line in more:
        out.print(line, highlight=False)
