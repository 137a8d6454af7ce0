"""Elementwise operators: each output element depends only on the input elements at the same position, broadcast."""

from __future__ import annotations

# fmt: off
ELEMENTWISE = (
    "Abs", "Add", "And", "Cast", "Ceil", "Clip", "Cos", "Div", "Elu", "Equal", "Erf", "Exp", "Floor", "Gelu",
    "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max",
    "Min", "Mul", "Neg", "Not", "Or", "Pow", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Softplus",
    "Sqrt", "Sub", "Tanh", "Where",
)
# fmt: on
