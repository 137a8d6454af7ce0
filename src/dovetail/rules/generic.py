"""The rules that apply to every target."""

from __future__ import annotations

from dovetail.rules import accuracy, coordinates, domains, float16, ranges, sentinels, shapes, sharing, types, widths
from dovetail.rules.rule import rules_in

GENERIC = rules_in(accuracy, coordinates, domains, float16, ranges, sentinels, shapes, sharing, types, widths)
