"""What sensitivity is measured for: the whole model, its blocks, its operators; weights apart from activations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from dovetail.finding import WHOLE_MODEL
from dovetail.plan.elements import Element, ElementKind

# The part of a name that numbers a block: the 3 of ``decoder.layers.3.attn/MatMul``, ``stage2`` of ``/stage2/Conv``.
_NUMBERED = re.compile(r"[A-Za-z_]*\d+")
_PARTS = re.compile(r"[^/.]+")


class Level(StrEnum):
    """How much of the model is quantized while the rest stays in float."""

    MODEL = "model"
    BLOCK = "block"
    OPERATOR = "operator"


class Part(StrEnum):
    """What is quantized of it."""

    BOTH = "both"
    WEIGHTS = "weights"
    ACTIVATIONS = "activations"


@dataclass(frozen=True, slots=True)
class Subject:
    """Something that is quantized alone: ``elements`` of the plan, by number.

    ``name``: in the caller's names. ``unit``: of an operator, its name in the rewritten graph, which no other one has.
    ``whole``: whether that is all that is quantized of it, and not one part of two. ``tensors``: the caller's tensors
    among it, as ``--keep`` accepts them.
    """

    level: Level
    part: Part
    name: str
    op_type: str
    elements: frozenset[int]
    unit: str = ""
    whole: bool = True
    tensors: tuple[str, ...] = ()


def subjects_of(elements: Sequence[Element]) -> tuple[Subject, ...]:
    """The whole model, then every block, then every operator in graph order."""
    return (*whole_model(elements), *_blocks(elements), *operators(elements))


def whole_model(elements: Sequence[Element]) -> Iterator[Subject]:
    """Everything, only the weights, and only the activations."""
    yield from _by_part(Level.MODEL, str(WHOLE_MODEL), "", range(len(elements)), elements)


def operators(elements: Sequence[Element]) -> Iterator[Subject]:
    """Every operator: its weights, the activations that it writes, and both; a graph input is an operator here."""
    units: dict[tuple[str, str], list[int]] = {}
    for number, element in enumerate(elements):
        units.setdefault((element.unit, "" if element.unit else element.place.tensor), []).append(number)
    for numbers in units.values():
        place = elements[numbers[0]].place
        name = next(iter(place.nodes), place.tensor)
        yield from _by_part(Level.OPERATOR, name, place.op_type, numbers, elements, elements[numbers[0]].unit)


def _blocks(elements: Sequence[Element]) -> Iterator[Subject]:
    """What has the same numbered prefix in the names of its nodes; nothing if fewer than two prefixes are numbered."""
    blocks: dict[str, list[int]] = {}
    for number, element in enumerate(elements):
        if (block := block_of(element.place.nodes)) is not None:
            blocks.setdefault(block, []).append(number)
    for name, numbers in blocks.items() if len(blocks) > 1 else ():
        yield from _by_part(Level.BLOCK, name, "", numbers, elements)


def block_of(nodes: Iterable[str]) -> str | None:
    """The name of a block: a node's name up to its first numbered part, unless that is the name's last part."""
    for name in nodes:
        parts = list(_PARTS.finditer(name))
        for part in parts[:-1]:
            if _NUMBERED.fullmatch(part[0]):
                return name[: part.end()]
    return None


def _by_part(
    level: Level, name: str, op_type: str, numbers: Iterable[int], elements: Sequence[Element], unit: str = ""
) -> Iterator[Subject]:
    chosen = list(numbers)
    weights, activations = (
        frozenset(number for number in chosen if elements[number].kind is kind)
        for kind in (ElementKind.WEIGHTS, ElementKind.ACTIVATIONS)
    )
    parts = {Part.BOTH: weights | activations, Part.WEIGHTS: weights, Part.ACTIVATIONS: activations}
    if not weights or not activations:
        del parts[Part.BOTH]
    for part, of_part in parts.items():
        if of_part:
            tensors = dict.fromkeys(elements[number].place.tensor for number in sorted(of_part))
            keep = tuple(tensors) if level is Level.OPERATOR else ()
            whole = part is Part.BOTH or Part.BOTH not in parts
            yield Subject(level, part, name, op_type, of_part, unit, whole, keep)
