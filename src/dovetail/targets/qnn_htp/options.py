"""The options of ``qnn-htp``; unknown keys are errors, because the provider silently ignores them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dovetail.errors import InputError
from dovetail.targets.child import DEFAULT_LIMITS, Limits
from dovetail.targets.htp.chips import Chip
from dovetail.targets.option_values import LIMITS, one_of, read_limits, whole
from dovetail.targets.qnn_htp.qairt import Version, parse_version

# Our key -> the provider's key and its allowed values (empty: any whole number above zero).
PROVIDER_KEYS: dict[str, tuple[str, tuple[str, ...]]] = {
    "vtcm_mb": ("vtcm_mb", ()),
    "optimization": ("htp_graph_finalization_optimization_mode", ("0", "1", "2", "3")),
}
DEFAULTS = {"optimization": "3"}
# Options that are not passed to the provider: whether to write a DLC, the device's QAIRT version, whether known
# miscompilations are avoided, and limits.
_OWN_DEFAULTS = {
    "dlc": "0",
    "device_qairt": "",
    "workarounds": "on",
    **LIMITS,
}
KEYS = (*PROVIDER_KEYS, *_OWN_DEFAULTS)


@dataclass(frozen=True, slots=True)
class HtpOptions:
    """The options of the target. ``provider``: those that are passed to the provider, under its names.

    ``dlc``: also write a DLC. ``device_qairt``: the QAIRT version of the device that loads the compiled files.
    ``workarounds``: whether graphs that the compiler is known to compute wrongly are changed.
    """

    chip: Chip
    provider: Mapping[str, str]
    dlc: bool = False
    device_qairt: Version | None = None
    workarounds: bool = True
    limits: Limits = DEFAULT_LIMITS


def read_options(chip: Chip, options: Mapping[str, str]) -> HtpOptions:
    """Check the values of ``--option`` and return them as a record."""
    for key in options:
        if key not in PROVIDER_KEYS and key not in _OWN_DEFAULTS:
            raise InputError(f"target qnn-htp has no option {key!r}; expected one of {', '.join(KEYS)}")
    provider = {key: value for key, value in options.items() if key in PROVIDER_KEYS}
    own = {**_OWN_DEFAULTS, **options}
    return HtpOptions(
        chip,
        provider_options(chip, provider, float16=chip.has_float16),
        dlc=one_of("dlc", own["dlc"], ("0", "1")) == "1",
        device_qairt=parse_version(own["device_qairt"]) if "device_qairt" in options else None,
        workarounds=one_of("workarounds", own["workarounds"], ("on", "off")) == "on",
        limits=read_limits(own),
    )


def provider_options(chip: Chip, options: Mapping[str, str], *, float16: bool) -> dict[str, str]:
    """Return the provider's options: the chip, the caller's options, and whether float16 is enabled."""
    provider = {}
    for key, value in {**DEFAULTS, **options}.items():
        name, allowed = PROVIDER_KEYS[key]
        provider[name] = one_of(key, value, allowed) if allowed else str(whole(key, value))
    if chip.vtcm_mb is not None and int(provider.get("vtcm_mb", 0)) > chip.vtcm_mb:
        raise InputError(
            f"--option vtcm_mb={provider['vtcm_mb']}: {chip.name} has {chip.vtcm_mb} MB; use at most that, the "
            "compiler silently accepts more but the device does not"
        )
    if chip.soc is not None:
        provider["soc_model"] = str(chip.soc)
    else:
        provider["htp_arch"] = str(chip.architecture)
    if float16:
        provider["enable_htp_fp16_precision"] = "1"
    return provider
