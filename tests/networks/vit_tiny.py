"""Generate a ViT-tiny graph with random weights: 12 layers, dim 192, 3 heads, 197 tokens; no torch, no download."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

DIM, HEADS, TOKENS, PATCH, IMAGE_SIZE, CLASSES = 192, 3, 197, 16, 224, 1000


class _Graph:
    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def constant(self, name: str, array: np.ndarray) -> str:
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def weight(self, name: str, *shape: int, scale: float = 0.02) -> str:
        return self.constant(name, (self.random.standard_normal(shape) * scale).astype(np.float32))

    def op(self, op: str, inputs: list[str], name: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(op, inputs, [f"{name}_out"], name=name, **attributes))
        return f"{name}_out"

    def linear(self, x: str, inputs: int, outputs: int, name: str) -> str:
        weight = self.weight(f"{name}.weight", inputs, outputs, scale=inputs**-0.5)
        matmul = self.op("MatMul", [x, weight], f"{name}/MatMul")
        return self.op("Add", [matmul, self.weight(f"{name}.bias", outputs)], f"{name}/Add")

    def norm(self, x: str, name: str) -> str:
        gamma = self.constant(f"{name}.weight", (1 + 0.1 * self.random.standard_normal(DIM)).astype(np.float32))
        return self.op("LayerNormalization", [x, gamma, self.weight(f"{name}.bias", DIM)], name, axis=-1, epsilon=1e-6)

    def heads(self, x: str, name: str, perm: list[int]) -> str:
        split = self.op("Reshape", [x, "heads_shape"], f"{name}/Reshape")
        return self.op("Transpose", [split], f"{name}/Transpose", perm=perm)

    def block(self, x: str, name: str) -> str:
        normed = self.norm(x, f"{name}.norm1")
        q, k, v = (self.linear(normed, DIM, DIM, f"{name}.attn.{part}") for part in "qkv")
        q = self.heads(q, f"{name}.attn.q", [0, 2, 1, 3])
        k = self.heads(k, f"{name}.attn.k", [0, 2, 3, 1])
        v = self.heads(v, f"{name}.attn.v", [0, 2, 1, 3])
        scores = self.op("MatMul", [q, k], f"{name}.attn/scores")
        scores = self.op("Mul", [scores, "attention_scale"], f"{name}.attn/scale")
        weights = self.op("Softmax", [scores], f"{name}.attn/Softmax", axis=-1)
        mixed = self.op("MatMul", [weights, v], f"{name}.attn/mix")
        mixed = self.op("Transpose", [mixed], f"{name}.attn/T", perm=[0, 2, 1, 3])
        joined = self.op("Reshape", [mixed, "tokens_shape"], f"{name}.attn/join")
        x = self.op("Add", [x, self.linear(joined, DIM, DIM, f"{name}.attn.proj")], f"{name}/add1")
        hidden = self.linear(self.norm(x, f"{name}.norm2"), DIM, 4 * DIM, f"{name}.mlp.fc1")
        hidden = self.gelu(hidden, f"{name}.mlp.act")
        return self.op("Add", [x, self.linear(hidden, 4 * DIM, DIM, f"{name}.mlp.fc2")], f"{name}/add2")

    def gelu(self, x: str, name: str) -> str:
        """GELU as exporters write it at opset 17."""
        erf = self.op("Erf", [self.op("Div", [x, "sqrt2"], f"{name}/Div")], f"{name}/Erf")
        gate = self.op("Add", [erf, "one"], f"{name}/Add")
        return self.op("Mul", [self.op("Mul", [x, gate], f"{name}/Mul"), "half"], f"{name}/Mul_1")


def vit_tiny(layers: int = 12, seed: int = 0, token_scale: float = 0.02) -> onnx.ModelProto:
    """Make the model: input ``image`` [1,3,224,224], output ``logits`` [1,1000].

    ``token_scale`` is the standard deviation of the class token and the position embeddings; patches have about 1. At
    the usual initialization, 0.02, the class token is smaller than one quantization step of an 8-bit residual stream,
    so the logits are at 6 dB with any tool and compare nothing. Trained models have larger ones.
    """
    graph = _Graph(seed)
    for name, value in (("attention_scale", (DIM // HEADS) ** -0.5), ("sqrt2", 2**0.5), ("one", 1.0), ("half", 0.5)):
        graph.constant(name, np.array(value, np.float32))
    graph.constant("heads_shape", np.array([1, TOKENS, HEADS, DIM // HEADS], np.int64))
    graph.constant("tokens_shape", np.array([1, TOKENS, DIM], np.int64))
    graph.constant("patches_shape", np.array([1, DIM, TOKENS - 1], np.int64))
    graph.constant("first", np.array(0, np.int64))
    kernel = graph.weight("patch.weight", DIM, 3, PATCH, PATCH, scale=(3 * PATCH**2) ** -0.5)
    patches = graph.op("Conv", ["image", kernel, graph.weight("patch.bias", DIM)], "patch", strides=[PATCH, PATCH])
    patches = graph.op("Reshape", [patches, "patches_shape"], "flatten")
    patches = graph.op("Transpose", [patches], "to_tokens", perm=[0, 2, 1])
    x = graph.op("Concat", [graph.weight("cls", 1, 1, DIM, scale=token_scale), patches], "concat", axis=1)
    x = graph.op("Add", [x, graph.weight("pos", 1, TOKENS, DIM, scale=token_scale)], "add_pos")
    for layer in range(layers):
        x = graph.block(x, f"blocks.{layer}")
    token = graph.op("Gather", [graph.norm(x, "norm"), "first"], "token", axis=1)
    weight, bias = graph.weight("head.weight", DIM, CLASSES, scale=DIM**-0.5), graph.weight("head.bias", CLASSES)
    graph.nodes.append(helper.make_node("Gemm", [token, weight, bias], ["logits"], name="head"))
    inputs = [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, IMAGE_SIZE, IMAGE_SIZE])]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, CLASSES])]
    proto = helper.make_graph(graph.nodes, "vit_tiny", inputs, outputs, graph.weights)
    return helper.make_model(proto, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def pictures(count: int, seed: int = 1) -> np.ndarray:
    """Make smooth random images: with noise alone, all patches would be alike."""
    random = np.random.default_rng(seed)
    coarse = random.standard_normal((count, 3, 28, 28)).astype(np.float32)
    fine = random.standard_normal((count, 3, IMAGE_SIZE, IMAGE_SIZE)).astype(np.float32)
    return np.repeat(np.repeat(coarse, 8, axis=2), 8, axis=3) + 0.1 * fine


def save(folder: Path, layers: int = 12, token_scale: float = 0.02) -> Path:
    """Write the model and return its path."""
    path = folder / "vit_tiny.onnx"
    onnx.save(vit_tiny(layers, token_scale=token_scale), path)
    return path
