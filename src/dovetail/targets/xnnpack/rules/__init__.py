"""The rules for XNNPACK."""

from __future__ import annotations

from dovetail.rules.rule import rules_in
from dovetail.targets.xnnpack.rules import kernels, types

RULES = rules_in(kernels, types)
