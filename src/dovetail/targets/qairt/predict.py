"""The precision that every tensor is predicted to have on the device, by the facts about the converter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import onnx_ir as ir

from dovetail.encodings.records import TensorEncoding
from dovetail.targets.qairt.call import ConverterCall
from dovetail.targets.qairt.facts import fact
from dovetail.targets.qairt.roles import Role, TensorRole, tensor_roles
from dovetail.targets.qairt.sdk import SdkFact, Subject, Version

# The dtypes of tensors that are not quantized.
FLOATS = ("float16", "float32")


class Cause(StrEnum):
    """Why a tensor is predicted to have its precision."""

    ENTRY = "its entry in the encodings"
    CALIBRATED = "no entry: the converter calibrates it"
    FALLBACK = "no entry: --float_fallback"
    QUANTIZER_V2 = "no entry: Quantizer V2 runs it in float16"
    PASSED_THROUGH = "no entry: it has the encoding of the tensor that it is a copy of"
    FUSED = "no entry: it is not stored, the operators around it are fused"
    BIAS = "no entry: --bias_bitwidth"
    NOT_QUANTIZED = "the quantizer does not run: neither --input_list nor --float_fallback is given"


@dataclass(frozen=True, slots=True)
class PredictedTensor:
    """The predicted precision of one tensor: a dtype, why, and the fact that it follows from, if any."""

    tensor: str
    role: Role
    dtype: str
    cause: Cause
    fact: SdkFact | None = None


def predict(
    model: ir.Model,
    entries: Mapping[str, TensorEncoding],
    call: ConverterCall,
    sdk: Version,
    *,
    quantizer_v2: SdkFact | None = None,
) -> dict[str, PredictedTensor]:
    """The precision of every float tensor of a graph that is converted with these encodings, in graph order.

    ``quantizer_v2``: the fact by which the file or a flag selects Quantizer V2; None if neither does.
    """
    roles = tensor_roles(model)
    predicted: dict[str, PredictedTensor] = {}
    how = _Conversion(entries, call, sdk, quantizer_v2)
    for name in roles:
        _predict(name, roles, how, predicted)
    return {name: predicted[name] for name in roles}


@dataclass(frozen=True, slots=True)
class _Conversion:
    """What is the same for all tensors of a graph that is converted."""

    entries: Mapping[str, TensorEncoding]
    call: ConverterCall
    sdk: Version
    quantizer_v2: SdkFact | None


def _predict(
    name: str, roles: Mapping[str, TensorRole], how: _Conversion, done: dict[str, PredictedTensor]
) -> PredictedTensor:
    """The prediction of one tensor, after that of the tensor that it follows."""
    if name in done:
        return done[name]
    role = roles[name]
    done[name] = _without_source(name, role.role, how)  # ends a cycle, which no graph has
    if name not in how.entries and role.follows in roles and how.call.quantizes:
        source = _predict(role.follows, roles, how, done)
        is_copy = role.role is Role.PASSED_THROUGH
        cause, subject = (Cause.PASSED_THROUGH, Subject.FILLS_PASS_THROUGH)
        if not is_copy:
            cause, subject = (Cause.FUSED, Subject.FUSED_OMITTED)
        done[name] = PredictedTensor(name, role.role, source.dtype, cause, fact(subject, how.sdk))
    return done[name]


def _without_source(name: str, role: Role, how: _Conversion) -> PredictedTensor:
    """The prediction for a tensor by its own entry, or by what the converter does without one."""
    entry, call, sdk = how.entries.get(name), how.call, how.sdk
    if not call.quantizes:
        return PredictedTensor(name, role, f"float{call.float_bits}", Cause.NOT_QUANTIZED)
    if entry is not None:
        return PredictedTensor(name, role, entry.dtype_text, Cause.ENTRY)
    if role is Role.FUSED:
        return PredictedTensor(name, role, "not stored", Cause.FUSED, fact(Subject.FUSED_OMITTED, sdk))
    if how.quantizer_v2 is not None:
        return PredictedTensor(name, role, "float16", Cause.QUANTIZER_V2, how.quantizer_v2)
    if not call.input_list:
        return PredictedTensor(
            name, role, f"float{call.float_bits}", Cause.FALLBACK, fact(Subject.HAS_FLOAT_FALLBACK, sdk)
        )
    if role is Role.BIAS:
        return PredictedTensor(name, role, f"int{call.bias_bits}", Cause.BIAS, fact(Subject.BIAS_OMITTED, sdk))
    dtype = f"int{call.weight_bits}" if role is Role.WEIGHT else f"uint{call.act_bits}"
    return PredictedTensor(name, role, dtype, Cause.CALIBRATED, fact(Subject.CALIBRATES_OMITTED, sdk))
