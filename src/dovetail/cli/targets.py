"""``dovetail targets``: the targets, and the backends that are installed, with their versions."""

from __future__ import annotations

import click


@click.command("targets")
def targets_command() -> None:
    """List the targets with their backends, precisions and options."""
    from rich.console import Console
    from rich.table import Table

    from dovetail.targets import FAMILIES, family_named, open_target

    table = Table(title="Targets", title_justify="left")
    for column in ("target", "installed backend", "precisions"):
        table.add_column(column, overflow="fold")
    lines: list[str] = []
    for name in sorted(FAMILIES):
        target, family = open_target(name), family_named(name)
        probe = target.backend.probe()
        versions = ", ".join(f"{package} {version}" for package, version in probe.versions.items())
        backend = versions if probe.available else f"not available: {probe.missing}"
        table.add_row(name, backend, ", ".join((*target.table.precisions, *target.table.choices)))
        if family.suffixes:
            lines.append(f"{name} suffixes, as in {name}:{family.suffixes[0]}: {', '.join(family.suffixes)}")
        if family.option_keys:
            keys = ", ".join(family.option_keys)
            lines.append(f"{name} options, as in --option {family.option_keys[0]}=VALUE: {keys}")
    out = Console()
    out.print(table)
    for line in lines:
        out.print(line, highlight=False)
