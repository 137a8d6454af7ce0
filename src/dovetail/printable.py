"""Text for a terminal: control characters escaped, long names shortened, sizes and times in readable units."""

from __future__ import annotations

import re

_UNITS = ("kB", "MB", "GB", "TB")


def printable(text: str) -> str:
    """Escape what a terminal would interpret or cannot show, as Python does in a literal; line breaks stay."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode("ascii") for c in text)


def one_line(text: str) -> str:
    """Escape line breaks too: a name never begins a line of its own."""
    return printable(text).replace("\n", "\\n")


def shortened(name: str, limit: int) -> str:
    """Leave out the middle of a name that has more characters than this."""
    if len(name) <= limit:
        return name
    head = (limit - 3) // 2
    return f"{name[:head]}...{name[len(name) - (limit - 3 - head) :]}"


def shorten_words(text: str, limit: int) -> str:
    """Leave out the middle of every word that has more characters than this, such as a long name in a message."""
    return re.sub(rf"\S{{{limit + 1},}}", lambda word: shortened(word[0], limit), text)


def size_text(size_bytes: int) -> str:
    """``1234567`` -> ``1.2 MB``: in bytes below 1000, else three digits at most."""
    if size_bytes < 1000:
        return f"{size_bytes} B"
    size = float(size_bytes)
    for unit in _UNITS:
        size /= 1000
        if size < 9.95:
            return f"{size:.1f} {unit}"
        if size < 999.5 or unit == _UNITS[-1]:
            break
    return f"{size:.0f} {unit}"


def elapsed_text(seconds: float) -> str:
    """``75`` -> ``1:15``; above an hour ``1:01:15``."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
