"""The options of ``qnn-htp``: known keys only, because the provider ignores what it does not know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dovetail.errors import InputError
from dovetail.targets.child import DEFAULT_LIMITS, Limits
from dovetail.targets.htp.chips import Chip
from dovetail.targets.option_values import LIMITS, one_of, read_limits, whole
from dovetail.targets.qnn_htp.qairt import Version, parse_version

# Our key -> the provider's key, and the values that it may have (empty: a whole number above zero).
PROVIDER_KEYS: dict[str, tuple[str, tuple[str, ...]]] = {
    "vtcm_mb": ("vtcm_mb", ()),
    "optimization": ("htp_graph_finalization_optimization_mode", ("0", "1", "2", "3")),
}
DEFAULTS = {"optimization": "3"}
# What is not for the provider: a DLC beside the context binary, the device's QAIRT, and the limits of the compiler.
_OURS = {
    "dlc": "0",
    "device_qairt": "",
    **LIMITS,
}
KEYS = (*PROVIDER_KEYS, *_OURS)


@dataclass(frozen=True, slots=True)
class HtpOptions:
    """What a caller asked of the target: what the provider is told, and what is ours to do.

    ``device_qairt``: the version of the runtime that is to load what is compiled.
    """

    chip: Chip
    provider: Mapping[str, str]
    dlc: bool = False
    device_qairt: Version | None = None
    limits: Limits = DEFAULT_LIMITS


def read_options(chip: Chip, given: Mapping[str, str]) -> HtpOptions:
    """The checked record of what was given with ``--option``."""
    for key in given:
        if key not in PROVIDER_KEYS and key not in _OURS:
            raise InputError(f"target qnn-htp has no option {key!r}; there is {', '.join(KEYS)}")
    provider = {key: value for key, value in given.items() if key in PROVIDER_KEYS}
    ours = {**_OURS, **given}
    return HtpOptions(
        chip,
        provider_options(chip, provider, float16=chip.has_float16),
        dlc=one_of("dlc", ours["dlc"], ("0", "1")) == "1",
        device_qairt=parse_version(ours["device_qairt"]) if "device_qairt" in given else None,
        limits=read_limits(ours),
    )


def provider_options(chip: Chip, given: Mapping[str, str], *, float16: bool) -> dict[str, str]:
    """What the provider is told: the chip, the caller's options, and float16 when a tensor needs it."""
    options = {}
    for key, value in {**DEFAULTS, **given}.items():
        name, allowed = PROVIDER_KEYS[key]
        options[name] = one_of(key, value, allowed) if allowed else str(whole(key, value))
    if chip.vtcm_mb is not None and int(options.get("vtcm_mb", 0)) > chip.vtcm_mb:
        raise InputError(
            f"--option vtcm_mb={options['vtcm_mb']}: {chip.name} has {chip.vtcm_mb} MB; "
            "the compiler would take it without a word, and the device would not"
        )
    if chip.soc is not None:
        options["soc_model"] = str(chip.soc)
    else:
        options["htp_arch"] = str(chip.architecture)
    if float16:
        options["enable_htp_fp16_precision"] = "1"
    return options
