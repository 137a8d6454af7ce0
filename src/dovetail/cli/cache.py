"""``dovetail cache``: show or clear the cache of compile results."""

from __future__ import annotations

import click

from dovetail.printable import size_text


@click.group("cache")
def cache_command() -> None:
    """Show or clear the compile cache.

    It holds the results of vendor compilers; runs with `--no-cache` do not use it. DOVETAIL_CACHE_DIR sets another
    folder, DOVETAIL_CACHE_LIMIT_MB another size limit.
    """


@cache_command.command("info")
def info_command() -> None:
    """Show the folder, the number of compile results and the size."""
    from dovetail.targets.compile_cache import user_cache

    cache = user_cache()
    entries, size_bytes = cache.size()
    click.echo(f"folder: {cache.folder}")
    click.echo(f"{entries} compilations, {size_text(size_bytes)} of at most {size_text(cache.limit_bytes)}")


@cache_command.command("clear")
def clear_command() -> None:
    """Remove all compile results from the cache."""
    from dovetail.errors import InputError
    from dovetail.targets.compile_cache import user_cache

    cache = user_cache()
    try:
        entries, size_bytes = cache.clear()
    except OSError as error:
        raise InputError(f"{cache.folder}: the compile cache could not be removed ({error})") from error
    click.echo(f"removed {entries} compilations, {size_text(size_bytes)}, from {cache.folder}")
