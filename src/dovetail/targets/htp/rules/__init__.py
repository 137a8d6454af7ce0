"""The rules for HTP targets."""

from __future__ import annotations

from dovetail.rules.rule import rules_in
from dovetail.targets.htp.rules import compiler, dtypes, granularity, kernels, numerics, placement, shapes
from dovetail.targets.htp.workarounds import MODULES

RULES = rules_in(compiler, dtypes, granularity, kernels, numerics, placement, shapes, *MODULES)
