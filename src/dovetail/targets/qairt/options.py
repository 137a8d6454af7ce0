"""The options of ``qairt``: how the customer calls the converter, and how the files are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dovetail.errors import InputError
from dovetail.targets.child import DEFAULT_LIMITS, Limits
from dovetail.targets.htp.chips import Chip, chip_named
from dovetail.targets.option_values import LIMITS, one_of, read_limits, whole
from dovetail.targets.qairt.call import ConverterCall
from dovetail.targets.qairt.sdk import Version, parse_sdk

DEFAULT_SDK = "2.51"
_SWITCHES = ("0", "1")
_WIDTHS = {
    "act_bitwidth": ("8", "16"),
    "weights_bitwidth": ("4", "8", "16"),
    "bias_bitwidth": ("8", "32"),
    "float_bitwidth": ("16", "32"),
}
# The flags of the converter as `check` takes them to be given; the defaults are those of the converter.
_CALL = {
    "input_list": "1",
    "float_fallback": "0",
    "float_bitwidth": "32",
    "act_bitwidth": "8",
    "weights_bitwidth": "8",
    "bias_bitwidth": "8",
    "custom_io": "0",
    "ignore_encodings": "0",
    "use_quantize_v2": "0",
}
_FILES = {"keep_graph": "0", "optimization": "3", "strategy": "auto"}
STRATEGIES = ("auto", "fallback", "explicit", "split", "qdq")
KEYS = (*_CALL, *_FILES, "vtcm_mb", *LIMITS)


@dataclass(frozen=True, slots=True)
class QairtFacts:
    """One SDK version and one chip. ``call``: how the customer calls the converter, which ``check`` judges.

    ``keep_graph``: the customer's own ONNX file is converted, only the encodings are new. ``strategy``: the way out
    that the customer chose; empty for the best one.
    """

    sdk: Version
    chip: Chip
    call: ConverterCall = field(default_factory=ConverterCall)
    keep_graph: bool = False
    optimization: int = 3
    vtcm_mb: int | None = None
    strategy: str = ""
    limits: Limits = DEFAULT_LIMITS

    @property
    def sdk_text(self) -> str:
        return ".".join(map(str, self.sdk))

    @property
    def name(self) -> str:
        return f"qairt:{self.sdk_text}/{self.chip.name}"


def read_facts(suffix: str, options: Mapping[str, str]) -> QairtFacts:
    """The SDK and the chip of ``2.33/v75``, ``2.41/soc52`` or ``2.41/soc90/v75``, with the options of the caller."""
    version, _, chip_text = (suffix or DEFAULT_SDK).partition("/")
    chip = replace(chip_named(chip_text, "qairt:SDK/"), float16_needs_soc=False)
    for key in options:
        if key not in KEYS:
            raise InputError(f"target qairt has no option {key!r}; expected one of {', '.join(KEYS)}")
    values = {**_CALL, **_FILES, **LIMITS, **options}
    vtcm_mb = whole("vtcm_mb", values["vtcm_mb"]) if "vtcm_mb" in values else chip.vtcm_mb
    if chip.vtcm_mb is not None and vtcm_mb is not None and vtcm_mb > chip.vtcm_mb:
        raise InputError(f"--option vtcm_mb={vtcm_mb}: {chip.name} has {chip.vtcm_mb} MB; use at most that")
    if values["keep_graph"] == "1" and values["strategy"] == "split":
        raise InputError("--option strategy=split cuts the graph, which --option keep_graph=1 forbids; leave one out")
    return QairtFacts(
        parse_sdk(version),
        chip,
        _call(values),
        keep_graph=_is_on("keep_graph", values),
        optimization=int(one_of("optimization", values["optimization"], ("1", "2", "3"))),
        vtcm_mb=vtcm_mb,
        strategy=one_of("strategy", values["strategy"], STRATEGIES).replace("auto", ""),
        limits=read_limits(values),
    )


def _call(values: Mapping[str, str]) -> ConverterCall:
    widths = {key: int(one_of(key, values[key], allowed)) for key, allowed in _WIDTHS.items()}
    return ConverterCall(
        input_list=_is_on("input_list", values),
        float_fallback=_is_on("float_fallback", values),
        float_bits=widths["float_bitwidth"],
        act_bits=widths["act_bitwidth"],
        weight_bits=widths["weights_bitwidth"],
        bias_bits=widths["bias_bitwidth"],
        custom_io=_is_on("custom_io", values),
        ignore_encodings=_is_on("ignore_encodings", values),
        use_quantize_v2=_is_on("use_quantize_v2", values),
    )


def _is_on(key: str, values: Mapping[str, str]) -> bool:
    return one_of(key, values[key], _SWITCHES) == "1"


# An SDK version and a chip, as those of qnn-htp are named.
SUFFIXES = ("2.33/v75", "2.41/soc52", "SDK/CHIP")
