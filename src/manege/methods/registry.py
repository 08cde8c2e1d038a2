"""Which class carries out each method that a configuration can name."""

from __future__ import annotations

from typing import Any

from manege import plugins
from manege.config import MethodName, RunConfig, shown
from manege.errors import ConfigError
from manege.methods.cellular import Cellular
from manege.methods.independent import Independent
from manege.methods.method import Method, partition_by

METHODS: dict[MethodName, type[Method[Any]]] = {
    MethodName.PER_CLASS: Independent,
    MethodName.SINGLE: Independent,
    MethodName.CONDITIONAL: Independent,
    MethodName.CELLULAR: Cellular,
}


def method_of(config: RunConfig) -> type[Method[Any]]:
    """Return the class of the method that a configuration names."""
    if not plugins.is_reference(config.method):
        return METHODS[MethodName(config.method)]
    found: type[Method[Any]] = plugins.load(config.method, "method")
    if not isinstance(found, type):
        raise ConfigError(f"method: {config.method} is {shown(found)}, expected a class")
    wanted = [name for name in vars(Method) if not name.startswith("_")]
    lacking = sorted(name for name in wanted if not callable(getattr(found, name, None)))
    lacking += sorted(getattr(found, "__abstractmethods__", ()))
    if lacking:
        raise ConfigError(
            f"method: {config.method} lacks {', '.join(lacking[:4])}; expected a class as "
            "manege.methods.Method describes it: derive it from manege.methods.Independent"
        )
    return found


def partition_of(config: RunConfig, labels: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Return the run's cells, and the labels each sees the pictures of, as its method says."""
    return partition_by(method_of(config).partition, config, labels)
