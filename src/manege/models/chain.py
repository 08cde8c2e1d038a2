"""A perceptron's passes written out: forward, and backward into the gradients' own storage.

For networks this small a third of a step by autograd is not arithmetic: nodes, gradients zeroed
and added up, whole-array passes that can ride on a multiplication. The formulas are those of
`networks.py`; tests hold the two against each other.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from manege.config import Activation
from manege.models.layers import SLOPE, Dense, constant


class ManualMLP(NamedTuple):
    """Linear layers, each with the activation that follows it."""

    layers: list[Dense]
    activations: list[Activation | None]

    @torch.no_grad()
    def forward(self, x_BI: Tensor) -> list[Tensor]:
        """Return what goes into the first layer, and what each gives after its activation."""
        outputs = [x_BI]
        for layer, activation in zip(self.layers, self.activations, strict=True):
            scale = 2 if activation is Activation.TANH else 1
            x = torch.addmm(layer.bias, outputs[-1], layer.weight.t(), beta=scale, alpha=scale)
            outputs.append(_activate(x, activation))
        return outputs

    @torch.no_grad()
    def backward(
        self, outputs: list[Tensor], gradient: Tensor, *, weights: bool, inputs: bool
    ) -> Tensor | None:
        """Carry the last output's gradient back: into the weights' gradients, or to the input.

        Args:
            outputs: of `forward`.
            gradient: of a loss, by the last of them.
            weights: whether the weights learn.
            inputs: whether the gradient by what went in is wanted.
        """
        for number in reversed(range(len(self.layers))):
            layer, result = self.layers[number], outputs[number + 1]
            gradient = _before_activation(gradient, result, self.activations[number])
            if weights:
                assert layer.weight.grad is not None
                assert layer.bias.grad is not None
                torch.mm(gradient.t(), outputs[number], out=layer.weight.grad)
                torch.sum(gradient, 0, out=layer.bias.grad)
            if number or inputs:
                gradient = torch.mm(gradient, layer.weight)
        return gradient if inputs else None


def manual_mlp(layers: list[Dense], activations: list[Activation | None]) -> ManualMLP | None:
    """Return layers with written-out passes; None where these cannot be written out.

    Spectral norms have gradients of their own, and SiLU's result does not tell its gradient.
    """
    bounded = any(layer.u is not None for layer in layers)
    return None if bounded or Activation.SILU in activations else ManualMLP(layers, activations)


def _activate(x: Tensor, activation: Activation | None) -> Tensor:
    """Apply an activation in place; where it is tanh, `x` is twice what goes into it."""
    match activation:
        case Activation.LEAKY_RELU:
            return torch.nn.functional.leaky_relu_(x, SLOPE)
        case Activation.RELU:
            return torch.relu_(x)
        case Activation.TANH:
            # tanh x = 2σ(2x) - 1, as in `layers.tanh_`.
            return torch.add(
                constant("minus one", -1.0, x.dtype, x.device), x.sigmoid_(), alpha=2, out=x
            )
        case _:
            return x


def _before_activation(gradient: Tensor, result: Tensor, activation: Activation | None) -> Tensor:
    """Return the gradient by what went into an activation, told from what came out of it."""
    aten = torch.ops.aten
    passed: Tensor
    match activation:
        case Activation.LEAKY_RELU:
            passed = aten.leaky_relu_backward(gradient, result, SLOPE, self_is_result=True)
        case Activation.RELU:
            passed = aten.threshold_backward(gradient, result, 0)
        case Activation.TANH:
            passed = aten.tanh_backward(gradient, result)
        case _:
            passed = gradient
    return passed
