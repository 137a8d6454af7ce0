"""Problem 4: a class token beside patches of a far smaller range, which XNNPACK accepts at export and rejects at load.

XNNPACK only copies bytes in Transpose and Concat, so their inputs and outputs must share one scale and zero point.
Here every tensor has the scale of its own range, as quantizers choose it: the model lowers without a message and does
not load. ``check`` names the tensor; ``repair`` gives all of them one scale, so that the program loads and runs.

Run it with ``python examples/class_token_on_xnnpack.py``. It needs the extra ``[xnnpack]``, and writes below
``runs/class_token_on_xnnpack``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx

import dovetail


def tokens(quantized: bool) -> onnx.ModelProto:
    """Patches within 0.5, a class token within 4, joined; with Q/DQ pairs, or in float."""

    def pair(name: str, scale: str) -> str:
        if not quantized:
            return f"{name}_dq = Identity({name})"
        return f"{name}_q = QuantizeLinear({name}, {scale}, z)  {name}_dq = DequantizeLinear({name}_q, {scale}, z)"

    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 21]>
tokens (float[1,3,16,16] image) => (float[1,17,8] y)
<int64[3] rows = {{1,16,16}}, float small = {{0.004}}, float wide = {{0.032}}, float out = {{0.04}}, int8 z = {{0}}>
{{ {pair("image", "out")}  {pair("kernel", "small")}  [patches] p = Conv<strides=[4,4]>(image_dq, kernel_dq)
  {pair("p", "small")}  [flat] f = Reshape(p_dq, rows)
  {pair("f", "small")}  [to_tokens] t = Transpose<perm=[0,2,1]>(f_dq)
  {pair("t", "wide")}  {pair("class_token", "wide")}  [join] j = Concat<axis=1>(class_token_dq, t_dq)
  {pair("j", "wide")}  {pair("weight", "small")}  [head] y = MatMul(j_dq, weight_dq) }}""")
    random = np.random.default_rng(0)
    shapes = {"kernel": (16, 3, 4, 4), "class_token": (1, 1, 16), "weight": (16, 8)}
    for name, limit in (("kernel", 0.05), ("class_token", 4), ("weight", 0.5)):
        array = random.uniform(-limit, limit, shapes[name]).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def main(folder: Path) -> None:
    """Check the quantized model and repair it: it is compiled as it is, too."""
    findings = dovetail.check(tokens(quantized=True), target="xnnpack")
    for finding in findings:
        print(f"{finding.code} {finding.message}")
    images = np.random.default_rng(1).normal(size=(8, 3, 16, 16)).astype(np.float32)
    result = dovetail.repair(
        tokens(quantized=True),
        target="xnnpack",
        float_model=tokens(quantized=False),
        calibration={"image": images},
        output=folder,
        force=True,
    )
    if result.verdicts["compiled"].status != "pass":
        sys.exit(result.verdicts["compiled"].reason)
    (as_given,) = json.loads((folder / "repair.json").read_bytes())["as_given"]
    print(f"as given:   {as_given}")
    for check in ("repaired", "compiled", "fidelity", "numerics"):
        print(f"{check:11} {result.verdicts[check].status}: {result.verdicts[check].reason}")
    if "Q301" not in {finding.code for finding in findings} or not as_given.startswith("not compiled"):
        sys.exit("the model as given was expected to be rejected, and check to say so")
    if result.failed or result.verdicts["numerics"].status != "pass":
        sys.exit("the repaired model does not run as planned")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/class_token_on_xnnpack"))
