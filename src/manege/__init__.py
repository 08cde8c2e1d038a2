"""manege trains many GANs at once: one pair a class, or a coevolving grid of them.

The verbs of the command line are functions here too, imported when first used, so that
``import manege`` stays free of torch.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from manege.version import __version__

if TYPE_CHECKING:
    from manege.api import (
        Run,
        balance,
        compare,
        evaluate,
        export,
        load_model,
        report,
        resume,
        sample,
        save_model,
        sweep,
        train,
        verdict,
    )
    from manege.config import RunConfig
    from manege.errors import CheckpointError, ConfigError, DataError, MachineError, ManegeError
    from manege.models import Loss
    from manege.observer import Observer, Stopper
    from manege.sampler import Model, Samples

_MODULES = {
    "manege.api": (
        *(
            "Run",
            "balance",
            "compare",
            "evaluate",
            "export",
            "load_model",
            "report",
            "resume",
            "sample",
        ),
        *("save_model", "sweep", "train", "verdict"),
    ),
    "manege.config": ("RunConfig",),
    "manege.errors": (
        *("CheckpointError", "ConfigError", "DataError", "MachineError", "ManegeError"),
    ),
    "manege.models": ("Loss",),
    "manege.observer": ("Observer", "Stopper"),
    "manege.sampler": ("Model", "Samples"),
}

__all__ = [
    "CheckpointError",
    "ConfigError",
    "DataError",
    "Loss",
    "MachineError",
    "ManegeError",
    "Model",
    "Observer",
    "Run",
    "RunConfig",
    "Samples",
    "Stopper",
    "__version__",
    "balance",
    "compare",
    "evaluate",
    "export",
    "load_model",
    "report",
    "resume",
    "sample",
    "save_model",
    "sweep",
    "train",
    "verdict",
]


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'manege' has no attribute {name!r}")


class _Verb(ModuleType):
    """A package inside this one that has the name of a verb, and can be called as it."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        verb = getattr(import_module("manege.api"), self.__name__.rpartition(".")[2])
        return verb(*args, **options)


class _Front(ModuleType):
    """This package, in which the verbs `report` and `verdict` are packages too.

    Python binds a package to its name here as soon as anything imports it.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _MODULES["manege.api"] and isinstance(value, ModuleType):
            value.__class__ = _Verb
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Front
