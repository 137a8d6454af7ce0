"""The rules for HTP targets."""

from __future__ import annotations

from dovetail.rules.rule import rules_in
from dovetail.targets.htp.rules import (
    biases,
    compiler,
    dtypes,
    granularity,
    guards,
    kernels,
    linear_layers,
    norms,
    numerics,
    output_scales,
    placement,
    shapes,
)
from dovetail.targets.htp.workarounds import MODULES

# Those on a graph and its plan, whichever tool compiles it.
_ON_GRAPHS = (
    biases,
    dtypes,
    granularity,
    guards,
    kernels,
    linear_layers,
    norms,
    numerics,
    output_scales,
    placement,
    shapes,
    *MODULES,
)
GRAPH_RULES = rules_in(*_ON_GRAPHS)
# Also the messages of the compiler in ONNX Runtime's provider.
RULES = rules_in(compiler, *_ON_GRAPHS)
