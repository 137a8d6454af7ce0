"""HTML and SVG as text: whatever is not markup already is escaped, so that no name of a model becomes markup."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

from dovetail.printable import printable

# Elements without content and without an end tag.
_VOID = frozenset(("input", "meta", "br"))


class Markup(str):
    """Text that is HTML already; any other text is escaped when it becomes part of one."""

    __slots__ = ()


Content = str | Iterable["Content"] | None


def escaped(text: str) -> str:
    """Text for HTML: control characters shown as in a Python literal, markup characters as entities."""
    return html.escape(printable(text), quote=True)


def markup(content: Content) -> Markup:
    """Join content to markup; text that is not markup is escaped."""
    if content is None:
        return Markup("")
    if isinstance(content, Markup):
        return content
    if isinstance(content, str):
        return Markup(escaped(content))
    return Markup("".join(markup(part) for part in content))


def tag(name: str, /, *content: Content, **attributes: str | int | float | None) -> Markup:
    """An element; an attribute ``class_`` is ``class``, ``aria_label`` is ``aria-label``, None is left out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escaped(_text(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{markup(content)}</{name}>")


def _text(value: str | int | float) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


def table(
    caption: str,
    headers: Sequence[str],
    rows: Iterable[Sequence[Content]],
    *,
    numeric: Iterable[int] = (),
    **attributes: str,
) -> Markup:
    """A table that can be scrolled by keyboard if it is too wide; the first cell of a row is its header."""
    right = frozenset(numeric)

    def cell(number: int, content: Content) -> Markup:
        class_ = "number" if number in right else None
        if number == 0:
            return tag("th", content, scope="row", class_=class_)
        return tag("td", content, class_=class_)

    head = tag(
        "tr", [tag("th", text, scope="col", class_="number" if i in right else None) for i, text in enumerate(headers)]
    )
    body = [tag("tr", [cell(i, content) for i, content in enumerate(row)]) for row in rows]
    inner = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", body), **attributes)
    return scrollable(inner, caption)


def scrollable(content: Content, label: str) -> Markup:
    """A box that scrolls sideways, and takes the focus so that the arrow keys scroll it."""
    return tag("div", content, class_="scroll", role="region", aria_label=label, tabindex=0)


def section(identifier: str, title: str, *content: Content) -> Markup:
    """A section of the page with a heading that names it."""
    heading = tag("h2", title, id=f"{identifier}-title")
    return tag("section", heading, *content, id=identifier, aria_labelledby=f"{identifier}-title")


def details(summary: Content, *content: Content, open_: bool = False) -> Markup:
    """What is shown on request."""
    element = tag("details", tag("summary", summary), *content)
    return Markup(element.replace("<details>", "<details open>", 1)) if open_ else element


def code_block(text: str) -> Markup:
    """Code with a button that copies it; the script of the page shows the button."""
    button = tag("button", "Copy", type="button", class_="copy", hidden="hidden")
    return tag("div", tag("pre", tag("code", text), tabindex=0, aria_label="code"), button, class_="code")


def prose(text: str) -> Markup:
    """Paragraphs, lists and code of the Markdown that rules are documented in."""
    blocks = []
    for block in re.split(r"\n\s*\n", text.strip()):
        items = re.split(r"^[-*] ", block, flags=re.MULTILINE)
        if len(items) > 1:
            before = [tag("p", inline(items[0]))] if items[0].strip() else []
            blocks += [*before, tag("ul", [tag("li", inline(item)) for item in items[1:]])]
        else:
            blocks.append(tag("p", inline(block)))
    return markup(blocks)


def inline(text: str) -> list[Markup]:
    """A text in which code is between backticks."""
    parts = re.split(r"`([^`]+)`", " ".join(text.split()))
    return [tag("code", part) if number % 2 else markup(part) for number, part in enumerate(parts)]
