"""``dovetail cache``: what vendor compilers made before, kept so that it is not compiled again."""

from __future__ import annotations

import click


@click.group("cache")
def cache_command() -> None:
    """Look at or empty the cache of vendor compilations, which `--no-cache` leaves alone.

    DOVETAIL_CACHE_DIR names another folder, DOVETAIL_CACHE_LIMIT_MB another size limit.
    """


@cache_command.command("info")
def info_command() -> None:
    """Say where the cache is, how many compilations it holds, and how large it may become."""
    from dovetail.targets.compile_cache import user_cache

    cache = user_cache()
    entries, size_bytes = cache.size()
    click.echo(f"folder: {cache.folder}")
    click.echo(f"{entries} compilations, {size_bytes / 1e6:.1f} MB of at most {cache.limit_bytes / 1e6:.0f} MB")


@cache_command.command("clear")
def clear_command() -> None:
    """Remove every compilation from the cache."""
    from dovetail.errors import InputError
    from dovetail.targets.compile_cache import user_cache

    cache = user_cache()
    try:
        entries, size_bytes = cache.clear()
    except OSError as error:
        raise InputError(f"{cache.folder}: the compile cache could not be removed ({error})") from error
    click.echo(f"removed {entries} compilations, {size_bytes / 1e6:.1f} MB, from {cache.folder}")
