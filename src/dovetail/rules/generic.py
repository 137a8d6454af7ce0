"""The rules that apply to every target."""

from __future__ import annotations

from dovetail.rules import ranges, shapes, sharing, widths
from dovetail.rules.rule import rules_in

GENERIC = rules_in(ranges, shapes, sharing, widths)
