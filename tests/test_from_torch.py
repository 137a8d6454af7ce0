"""A torch module becomes an ONNX model, and is not changed by it."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import numpy as np
import pytest

import dovetail
from dovetail.errors import InputError
from tests.equality import ops, sqnr_db
from tests.equality import run as run_graph

torch = pytest.importorskip("torch", reason="needs the package torch")
pytest.importorskip("onnxscript", reason="needs the package onnxscript")

import onnx_ir as ir  # noqa: E402
from torch import nn  # noqa: E402


class Head(nn.Module):
    """Two inputs, a dict of outputs, a layer that behaves otherwise in training."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)
        self.drop = nn.Dropout(0.5)
        self.called = 0

    def forward(self, pixels, mask):  # type: ignore[no-untyped-def]
        self.called += 1
        hidden = self.drop(self.linear(pixels)) * mask
        return {"logits": hidden, "parts": [hidden.sum(-1), torch.relu(hidden)]}


def digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.detach().numpy().tobytes()).hexdigest()


def state(module: nn.Module) -> dict[str, object]:
    """Everything that an export might change."""
    tensors = {
        name: (t.dtype, t.device, t.requires_grad, t.data_ptr(), t._version, digest(t))
        for name, t in module.state_dict().items()
    }
    modes = {name: (m.training, len(m._forward_hooks), len(m._forward_pre_hooks)) for name, m in module.named_modules()}
    grads = {name: (p.requires_grad, p.grad is None) for name, p in module.named_parameters()}
    return {"tensors": tensors, "modes": modes, "grads": grads, "plain": dict(vars(module), _modules=None).keys()}


def test_numbers_and_names_are_those_of_the_module() -> None:
    module = Head().eval()
    pixels, mask = torch.randn(2, 8), torch.rand(2, 1)
    model = ir.from_proto(dovetail.from_torch(module, {"pixels": pixels, "mask": mask}))
    assert [value.name for value in model.graph.inputs] == ["pixels", "mask"]
    found = run_graph(model, {"pixels": pixels.numpy(), "mask": mask.numpy()})
    assert list(found) == ["logits", "parts_0", "parts_1"]
    expected = module(pixels, mask)
    assert sqnr_db(expected["logits"].detach().numpy(), found["logits"]) > 100
    assert sqnr_db(expected["parts"][1].detach().numpy(), found["parts_1"]) > 100


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_module_is_left_as_it_was(dtype: torch.dtype) -> None:
    module = Head().to(dtype).train()
    module.linear.register_forward_hook(lambda *_: None)
    module.linear.bias.requires_grad_(False)
    before, seed, level = state(module), torch.get_rng_state(), logging.getLogger("torch.onnx").level
    model = dovetail.from_torch(module, (torch.ones(2, 8, dtype=dtype), torch.ones(2, 1, dtype=dtype)))
    assert state(module) == before
    assert module.called == 0
    assert torch.equal(torch.get_rng_state(), seed)
    assert torch.is_grad_enabled()
    assert logging.getLogger("torch.onnx").level == level
    assert "Dropout" not in ops(ir.from_proto(model))
    assert {i.data_type for i in model.graph.initializer if i.name.startswith("inside")} <= {1}


def test_a_hugging_face_model_gives_its_fields() -> None:
    transformers = pytest.importorskip("transformers", reason="needs the package transformers")
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=8, patch_size=4
    )
    module = transformers.ViTForImageClassification(config).half().train()
    before = state(module)
    pictures = torch.randn(1, 3, 8, 8)
    model = ir.from_proto(dovetail.from_torch(module, pictures))
    assert state(module) == before
    found = run_graph(model, {"pixel_values": pictures.numpy()})
    with torch.no_grad():
        expected = module.float().eval()(pictures).logits.numpy()
    assert list(found) == ["logits"]
    assert sqnr_db(expected, found["logits"]) > 100


@pytest.mark.parametrize(
    ("module", "example", "why"),
    [
        ("google/vit", torch.zeros(1), "takes a module, not str"),
        (nn.Linear(2, 2), (), "has no input"),
        (nn.Linear(2, 2), (torch.zeros(1, 2), torch.zeros(1)), "takes 1 inputs, 2 were given"),
    ],
)
def test_other_things_are_refused(module: object, example: object, why: str) -> None:
    with pytest.raises(InputError, match=why):
        dovetail.from_torch(module, example)


def test_arrays_are_taken_too() -> None:
    model = dovetail.from_torch(nn.Linear(2, 3), np.zeros((1, 2), np.float64))
    assert model.graph.input[0].type.tensor_type.elem_type == 1


def test_no_code_of_others_is_ever_fetched_and_run() -> None:
    source = Path(dovetail.__file__).parent
    assert [path.name for path in source.rglob("*.py") if "trust_remote_code" in path.read_text()] == []
