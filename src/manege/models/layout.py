"""Where each of a network's tensors lies in its flat record: weights, then float buffers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor, nn

ALIGN = 16
"""Slices start at multiples of 64 bytes: some kernels' bits depend on alignment."""


@dataclass(frozen=True)
class Slot:
    """Where a tensor of a network lies in its record."""

    name: str
    owner: nn.Module
    attribute: str
    start: int
    shape: tuple[int, ...]

    def of(self, flat: Tensor) -> Tensor:
        """Return this tensor inside a record, as a view."""
        return flat[self.start : self.start + prod(self.shape)].view(self.shape)


@dataclass(frozen=True)
class Layout:
    """All places of one network, a function of its architecture alone."""

    parameters: tuple[Slot, ...]
    buffers: tuple[Slot, ...]
    num_weights: int
    """Floats the parameters take, gaps included."""
    num_floats: int
    """Floats the parameters and buffers take."""
    dtype: torch.dtype
    """The type of all numbers."""
    constants: tuple[tuple[str, nn.Module, str], ...] = ()
    """Buffers of other types, which no record holds: the name, the owner and the attribute."""


def layout_of(network: nn.Module) -> Layout:
    """Return the layout of a network, which may be without storage."""
    dtype = next(network.parameters()).dtype
    parameters, num_weights = _place(_members(network, parameters=True), dtype, start=0)
    # A network of ours has floats alone; somebody else's may have constants beside them.
    own = bool(getattr(network, "own", False))
    kept: list[_Member] = []
    constants: list[_Member] = []
    for member in _members(network, parameters=False):
        (constants if own and member[3].dtype != dtype else kept).append(member)
    buffers, num_floats = _place(kept, dtype, start=num_weights)
    return Layout(
        parameters, buffers, num_weights, num_floats, dtype, tuple(one[:3] for one in constants)
    )


def named_tensors(network: nn.Module, record: np.ndarray) -> dict[str, np.ndarray]:
    """Return the network's state dict inside a record, as numpy views."""
    layout = layout_of(network)
    return {
        slot.name: record[slot.start : slot.start + prod(slot.shape)].reshape(slot.shape)
        for slot in (*layout.parameters, *layout.buffers)
    }


def tensors_in(network: nn.Module, record: Tensor) -> dict[str, Tensor]:
    """Return the network's state dict inside a record, as views of a tensor."""
    layout = layout_of(network)
    return {slot.name: slot.of(record) for slot in (*layout.parameters, *layout.buffers)}


def fill(network: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Give a network built without storage these tensors; ValueError when they do not fit it."""
    layout = layout_of(network)
    slots = (*layout.parameters, *layout.buffers)
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    wanted = {slot.name: slot.shape for slot in slots}
    if found != wanted or any(tensor.dtype != torch.float32 for tensor in tensors.values()):
        odd = sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name))
        raise ValueError(f"tensors of another network ({', '.join(odd[:3]) or 'other numbers'})")
    for slot in layout.parameters:
        slot.owner.register_parameter(slot.attribute, nn.Parameter(tensors[slot.name]))
    for slot in layout.buffers:
        slot.owner.register_buffer(slot.attribute, tensors[slot.name])


_Member = tuple[str, nn.Module, str, Tensor]


def _members(network: nn.Module, *, parameters: bool) -> Iterator[_Member]:
    """Yield all parameters of a network, or all its buffers, each with its owner."""
    for prefix, module in network.named_modules():
        members = module._parameters if parameters else module._buffers
        for attribute, tensor in members.items():
            if tensor is not None:
                yield f"{prefix}.{attribute}" if prefix else attribute, module, attribute, tensor


def _place(
    members: Iterable[_Member], dtype: torch.dtype, start: int
) -> tuple[tuple[Slot, ...], int]:
    """Give every tensor its place from `start` on; return the places and where they end.

    One that has several names has one place.
    """
    slots: list[Slot] = []
    known: dict[int, int] = {}
    for name, owner, attribute, tensor in members:
        if tensor.dtype != dtype:
            raise TypeError(f"{name} is {tensor.dtype}; a record holds {dtype} only")
        if id(tensor) in known:
            slots.append(Slot(name, owner, attribute, known[id(tensor)], tuple(tensor.shape)))
            continue
        known[id(tensor)] = start
        slots.append(Slot(name, owner, attribute, start, tuple(tensor.shape)))
        start += -(-tensor.numel() // ALIGN) * ALIGN
    return tuple(slots), start
