"""Problem 5: an FP8 attention block that falls out of fusion, because its Q/DQ pairs are in the wrong places.

There is a pair on the scores, as before every Add of some quantizers, and none on the output of the Softmax. The
builder accepts the model and runs the block as separate float16 kernels. ``check`` says so before it is built, and
``repair`` moves the pairs, with the scales that the model has.

Run it with ``python examples/attention_on_tensorrt.py``. It needs the extra ``[tensorrt]`` and no GPU, and writes
``runs/attention_on_tensorrt``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx

import dovetail


def attention(quantized: bool) -> onnx.ModelProto:
    """One attention block with two heads; with Q/DQ pairs in float8, or in float."""

    def pair(name: str, scale: str) -> str:
        if not quantized:
            return f"{name}_8 = Identity({name})"
        quantize = f"{name}_q = QuantizeLinear<output_dtype=17>({name}, {scale})"
        return f"{quantize}  {name}_8 = DequantizeLinear({name}_q, {scale})"

    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 21]>
attention (float[1,64,128] x) => (float[1,64,128] y)
<int64[4] heads = {{1,64,2,64}}, int64[3] flat = {{1,64,128}}, float eighth = {{0.125}},
 float s = {{0.01}}, float w = {{0.001}}>
{{ {pair("x", "s")}  {pair("wq", "w")}  {pair("wk", "w")}  {pair("wv", "w")}  {pair("wo", "w")}
  q0 = MatMul(x_8, wq_8)  q1 = Reshape(q0, heads)  q2 = Transpose<perm=[0,2,1,3]>(q1)  q = Mul(q2, eighth)
  k0 = MatMul(x_8, wk_8)  k1 = Reshape(k0, heads)  k = Transpose<perm=[0,2,3,1]>(k1)
  v0 = MatMul(x_8, wv_8)  v1 = Reshape(v0, heads)  v = Transpose<perm=[0,2,1,3]>(v1)
  {pair("q", "s")}  {pair("k", "s")}  {pair("v", "s")}
  [scores] m = MatMul(q_8, k_8)  {pair("m", "s")}  p = Softmax(m_8)  [mix] o = MatMul(p, v_8)
  o1 = Transpose<perm=[0,2,1,3]>(o)  o2 = Reshape(o1, flat)  {pair("o2", "s")}  y = MatMul(o2_8, wo_8) }}""")
    random = np.random.default_rng(0)
    for name in ("wq", "wk", "wv", "wo"):
        array = random.normal(0, 128**-0.5, (128, 128)).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def main(folder: Path) -> None:
    """Check, repair, and compare the attention blocks that the builder fused before and after."""
    findings = dovetail.check(attention(quantized=True), target="tensorrt:sm89")
    for finding in findings:
        print(f"{finding.code} {finding.message}")

    samples = np.random.default_rng(1).normal(size=(8, 64, 128)).astype(np.float32)
    result = dovetail.repair(
        attention(quantized=True),
        target="tensorrt:sm89",
        float_model=attention(quantized=False),
        calibration={"x": samples},
        output=folder,
        force=True,
    )
    if result.verdicts["compiled"].status != "pass":
        sys.exit(result.verdicts["compiled"].reason)
    record = json.loads((folder / "repair.json").read_bytes())
    (before,) = [note for note in record["as_given"] if "attention blocks" in note]
    (after,) = [note for note in result.notes if "attention blocks" in note and not note.startswith("as given")]
    print(f"as given: {before}", f"repaired: {after}", sep="\n")
    print(f"{len(record['kept'])} scales kept; added: {', '.join(record['missing'])}; removed: {record['removed']}")
    for check in ("repaired", "compiled", "fidelity", "numerics"):
        print(f"{check:9} {result.verdicts[check].status}: {result.verdicts[check].reason}")
    if not {"Q421", "Q422"} <= {finding.code for finding in findings} or "planned type: none" not in before:
        sys.exit("the model as given was expected not to be fused, and check to say why")
    if result.failed or "1 (FP8 -> FP8)" not in after:
        sys.exit("the repaired attention block is not one FP8 kernel")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/attention_on_tensorrt"))
