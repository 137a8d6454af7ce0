"""The rules that apply to every target."""

from __future__ import annotations

from dovetail.rules import domains, ranges, shapes, sharing, widths
from dovetail.rules.rule import rules_in

GENERIC = rules_in(domains, ranges, shapes, sharing, widths)
