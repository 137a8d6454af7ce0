"""``dovetail encodings``: convert, compare and show encodings files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dovetail.errors import InputError
from dovetail.printable import one_line, printable, shortened

if TYPE_CHECKING:
    from dovetail.encodings.records import Encodings

DIFFERENT = 1
# The text fits a terminal of 80 columns.
_NAME_WIDTH, _HOW_WIDTH, _LINE_WIDTH = 34, 24, 80
_FILE = click.Path(path_type=Path)
_MODEL = click.option(
    "--model", type=_FILE, help="Model whose tensors these are: it gives the axes that files below 2.0.0 lack."
)
_SHAPE = click.option("--shape", multiple=True, metavar="NAME=1,3,224,224", help="Static shape of an input of --model.")
_FORMAT = click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True)


@click.group("encodings")
def encodings_command() -> None:
    """Convert, compare and show encodings files (AIMET 0.6.1, 1.0.0, 2.0.0)."""


@encodings_command.command("convert")
@click.argument("file", type=_FILE)
@click.option("--to", "version", required=True, metavar="VERSION", help="0.6.1, 1.0.0 or 2.0.0.")
@_MODEL
@_SHAPE
@click.option("--lossy", is_flag=True, help="Leave out what VERSION cannot carry, and list it, instead of failing.")
@click.option("-o", "--output", type=_FILE, help="File to write; standard output by default.")
@click.option("--force", is_flag=True, help="Replace the output file if it exists.")
def convert_command(
    file: Path, version: str, model: Path | None, shape: tuple[str, ...], lossy: bool, output: Path | None, force: bool
) -> None:
    """Write the encodings of FILE in another version.

    Nothing is lost without --lossy: what VERSION cannot carry (float16 in 2.0.0, blocks in 0.6.1) is an error. From or
    to 2.0.0, --model is required where only the model says which entries are parameters and which axis scales are on.
    """
    from dovetail.config import parse_shapes
    from dovetail.encodings.convert import convert
    from dovetail.encodings.read import read_encodings
    from dovetail.encodings.shapes import read_model_tensors
    from dovetail.model.write import write_whole

    if output is not None and output.exists() and not force:
        raise InputError(f"{output} exists; add --force to replace it")
    encodings = read_encodings(file)
    tensors = None if model is None else read_model_tensors(model, parse_shapes(shape))
    try:
        written = convert(encodings, version, tensors, lossy=lossy)
    except InputError as error:
        raise InputError(f"{file}: {error}") from error
    if output is None:
        click.echo(written.content.decode(), nl=False)
    else:
        try:
            write_whole(output, written.content)
        except OSError as error:
            raise InputError(f"{output}: cannot be written ({error.strerror or error})") from error
        click.echo(printable(f"{output}: version {version}, {len(encodings.entries)} entries read from {file}"))
    for reason, names in written.lost.items():
        for name in names:
            click.echo(printable(f"lost: {name}: {reason}"), err=True)


@encodings_command.command("diff")
@click.argument("first", type=_FILE)
@click.argument("second", type=_FILE)
@_MODEL
@_SHAPE
@_FORMAT
@click.pass_context
def diff_command(
    context: click.Context, first: Path, second: Path, model: Path | None, shape: tuple[str, ...], format_: str
) -> None:
    """List the tensors that FIRST and SECOND encode differently, whatever the versions.

    The exit code is 1 if there are any. With --model, blocks of different versions can be compared.
    """
    from dovetail.encodings.describe import differences

    found = differences(*(_read(file, model, shape) for file in (first, second)))
    if format_ == "json":
        click.echo(json.dumps([{"name": one.name, "difference": one.how} for one in found], indent=1))
    else:
        for one in found:
            click.echo(f"{shortened(one_line(one.name), _LINE_WIDTH)}\n    {printable(one.how)}")
        click.echo(f"{len(found)} differences" if len(found) != 1 else "1 difference")
    context.exit(DIFFERENT if found else 0)


@encodings_command.command("show")
@click.argument("file", type=_FILE)
@_MODEL
@_SHAPE
@click.option("--all", "every", is_flag=True, help="Also list every entry; the text only counts them otherwise.")
@_FORMAT
def show_command(file: Path, model: Path | None, shape: tuple[str, ...], every: bool, format_: str) -> None:
    """Show what FILE says: how many tensors are quantized how, and with --all each of them."""
    from dovetail.encodings.describe import counts, row

    encodings = _read(file, model, shape)
    if format_ == "json":
        rows = [row(entry) for entry in encodings.entries.values()]
        click.echo(json.dumps({"version": encodings.version, "ignored": encodings.ignored, "entries": rows}, indent=1))
        return
    click.echo(printable(f"{file}: version {encodings.version}, {len(encodings.entries)} entries"))
    for kind, how, count in counts(encodings):
        click.echo(f"{count:8}  {kind:10}  {how}")
    for text in encodings.ignored:
        click.echo(printable(f"ignored: {text}"))
    if every:
        _list_entries(encodings)


def _list_entries(encodings: Encodings) -> None:
    from dovetail.encodings.describe import described, real_range

    for entry in encodings.entries.values():
        name = shortened(one_line(entry.name), _NAME_WIDTH)
        ends = "" if entry.is_float else "{:.4g} to {:.4g}".format(*real_range(entry))
        click.echo(f"{name:{_NAME_WIDTH}} {described(entry):{_HOW_WIDTH}} {ends}".rstrip())


def _read(file: Path, model: Path | None, shape: tuple[str, ...]) -> Encodings:
    """The encodings of a file, with the axes of a model if there is one."""
    from dovetail.config import parse_shapes
    from dovetail.encodings.read import read_encodings
    from dovetail.encodings.shapes import read_model_tensors, with_model

    encodings = read_encodings(file)
    if model is None:
        return encodings
    tensors = read_model_tensors(model, parse_shapes(shape))
    try:
        return with_model(encodings, tensors)
    except InputError as error:
        raise InputError(f"{file}: {error}") from error
