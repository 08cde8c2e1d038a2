"""The individual: a network, its Adam state and its header in one flat float32 record.

    weights | buffers | first moments | second moments | header

The network's parameters and buffers are views into the record, so cloning, exchange, hashing and
checkpointing are one copy. Owns those views and the optimiser step; refuses to go on when
something has broken the views.
"""

from __future__ import annotations

from typing import Generic, Self, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from manege.models import ALIGN, layout_of

HEADER = (
    "steps",
    "learning_rate",
    "loss",
    "id",
    "parent",
    "origin",
    "parent_origin",
    "source",
)
"""Adam steps taken; rate; which objective it trains with (0: the run's loss); and for lineage the
round it was born in, that of its parent (-1: none), the numbers of the cells both were born in,
and of the cell whose centre was cloned."""

Network = TypeVar("Network", bound=nn.Module)


class Individual(Generic[Network]):
    """A network whose parameters, buffers and Adam moments lie in one flat record."""

    def __init__(self, network: Network, device: torch.device) -> None:
        """Give `network`, built without storage, a record of zeros on `device`.

        A parametrisation must be on the network before this: afterwards it would split a
        parameter off the record.
        """
        self.network = network
        self._layout = layout_of(network)
        floats, weights = self._layout.num_floats, self._layout.num_weights
        dtype = self._layout.dtype  # float32, but for tests that take rounding out of the way.
        self.record = torch.zeros(floats + 2 * weights + ALIGN, device=device, dtype=dtype)
        self.weights = self.record[:weights]
        self.body = self.record[:floats]
        self._moments = self.record[floats:-ALIGN].view(2, weights)
        self._header = self.record[-ALIGN:]
        self._steps = self._header[HEADER.index("steps")]
        self._gradient = torch.zeros(weights, device=device, dtype=dtype)
        placed: dict[tuple[int, tuple[int, ...]], nn.Parameter] = {}
        for slot in self._layout.parameters:
            place = slot.start, slot.shape
            parameter = placed.setdefault(place, nn.Parameter(slot.of(self.record)))
            parameter.grad = slot.of(self._gradient)
            slot.owner.register_parameter(slot.attribute, parameter)
        for slot in self._layout.buffers:
            # As `.data`: a forward pass that changes a buffer must not make autograd believe that
            # the weights, which lie in the same record, have changed.
            slot.owner.register_buffer(slot.attribute, slot.of(self.record.data))
        for _, owner, attribute in self._layout.constants:
            owner._buffers[attribute] = getattr(owner, attribute).to(device)
        self.parameters = list(network.parameters())
        self.learning_rate = 0.0
        self.set_header("parent", -1)

    @property
    def steps(self) -> int:
        """Adam steps taken."""
        return int(self.header("steps"))

    def set_learning_rate(self, rate: float) -> None:
        """Set the learning rate from the next step on."""
        self.set_header("learning_rate", rate)
        self._read_header()

    def header(self, field: str) -> float:
        """Return a field of `HEADER`."""
        return self._header[HEADER.index(field)].item()

    def set_header(self, field: str, value: float) -> None:
        """Write a field of `HEADER`; the record is float32: whole numbers below 2²⁴ are exact."""
        self._header[HEADER.index(field)] = value

    def zero_gradients(self) -> None:
        """Set the gradients to zero without letting go of their storage."""
        self._gradient.zero_()

    @torch.no_grad()
    def adam_step(self, *, beta1: float, beta2: float) -> None:
        """Take one Adam step along the gathered gradients, over all weights at once."""
        # The kernel itself: for small networks what torch.optim wraps around it costs as much.
        self._steps.add_(1)
        torch._fused_adam_(
            [self.weights],
            [self._gradient],
            [self._moments[0]],
            [self._moments[1]],
            [],
            [self._steps],
            lr=self.learning_rate,
            beta1=beta1,
            beta2=beta2,
            weight_decay=0.0,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )

    def to_numpy(self) -> np.ndarray:
        """Return the record in main memory.

        On a CPU it is a view: copy it, or use it before the next step.
        """
        self.check_views()
        return self.record.detach().cpu().numpy()

    @torch.no_grad()
    def load(self, record: np.ndarray) -> None:
        """Take over the weights, the optimiser's state and the header that `record` holds."""
        if record.shape != tuple(self.record.shape) or record.dtype != np.float32:
            raise ValueError(
                f"record of {record.dtype} {record.shape}, expected float32 ({len(self.record)},)"
            )
        if self.record.device.type == "cpu":
            # By numpy: torch would complain of a record that cannot be written to.
            self.record.numpy()[:] = record
        else:
            self.record.copy_(torch.from_numpy(record.copy()))
        self._read_header()

    def check_views(self) -> None:
        """Raise when a parameter, buffer or gradient no longer lives in its flat storage.

        `network.to(memory_format=…)`, `zero_grad()` and a parametrisation put on afterwards do
        that without a word; training would go on beside the record.
        """
        for slot in self._layout.parameters:
            parameter = slot.owner._parameters.get(slot.attribute)
            _require_view(f"parameter {slot.name}", parameter, slot.of(self.record))
            gradient = parameter.grad if parameter is not None else None
            _require_view(f"gradient of {slot.name}", gradient, slot.of(self._gradient))
        for slot in self._layout.buffers:
            buffer = slot.owner._buffers.get(slot.attribute)
            _require_view(f"buffer {slot.name}", buffer, slot.of(self.record))

    def __deepcopy__(self, memo: object) -> Self:
        raise TypeError("deepcopy would tear the views apart; build another and load() the record")

    def _read_header(self) -> None:
        # Cached: reading it from the record each step would make a GPU wait.
        self.learning_rate = self.header("learning_rate")


def born_in(record: np.ndarray) -> int:
    """Return the round that the individual of a record was born in."""
    return int(record[len(record) - ALIGN + HEADER.index("id")])


def _require_view(what: str, tensor: Tensor | None, view: Tensor) -> None:
    """Raise RuntimeError unless a tensor is this very view of the flat storage."""
    if (
        tensor is None
        or tensor.data_ptr() != view.data_ptr()
        or tensor.stride() != view.stride()
        or tensor.shape != view.shape
    ):
        raise RuntimeError(f"{what} has left the individual's flat storage")
