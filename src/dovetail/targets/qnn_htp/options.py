"""The options of ``qnn-htp``: known keys only, because the provider ignores what it does not know."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.errors import InputError
from dovetail.targets.qnn_htp.chips import Chip

# Our key -> the provider's key, and the values that it may have (empty: a whole number above zero).
_KNOWN: dict[str, tuple[str, tuple[str, ...]]] = {
    "vtcm_mb": ("vtcm_mb", ()),
    "optimization": ("htp_graph_finalization_optimization_mode", ("0", "1", "2", "3")),
    "hvx_threads": ("num_hvx_threads", ()),
}
DEFAULTS = {"optimization": "3"}


def provider_options(chip: Chip, given: Mapping[str, str], *, float16: bool) -> dict[str, str]:
    """What the provider is told: the chip, the caller's options, and float16 when a tensor needs it."""
    options = {}
    for key, value in {**DEFAULTS, **given}.items():
        if key not in _KNOWN:
            raise InputError(f"target qnn-htp has no option {key!r}; there is {', '.join(_KNOWN)}")
        name, allowed = _KNOWN[key]
        if allowed and value not in allowed:
            raise InputError(f"--option {key}={value}: must be one of {', '.join(allowed)}")
        if not allowed and not (value.isdigit() and int(value) > 0):
            raise InputError(f"--option {key}={value}: must be a whole number above zero")
        options[name] = value
    if chip.soc is not None:
        options["soc_model"] = str(chip.soc)
    else:
        options["htp_arch"] = str(chip.architecture)
    if float16:
        options["enable_htp_fp16_precision"] = "1"
    return options
