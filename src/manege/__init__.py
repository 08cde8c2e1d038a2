"""manege trains many GANs at once: one pair a class, or a coevolving grid of them.

The verbs of the command line are functions here too, imported when first used, so that
``import manege`` stays free of torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from manege.version import __version__

if TYPE_CHECKING:
    from manege.api import (
        compare,
        evaluate,
        export,
        load_model,
        resume,
        sample,
        save_model,
        train,
    )
    from manege.models import Loss

__all__ = [
    "Loss",
    "__version__",
    "compare",
    "evaluate",
    "export",
    "load_model",
    "resume",
    "sample",
    "save_model",
    "train",
]


def __getattr__(name: str) -> Any:
    if name == "Loss":
        from manege.models import Loss

        return Loss
    if name in __all__:
        from manege import api

        return getattr(api, name)
    raise AttributeError(f"module 'manege' has no attribute {name!r}")
