"""Exporting a torch module to an ONNX model, which does not change the module."""

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

import onnx  # noqa: E402
import onnx_ir as ir  # noqa: E402
from torch import nn  # noqa: E402


class Head(nn.Module):
    """Two inputs, a dict of outputs, a layer that behaves differently in training."""

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


def test_values_and_names_are_those_of_the_module() -> None:
    module = Head().eval()
    pixels, mask = torch.randn(2, 8), torch.rand(2, 1)
    model = ir.from_proto(dovetail.from_torch(module, {"pixels": pixels, "mask": mask}))
    assert [value.name for value in model.graph.inputs] == ["pixels", "mask"]
    outputs = run_graph(model, {"pixels": pixels.numpy(), "mask": mask.numpy()})
    assert list(outputs) == ["logits", "parts_0", "parts_1"]
    expected = module(pixels, mask)
    assert sqnr_db(expected["logits"].detach().numpy(), outputs["logits"]) > 100
    assert sqnr_db(expected["parts"][1].detach().numpy(), outputs["parts_1"]) > 100


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_module_is_not_changed(dtype: torch.dtype) -> None:
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


def test_a_hugging_face_model_has_its_fields_as_outputs() -> None:
    transformers = pytest.importorskip("transformers", reason="needs the package transformers")
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=8, patch_size=4
    )
    module = transformers.ViTForImageClassification(config).half().train()
    before = state(module)
    images = torch.randn(1, 3, 8, 8)
    model = ir.from_proto(dovetail.from_torch(module, images))
    assert state(module) == before
    outputs = run_graph(model, {"pixel_values": images.numpy()})
    with torch.no_grad():
        expected = module.float().eval()(images).logits.numpy()
    assert list(outputs) == ["logits"]
    assert sqnr_db(expected, outputs["logits"]) > 100


@pytest.mark.parametrize(
    ("module", "example", "message"),
    [
        ("google/vit", torch.zeros(1), r"requires a torch\.nn\.Module, not str: load the model first"),
        (nn.Linear(2, 2), (), "the example inputs contain no tensor"),
        (nn.Linear(2, 2), (torch.zeros(1, 2), torch.zeros(1)), "takes 1 inputs, 2 were given"),
    ],
)
def test_bad_arguments_are_refused(module: object, example: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        dovetail.from_torch(module, example)


def test_arrays_are_accepted_too() -> None:
    model = dovetail.from_torch(nn.Linear(2, 3), np.zeros((1, 2), np.float64))
    assert model.graph.input[0].type.tensor_type.elem_type == 1


def test_remote_code_is_never_run() -> None:
    source = Path(dovetail.__file__).parent
    assert [path.name for path in source.rglob("*.py") if "trust_remote_code" in path.read_text()] == []


class Called(torch.nn.Module):
    """Takes positional-only tensors, ``*args``, and an argument that is not a tensor."""

    def forward(self, x: torch.Tensor, /, *others: torch.Tensor, double: bool = True) -> dict[str, torch.Tensor]:
        return {"x": x * 2 if double is True else x * 3, "sum": sum(others, x)}


def test_every_kind_of_argument_gives_a_valid_model() -> None:
    x, y = torch.arange(4.0), torch.ones(4)
    model = dovetail.from_torch(Called(), (x, y, y))
    onnx.checker.check_model(model)
    assert [value.name for value in model.graph.input] == ["x", "others_0", "others_1"]
    assert [value.name for value in model.graph.output] == ["x_output", "sum"]
    outputs = run_graph(ir.from_proto(model), {"x": x.numpy(), "others_0": y.numpy(), "others_1": y.numpy()})
    np.testing.assert_array_equal(outputs["x_output"], 2 * x.numpy())
    np.testing.assert_array_equal(outputs["sum"], x.numpy() + 2)


class Flagged(torch.nn.Module):
    def forward(self, x: torch.Tensor, flag: bool = True) -> torch.Tensor:
        return x * 2 if flag is True else x * 3


@pytest.mark.parametrize(("flag", "factor"), [(True, 2), (False, 3)])
def test_an_argument_that_is_not_a_tensor_becomes_a_constant(flag: bool, factor: int) -> None:
    model = dovetail.from_torch(Flagged(), {"x": torch.ones(2), "flag": flag})
    assert [value.name for value in model.graph.input] == ["x"]
    np.testing.assert_array_equal(
        run_graph(ir.from_proto(model), {"x": np.ones(2, np.float32)})["output"], [factor, factor]
    )


class Branches(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


@pytest.mark.parametrize(
    ("module", "example", "message"),
    [
        (torch.nn.Linear(4, 4), torch.ones(2, 5), "Linear cannot be called with the example: RuntimeError: mat1"),
        (torch.nn.Linear(4, 4), {"z": torch.ones(2, 4)}, "Linear cannot be called with the example: TypeError"),
        (torch.nn.Linear(4, 4), {"input": None}, "the example inputs contain no tensor"),
        (Branches(), torch.ones(2), "torch cannot export Branches"),
    ],
)
def test_a_failed_export_is_reported_in_one_sentence(
    module: torch.nn.Module, example: object, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError, match=message) as error:
        dovetail.from_torch(module, example)
    assert "\n" not in str(error.value)
    assert capfd.readouterr() == ("", "")
