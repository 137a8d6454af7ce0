"""Reshapes and transposes between a linear layer and the Concat with a class token: 16 by name, and generated ones."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor, nn

ROWS, WIDTH = 6, 8
Layout = Callable[[Tensor], Tensor]
# The reshapes and transposes that models use between their patches and the Concat with the class token.
NAMED: dict[str, Layout] = {
    "transpose": lambda h: h.transpose(1, 2),
    "permute": lambda h: h.permute(0, 2, 1),
    "movedim": lambda h: h.movedim(1, 2),
    "swapaxes": lambda h: h.swapaxes(1, 2),
    "mT": lambda h: h.mT,
    "einsum": lambda h: torch.einsum("bnc->bcn", h),
    "reshape": lambda h: h.reshape(1, ROWS * 2, WIDTH // 2),
    "view": lambda h: h.view(1, ROWS // 2, WIDTH * 2),
    "view_as": lambda h: h.view_as(torch.empty(1, ROWS * 2, WIDTH // 2)),
    "flatten": lambda h: h.flatten(1),
    "unflatten": lambda h: h.unflatten(2, (2, WIDTH // 2)),
    "unsqueeze": lambda h: h.unsqueeze(3),
    "squeeze": lambda h: h.unsqueeze(1).squeeze(1),
    "slice": lambda h: h[:, 1:4],
    "contiguous": lambda h: h.transpose(1, 2).contiguous(),
    "transposed twice": lambda h: h.transpose(1, 2).reshape(1, WIDTH, 2, ROWS // 2).transpose(1, 2).flatten(2),
}
AMPLITUDES = (0.001, 0.02, 0.3, 4.0, 100.0)


class Tokens(nn.Module):
    """A linear layer, a layout, a Concat with class tokens of a given amplitude, positions: [1,6,8] -> tokens.

    ``order`` spells the Concat: c is the class token, h the patches, parentheses are a nested Concat.
    """

    def __init__(self, layout: Layout, amplitude: float, order: str = "ch", seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.layout, self.order = layout, order
        with torch.no_grad():
            shape = layout(torch.zeros(1, ROWS, WIDTH)).shape
        self.token = nn.Parameter(amplitude * torch.randn(1, 1, *shape[2:]))
        self.positions = nn.Parameter(0.1 * torch.randn(1, shape[1] * order.count("h") + order.count("c"), *shape[2:]))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.layout(self.linear(x))
        stack: list[list[Tensor]] = [[]]
        for letter in self.order:
            if letter == "(":
                stack.append([])
            elif letter == ")":
                inner = stack.pop()
                stack[-1].append(torch.cat(inner, 1))
            else:
                stack[-1].append(self.token if letter == "c" else hidden)
        joined = torch.cat(stack[0], 1) if len(stack[0]) > 1 else stack[0][0]
        return joined + self.positions


class Branches(nn.Module):
    """Several ``Tokens`` modules on one input: [1,6,8] -> the tokens of each."""

    def __init__(self, branches: list[Tokens]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(branch(x) for branch in self.branches)


def generated(count: int, seed: int = 0) -> list[tuple[str, Layout, str, float]]:
    """Return random (name, layout, Concat order, amplitude from 0.001 to 100); a layout is a chain of 1 to 5 steps."""
    rng = random.Random(seed)
    orders = ("ch", "hc", "cch", "hcc", "(ch)c", "c(hc)", "((hc)c)h", "chh")
    names = ("movedim", "unflatten", "flatten", "slice", "unsqueeze", "mT")
    layouts = []
    for _ in range(count):
        steps = [rng.choice(names) for _ in range(rng.randint(1, 5))]
        layouts.append((" ".join(steps), _chain(steps), rng.choice(orders), 10 ** rng.uniform(-3, 2)))
    return layouts


def batched(modules: list[Tokens], size: int) -> list[list[Tokens]]:
    """Split a list into batches of at most ``size``."""
    return [modules[start : start + size] for start in range(0, len(modules), size)]


def _chain(steps: list[str]) -> Layout:
    def layout(h: Tensor) -> Tensor:
        for step in steps:
            h = _apply(h, step)
        return h

    return layout


def _apply(h: Tensor, step: str) -> Tensor:
    """Apply one step; return the tensor unchanged if its shape does not allow the step."""
    if step == "movedim":
        return h.movedim(1, -1)
    if step == "mT" and h.ndim == 3:
        return h.mT
    if step == "unflatten" and h.ndim < 5 and h.shape[-1] % 2 == 0:
        return h.unflatten(-1, (2, h.shape[-1] // 2))
    if step == "flatten" and h.ndim > 3:
        return h.flatten(-2)
    if step == "slice" and h.shape[1] > 2:
        return h[:, 1:]
    if step == "unsqueeze" and h.ndim < 5:
        return h.unsqueeze(2)
    return h
