"""The rules for TensorRT."""

from __future__ import annotations

from dovetail.rules.rule import rules_in
from dovetail.targets.tensorrt.rules import attention, compiler, convolutions, linear_layers, operands, types

RULES = rules_in(attention, compiler, convolutions, linear_layers, operands, types)
