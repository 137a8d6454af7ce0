"""The real HTP compiler on a graph written down as ONNX text, float or with its own Q/DQ pairs."""

from __future__ import annotations

from pathlib import Path

import onnx

from dovetail.backend import Artifact, CompileResult
from dovetail.targets.htp.chips import chip_named
from dovetail.targets.qnn_htp.compile import compile_model, package
from dovetail.targets.qnn_htp.options import HtpOptions, read_options

RELU = "g (float[1,8,16] x) => (float[1,8,16] y) { [act] y = Relu(x) }"
ERF = "g (float[1,8,16] x) => (float[1,8,16] y) { [act] a = Relu(x)  [curve] y = Erf(a) }"


def options(chip: str = "sm8550", **given: str) -> HtpOptions:
    """What ``--option`` gives for a chip."""
    return read_options(chip_named(chip), given)


def wheel_without(library: str, folder: Path) -> Path:
    """The installed package but for one library, in a folder that can be put on the path."""
    import onnxruntime_qnn

    package = folder / "onnxruntime_qnn"
    package.mkdir()
    libraries = Path(onnxruntime_qnn.__file__).parent
    if (beside := libraries.with_suffix(".libs")).exists():  # what the others are linked with
        (folder / beside.name).symlink_to(beside)
    for path in libraries.iterdir():
        if path.name != library:
            (package / path.name).symlink_to(path)
    return folder


def compile_text(body: str, folder: Path, asked: HtpOptions | None = None, opset: int = 21) -> CompileResult:
    """Compile ``name (inputs) => (outputs) <initializers> { nodes }`` into a folder, as what ships."""
    path = folder / "model.onnx"
    header = f'<ir_version: 10, opset_import: ["": {opset}, "com.microsoft": 1]>'
    onnx.save(onnx.parser.parse_model(f"{header} {body}"), path)
    asked = asked or options()
    compiled = compile_model(asked, (Artifact("model", path),), folder)
    return compiled if compiled.error else package(asked, compiled, folder)
