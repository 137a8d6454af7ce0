"""``dovetail cache``: show or clear the cache of what vendor tools gave."""

from __future__ import annotations

import click

from dovetail.printable import size_text


@click.group("cache")
def cache_command() -> None:
    """Show or clear the cache of compile results and target outputs.

    It holds what vendor compilers, emulators and runtimes gave, and the hashes of float models that ONNX Runtime ran
    without a crash; never a measured time. Runs with `--no-cache` do not use it. DOVETAIL_CACHE_DIR sets another
    folder, DOVETAIL_CACHE_LIMIT_MB another size limit.
    """


@cache_command.command("info")
def info_command() -> None:
    """Show the folder, the number of entries and the size."""
    from dovetail.targets.tool_cache import user_cache

    cache = user_cache()
    entries, size_bytes = cache.size()
    click.echo(f"folder: {cache.folder}")
    click.echo(f"{_entries(entries)}, {size_text(size_bytes)} of at most {size_text(cache.limit_bytes)}")


@cache_command.command("clear")
def clear_command() -> None:
    """Remove all entries from the cache."""
    from dovetail.errors import InputError
    from dovetail.targets.tool_cache import user_cache

    cache = user_cache()
    try:
        entries, size_bytes = cache.clear()
    except OSError as error:
        raise InputError(f"{cache.folder}: the cache could not be cleared ({error})") from error
    click.echo(f"removed {_entries(entries)}, {size_text(size_bytes)}, from {cache.folder}")


def _entries(count: int) -> str:
    return f"{count} entr{'y' if count == 1 else 'ies'}"
