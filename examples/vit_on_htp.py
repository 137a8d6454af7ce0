"""Problem 1: a quantized vision transformer that HTP changes silently and runs slower than float16.

One block of a ViT-tiny, as torch exports it, is quantized with onnxruntime's own QNN helpers. ``check`` says what the
compiler makes of the result; ``fit`` quantizes the float block so that it is compiled as planned. The vendor's compiler
estimates the latency of both, and of the same block in float16.

Run it with ``python examples/vit_on_htp.py``. It needs the extra ``[qnn]``, and writes below ``runs/vit_on_htp``.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import numpy as np
import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize
from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config

import dovetail

TARGET = "qnn-htp:soc52"  # SA8255, for which the compiler estimates the latency
WIDTHS = {"q": (192, 192), "k": (192, 192), "v": (192, 192), "o": (192, 192), "1": (192, 768), "2": (768, 192)}
# scaled_dot_product_attention leaves a mask of zeros and a guard against NaN.
BLOCK = """<ir_version: 10, opset_import: ["": 21]>
block (float[1,197,192] x) => (float[1,197,192] y)
<int64[4] heads = {1,197,3,64}, int64[3] tokens = {1,197,192}, float scale = {0.125}, float zero = {0}>
{ n = LayerNormalization(x, gamma, beta)
  q0 = MatMul(n, wq)  q1 = Add(q0, bq)  q2 = Reshape(q1, heads)  q = Transpose<perm=[0,2,1,3]>(q2)
  k0 = MatMul(n, wk)  k1 = Add(k0, bk)  k2 = Reshape(k1, heads)  k = Transpose<perm=[0,2,3,1]>(k2)
  v0 = MatMul(n, wv)  v1 = Add(v0, bv)  v2 = Reshape(v1, heads)  v = Transpose<perm=[0,2,1,3]>(v2)
  [scores] s = MatMul(q, k)  scaled = Mul(s, scale)  masked = Add(scaled, mask)  p0 = Softmax(masked)
  bad = IsNaN(p0)  p = Where(bad, zero, p0)  [mix] o = MatMul(p, v)
  o1 = Transpose<perm=[0,2,1,3]>(o)  o2 = Reshape(o1, tokens)  o3 = MatMul(o2, wo)  o4 = Add(o3, bo)  r = Add(x, o4)
  m = LayerNormalization(r, gamma, beta)  h0 = MatMul(m, w1)  h1 = Add(h0, b1)  h = Gelu(h1)
  z0 = MatMul(h, w2)  z = Add(z0, b2)  y = Add(r, z) }"""


class Samples(CalibrationDataReader):
    """The calibration data in the form that onnxruntime reads."""

    def __init__(self, images: np.ndarray) -> None:
        self.rows = iter([{"x": image[None]} for image in images])

    def get_next(self) -> dict[str, np.ndarray] | None:
        """Return the next sample, or None after the last."""
        return next(self.rows, None)


def main(folder: Path) -> None:
    """Check the naively quantized block, fit the float one, compare the estimates."""
    folder.mkdir(parents=True, exist_ok=True)
    random, path = np.random.default_rng(0), folder / "block.onnx"
    weights = {"gamma": np.ones(192), "beta": random.normal(0, 0.02, 192), "mask": np.zeros((1, 3, 197, 197))}
    for name, shape in WIDTHS.items():
        weights |= {f"w{name}": random.normal(0, shape[0] ** -0.5, shape), f"b{name}": random.normal(0, 0.02, shape[1])}
    model = onnx.parser.parse_model(BLOCK)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a.astype("f4"), name) for name, a in weights.items())
    onnx.save(model, path)
    images = random.normal(size=(4, 197, 192)).astype(np.float32)

    naive = folder / "naive.onnx"
    logging.getLogger().setLevel(logging.ERROR)  # onnxruntime suggests pre-processing
    quantize(path, naive, get_qnn_qdq_config(path, Samples(images), activation_type=QuantType.QUInt16))
    findings = dovetail.check(naive, target=TARGET)
    print(f"quantized with onnxruntime's QNN helpers: {len(findings)} findings")
    for finding in findings:
        print(f"  {finding.code} {finding.message}")

    options = {"target": TARGET, "precision": "w8a16", "baselines": "all", "calibration": {"x": images}}
    result = dovetail.fit(path, output=folder / "run", force=True, **options)
    if result.verdicts["compiled"].status != "pass":
        sys.exit(result.verdicts["compiled"].reason)
    estimates = result.metrics.latency_estimate_us
    for name, estimate in estimates.items():
        print(f"{name:7} {estimate.mid_us:5} us estimated, {estimate.mid_us / estimates['fp16'].mid_us:.2f} of fp16")
    print(f"fidelity {result.verdicts['fidelity'].status}: {result.verdicts['fidelity'].reason}")
    if {"scores", "mix"} != {str(finding.place) for finding in findings if finding.code == "Q104"}:
        sys.exit("check did not find both MatMuls of the attention")
    if result.failed or not estimates["fitted"].mid_us < estimates["fp16"].mid_us < estimates["naive"].mid_us:
        sys.exit("the fitted block failed a verdict, or is not faster than float16, or the naive one is not slower")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/vit_on_htp"))
