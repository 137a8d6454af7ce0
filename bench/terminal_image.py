"""Make the picture of the terminal in the README: run the command in a terminal of 80 columns, draw what it printed.

    python -m bench.terminal_image

The drawing is an SVG of rich's, without the fonts that it would load from the network.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

from bench.child import ROOT

IMAGE = ROOT / "docs" / "images" / "terminal.svg"
COMMAND = "dovetail demo"
COLUMNS, LINES = 80, 50
_FONT_FACE = re.compile(r"\s*@font-face \{\{.*?\}\}", re.DOTALL)
# What a terminal shows of a line that was drawn again is the last drawing.
_ERASED = re.compile(r"[^\n]*(\x1b\[2K|\r(?!\n))")
_PROGRESS = re.compile(r"^.*stage \d of \d .*\n+", re.MULTILINE)
_CURSOR = re.compile(r"\x1b\[\??[\d;]*[A-HJKSTfhln]")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=IMAGE)
    parser.add_argument("--command", default=COMMAND, help="a dovetail command; it runs in an empty folder")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        printed = printed_in_terminal(options.command, Path(folder))
    draw(options.command, printed, options.output)
    print(f"{options.output}: {options.output.stat().st_size / 1000:.0f} kB")


def printed_in_terminal(command: str, folder: Path) -> str:
    """Run the command in a pseudo-terminal and return what was left on it, with the colors."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    program = [sys.executable, "-m", "dovetail.cli", *command.split()[1:]]
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "OMP_NUM_THREADS": "1"}
    output = b""
    with subprocess.Popen(program, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # the other side has ended
                break
            if not piece:
                break
            output += piece
    os.close(ours)
    if process.returncode not in (0, 1):
        raise RuntimeError(f"{command} ended with {process.returncode}:\n{output.decode()}")
    left = _CURSOR.sub("", _ERASED.sub("", output.decode().replace("\r\n", "\n")))
    return _PROGRESS.sub("", left)


def draw(command: str, printed: str, image: Path) -> None:
    """Write the SVG: a prompt with the command, and what it printed."""
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    console.print(Text(f"$ {command}", style="bold"))
    console.print(Text.from_ansi(printed.strip("\n")))
    svg_format = _FONT_FACE.sub("", CONSOLE_SVG_FORMAT).replace("Fira Code", "DejaVu Sans Mono")
    image.parent.mkdir(parents=True, exist_ok=True)
    console.save_svg(str(image), title="dovetail", code_format=svg_format, unique_id="terminal")


if __name__ == "__main__":
    main()
