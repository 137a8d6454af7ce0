"""All rules: the modules that hold them, named here and nowhere else."""

from __future__ import annotations

from dovetail.errors import InputError
from dovetail.rules import (
    htp_compiler,
    htp_dtypes,
    htp_granularity,
    htp_kernels,
    htp_numerics,
    htp_placement,
    htp_shapes,
    ranges,
    shapes,
    sharing,
    trt_attention,
    trt_compiler,
    trt_types,
    xnnpack_kernels,
)
from dovetail.rules.rule import RETIRED, Rule, registered

# A module with rules is added here; importing it is what registers them.
MODULES = (
    sharing,
    ranges,
    shapes,
    htp_kernels,
    htp_dtypes,
    htp_granularity,
    htp_placement,
    htp_numerics,
    htp_shapes,
    xnnpack_kernels,
    trt_types,
    trt_attention,
    htp_compiler,
    trt_compiler,
)


def all_rules() -> tuple[Rule, ...]:
    """Every rule, by code."""
    return registered()


def find_rule(code: str) -> Rule:
    """The rule with a code, in either case of letter; a retired or unknown one is refused."""
    wanted = code.upper()
    if wanted in RETIRED:
        raise InputError(f"rule {wanted} is retired: {RETIRED[wanted]}")
    found = next((each for each in all_rules() if each.code == wanted), None)
    if found is None:
        raise InputError(f"there is no rule {code!r}; `dovetail explain` lists all")
    return found
