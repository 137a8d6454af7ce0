"""The rules for QAIRT's converters: what becomes of an encodings file, by SDK version."""

from __future__ import annotations

from dovetail.rules.rule import rules_in
from dovetail.targets.qairt.rules import files, flags, kernels, omitted, plans, scales

RULES = rules_in(files, flags, kernels, omitted, plans, scales)
