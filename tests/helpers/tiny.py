"""The smallest run that trains, and the cache that the tests of scores share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

TINY = {
    "preset": "paper",
    "rounds": 1,
    "networks__kind": "mlp",
    "networks__hidden": 16,
    "training__batch": 40,
    "sheets__pictures": 4,
}
"""For `manege.train("digits", ...)`; the classes, and how many pictures of each, come beside."""


@contextmanager
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pytest.MonkeyPatch]:
    """One folder for the session: the digits' feature networks are trained once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MANEGE_CACHE", str(tmp_path_factory.getbasetemp() / "score-cache"))
        patch.delenv("MANEGE_DATA", raising=False)
        yield patch
