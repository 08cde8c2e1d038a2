"""Which class carries out each method that a configuration can name."""

from __future__ import annotations

from typing import Any

from manege.config import MethodName, RunConfig
from manege.methods.cellular import Cellular
from manege.methods.independent import Independent
from manege.methods.method import Method

METHODS: dict[MethodName, type[Method[Any]]] = {
    MethodName.PER_CLASS: Independent,
    MethodName.SINGLE: Independent,
    MethodName.CONDITIONAL: Independent,
    MethodName.CELLULAR: Cellular,
}


def method_of(config: RunConfig) -> type[Method[Any]]:
    """Return the class of the method that a configuration names."""
    return METHODS[config.method]
