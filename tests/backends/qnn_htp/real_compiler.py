"""Run the real HTP compiler on a graph in ONNX text, in float or with Q/DQ pairs."""

from __future__ import annotations

from pathlib import Path

import onnx

from dovetail.backend import Artifact, CompileResult
from dovetail.targets.htp.chips import chip_named
from dovetail.targets.qnn_htp.compile import compile_model, package
from dovetail.targets.qnn_htp.options import HtpOptions, read_options

RELU = "g (float[1,8,16] x) => (float[1,8,16] y) { [act] y = Relu(x) }"
ERF = "g (float[1,8,16] x) => (float[1,8,16] y) { [act] a = Relu(x)  [curve] y = Erf(a) }"


def options(chip: str = "sm8550", **option: str) -> HtpOptions:
    """The options of a chip, as with ``--option``."""
    return read_options(chip_named(chip), option)


def wheel_without(library: str, folder: Path) -> Path:
    """Link the installed package without one library into a folder, and return the folder to import it from."""
    import onnxruntime_qnn

    package = folder / "onnxruntime_qnn"
    package.mkdir()
    libraries = Path(onnxruntime_qnn.__file__).parent
    if (dependencies := libraries.with_suffix(".libs")).exists():  # the other libraries are linked with these
        (folder / dependencies.name).symlink_to(dependencies)
    for path in libraries.iterdir():
        if path.name != library:
            (package / path.name).symlink_to(path)
    return folder


def compile_text(body: str, folder: Path, htp_options: HtpOptions | None = None, opset: int = 21) -> CompileResult:
    """Compile and package ``name (inputs) => (outputs) <initializers> { nodes }`` into a folder."""
    path = folder / "model.onnx"
    header = f'<ir_version: 10, opset_import: ["": {opset}, "com.microsoft": 1]>'
    onnx.save(onnx.parser.parse_model(f"{header} {body}"), path)
    htp_options = htp_options or options()
    compiled = compile_model(htp_options, (Artifact("model", path),), folder)
    return compiled if compiled.error else package(htp_options, compiled, folder)
