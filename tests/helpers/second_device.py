"""A second device on a machine without a GPU: real numbers that must not meet the CPU's unasked.

Inside `second_device()` a tensor asked for on `ELSEWHERE` is a wrapper around one of the CPU's. An
operation on tensors of both devices is refused, as CUDA refuses it; copies are let through. What
goes wrong on a real GPU only (its kernels, its streams, its memory) cannot be seen so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from manege.cell import individual
from manege.models import chain, layers

HERE, ELSEWHERE = torch.device("cpu"), torch.device("meta")
_READ = torch.ops.aten._local_scalar_dense.default
_COPY = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)


class DeviceMismatchError(RuntimeError):
    """Tensors of two devices met in an operation."""


class Elsewhere(torch.Tensor):
    """A tensor of the second device."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Elsewhere:
        return torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=ELSEWHERE,
        )

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})

    def tolist(self) -> Any:
        return self.inner.tolist()

    def __repr__(self) -> str:
        return f"Elsewhere({self.inner})"


class SecondDevice(TorchDispatchMode):
    """Counts what is read and what crosses over while it is on."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is _READ:
            self.counts["read"] += 1
        if func is torch.ops.aten._to_copy.default and kwargs.get("device") is not None:
            way = "back" if isinstance(args[0], Elsewhere) else "over"
            if kwargs["device"].type != args[0].device.type:
                self.counts[way] += 1
        return _run(func, args, kwargs)


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    flat, _ = tree_flatten((args, kwargs))
    tensors = [one for one in flat if isinstance(one, torch.Tensor)]
    there = [one for one in tensors if isinstance(one, Elsewhere)]
    if func not in _COPY and there:
        # A number may meet a tensor of any device, as long as it is the CPU's.
        strangers = [one for one in tensors if not isinstance(one, Elsewhere) and one.dim()]
        if strangers:
            raise DeviceMismatchError(f"{func} of {[tuple(one.shape) for one in tensors]}")
    goes = kwargs.get("device")
    ends_there = goes.type == ELSEWHERE.type if goes is not None else bool(there)
    if func is torch.ops.aten.copy_.default:
        ends_there = isinstance(args[0], Elsewhere)
    inner_args, inner_kwargs = tree_map(_unwrapped, (args, kwargs))
    if goes is not None:
        inner_kwargs["device"] = HERE
    with torch.utils._python_dispatch._disable_current_modes():
        result = func(*inner_args, **inner_kwargs)
    # What was written in place is what came in.
    known = {id(one.inner): one for one in there}

    def wrapped(one: Any) -> Any:
        if not isinstance(one, torch.Tensor) or not ends_there:
            return one
        return known[id(one)] if id(one) in known else Elsewhere(one)

    return tree_map(wrapped, result)


def _unwrapped(one: Any) -> Any:
    return one.inner if isinstance(one, Elsewhere) else one


@contextmanager
def second_device() -> Iterator[SecondDevice]:
    """`ELSEWHERE` is a device with numbers inside."""
    with pytest.MonkeyPatch.context() as patch:
        # A wrapper has no address of its own.
        patch.setattr(individual, "_require_view", _require_view)
        # `torch.tensor` makes nothing on it that could be seen here.
        for module in (chain, layers):
            patch.setattr(module, "constant", _made_here)
        with SecondDevice() as device:
            yield device


def _made_here(
    name: str, values: Any, dtype: torch.dtype, device: torch.device | str
) -> torch.Tensor:
    if (name, dtype, device) not in _made:
        _made[name, dtype, device] = _constant(name, values, dtype, HERE).to(device)
    return _made[name, dtype, device]


_constant = layers.constant
_made: dict[Any, torch.Tensor] = {}
_plain_require_view = individual._require_view


def _require_view(what: str, tensor: Any, view: Any) -> None:
    inner = [None if one is None else _unwrapped(one.detach()) for one in (tensor, view)]
    _plain_require_view(what, *inner)
