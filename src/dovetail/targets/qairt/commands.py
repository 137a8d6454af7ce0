"""The command lines for one SDK as a script, and the configuration files that they read."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from dovetail.model.edit import shape_of
from dovetail.targets.qairt.call import ConverterCall
from dovetail.targets.qairt.facts import fact
from dovetail.targets.qairt.options import QairtFacts
from dovetail.targets.qairt.sdk import Answer, Subject

HOST = "x86_64-linux-clang"
# Where QNN's tools look for the backend's options, and the file with the options themselves.
EXTENSIONS, BACKEND = "htp_extensions.json", "htp_backend.json"
# The variables that name the SDK's folder, in this order.
ROOTS = ("QAIRT_SDK_ROOT", "QNN_SDK_ROOT")
SCRIPT = "convert.sh"
_INPUT_LIST = 'input_list="$(realpath "${INPUT_LIST:?a file that lists calibration inputs for the converter}")"'


@dataclass(frozen=True, slots=True)
class Part:
    """One model to convert: its file name without suffix, its encodings, if it is quantized, and its inputs."""

    name: str
    encodings: str | None
    inputs: tuple[tuple[str, tuple[int, ...]], ...]
    call: ConverterCall


def inputs_of(model: ir.Model) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The inputs of a graph with their shapes, as the converter takes them."""
    return tuple((str(value.name), shape_of(value) or ()) for value in model.graph.inputs)


def uses_dlc(facts: QairtFacts) -> bool:
    """Whether the commands are those of qairt-converter, which 2.0.0 encodings are meant for."""
    return fact(Subject.READS_2_0_0, facts.sdk).answer is Answer.YES


def script(facts: QairtFacts, parts: Sequence[Part], *, own_model: bool = False) -> str:
    """A script that converts all parts and writes their context binaries, in the folder that it is in.

    ``own_model``: the caller's own ONNX file is converted, which is the first argument.
    """
    needs_list = not uses_dlc(facts) and any(part.encodings and part.call.input_list for part in parts)
    lines = [
        "#!/bin/sh",
        f"# For QAIRT {facts.sdk_text} and {facts.chip.name}, as documented. Set QAIRT_SDK_ROOT to its folder.",
        "set -eu",
        *(['own_model="$(realpath "${1:?usage: convert.sh MODEL.onnx}")"'] if own_model else []),
        'sdk="$(realpath "${QAIRT_SDK_ROOT:-${QNN_SDK_ROOT:?set QAIRT_SDK_ROOT to the folder of the SDK}}")"',
        *([_INPUT_LIST] if needs_list else []),
        'cd "$(dirname "$0")"',
        f'tools="$sdk/bin/{HOST}"',
        f'export LD_LIBRARY_PATH="$sdk/lib/{HOST}:${{LD_LIBRARY_PATH:-}}"',
        'export PYTHONPATH="$sdk/lib/python:${PYTHONPATH:-}"',
    ]
    for part in parts:
        source = '"$own_model"' if own_model else shlex.quote(f"{part.name}.onnx")
        lines += ["", f"# {part.name}", *_commands(facts, part, source)]
    return "\n".join(lines) + "\n"


def _commands(facts: QairtFacts, part: Part, source: str) -> list[str]:
    return _dlc_commands(part, source) if uses_dlc(facts) else _cpp_commands(part, source)


def _cpp_commands(part: Part, source: str) -> list[str]:
    name = shlex.quote(part.name)
    convert = [f'"$tools/qnn-onnx-converter" --input_network {source}', f"--output_path {name}.cpp", *_dims(part)]
    libs = f"libs/{HOST}/lib{part.name}.so"
    return [
        _joined([*convert, *_flags(part)]),
        _joined([f'"$tools/qnn-model-lib-generator" -c {name}.cpp -b {name}.bin', f"-o libs -t {HOST}"]),
        _context(f"--model {shlex.quote(libs)}", name),
    ]


def _dlc_commands(part: Part, source: str) -> list[str]:
    name = shlex.quote(part.name)
    overrides = [f"--quantization_overrides {part.encodings}"] if part.encodings else []
    steps = [
        _joined(
            [
                f'"$tools/qairt-converter" --input_network {source}',
                f"--output_path {name}.dlc",
                *_dims(part, "--source_model_input_shape"),
                *overrides,
                f"--float_bitwidth {part.call.float_bits}",
            ]
        )
    ]
    dlc = f"{name}.dlc"
    if part.encodings:
        dlc = f"{name}_quantized.dlc"
        flags = [f"--bias_bitwidth {part.call.bias_bits}", f"--float_bitwidth {part.call.float_bits}"]
        quantize = [f'"$tools/qairt-quantizer" --input_dlc {name}.dlc', f"--output_dlc {dlc}", "--float_fallback"]
        steps.append(_joined([*quantize, *flags]))
    # From the DLC, a JSON file like the one that qnn-onnx-converter writes: what was made of every tensor.
    to_json = '"$tools/qairt-dlc-to-json"'
    steps.append(f"if [ -x {to_json} ]; then {to_json} -i {dlc} -o {name}_net.json; fi")
    return [*steps, _context(f'--model "$sdk/lib/{HOST}/libQnnModelDlc.so" --dlc_path {dlc}', name)]


def _flags(part: Part) -> list[str]:
    """The flags of qnn-onnx-converter; a part without encodings is only converted to float."""
    if part.encodings is None:
        return [f"--float_bitwidth {part.call.float_bits}"]
    call = part.call
    flags = [f"--quantization_overrides {part.encodings}"]
    if call.input_list:
        flags.append('--input_list "$input_list"')
    if call.float_fallback:
        flags.append("--float_fallback")
    return [
        *flags,
        f"--float_bitwidth {call.float_bits}",
        f"--act_bitwidth {call.act_bits} --weights_bitwidth {call.weight_bits} --bias_bitwidth {call.bias_bits}",
        "--use_per_channel_quantization --use_per_row_quantization",
    ]


def _dims(part: Part, flag: str = "--input_dim") -> list[str]:
    """The shapes of the inputs; a scalar has none."""
    return [f"{flag} {shlex.quote(name)} {','.join(map(str, shape))}" for name, shape in part.inputs if shape]


def _context(model: str, name: str) -> str:
    return _joined(
        [
            f'"$tools/qnn-context-binary-generator" {model}',
            f'--backend "$sdk/lib/{HOST}/libQnnHtp.so"',
            f"--binary_file {name} --output_dir context --config_file {EXTENSIONS}",
        ]
    )


def _joined(parts: Sequence[str]) -> str:
    return " \\\n  ".join(parts)


def configurations(facts: QairtFacts, parts: Sequence[Part]) -> dict[str, str]:
    """The configuration files of the context binary generator, by file name."""
    graph: dict[str, object] = {"graph_names": [part.name for part in parts], "O": facts.optimization}
    if facts.vtcm_mb is not None:
        graph["vtcm_mb"] = facts.vtcm_mb
    graph |= {"finalize_config": {}, "fp16_relaxed_precision": 1}
    device: dict[str, object] = {"dsp_arch": f"v{facts.chip.architecture}"}
    if facts.chip.soc is not None:
        device["soc_model"] = facts.chip.soc
    extensions = {"shared_library_path": "libQnnHtpNetRunExtensions.so", "config_file_path": BACKEND}
    return {
        BACKEND: json.dumps({"graphs": [graph], "devices": [device]}, indent=1) + "\n",
        EXTENSIONS: json.dumps({"backend_extensions": extensions}, indent=1) + "\n",
    }
