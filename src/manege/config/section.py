"""What every part of the configuration is made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, model_validator
from pydantic_core import PydanticKnownError, core_schema

from manege.plugins import is_reference, reference_named

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Chance = Annotated[float, Field(ge=0, le=1)]


OWN = "module:name"
"""How messages write what a field takes besides built-in names."""


class ConfigSection(BaseModel):
    """A frozen part of the configuration that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


@dataclass(frozen=True)
class PartName:
    """Marks a field that holds the name of a part: a built-in one, or a ``module:name``.

    An entry point's name becomes the ``module:name`` that it stands for. Without built-in names,
    any other text is left as it is.
    """

    names: type[StrEnum] | None = None

    def read(self, value: Any) -> Any:
        """Return the built-in name, or the reference that a text means."""
        if isinstance(value, str):
            if self.names is not None and value in list(self.names):
                return self.names(value)
            if (reference := reference_named(value)) is not None:
                return reference
        if self.names is None:
            if isinstance(value, str):
                return value
            raise PydanticKnownError("string_type")
        raise PydanticKnownError("enum", {"expected": ", ".join(self.names)})

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        """Have pydantic read and write the field."""
        return core_schema.no_info_plain_validator_function(
            self.read, serialization=core_schema.to_string_ser_schema()
        )


@dataclass(frozen=True)
class SourceName(PartName):
    """Marks a field whose text may be a ``module:name``, and else means what it did before."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        """Leave reading and writing as they are."""
        return handler(source)


class OwnPart(ConfigSection):
    """A part from outside the package, with parameters: every key but `kind` is one."""

    model_config = ConfigDict(extra="allow")

    where: ClassVar[str]
    """The section's dotted key, for messages."""

    kind: Annotated[str, PartName()]
    """Its ``module:name``."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name, value in self.parameters.items():
            if not _is_plain(value):
                raise ValueError(
                    f"{self.where}.{name}: found {type(value).__name__}, expected what YAML can "
                    "write: numbers, texts, null, lists or sections of them"
                )
        return self

    @property
    def parameters(self) -> dict[str, Any]:
        """The keyword arguments of its function."""
        return dict(self.__pydantic_extra__ or {})


def _is_plain(value: Any) -> bool:
    """Return whether a value comes back from YAML and JSON as it is."""
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(one) for key, one in value.items())
    return value is None or type(value) in (bool, int, float, str)


def references_in(section: ConfigSection, before: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted name and the reference of every field that holds a ``module:name``."""
    for name, declared in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, ConfigSection):
            yield from references_in(value, f"{before}{name}.")
        for number, item in enumerate(value if isinstance(value, tuple) else ()):
            if isinstance(item, ConfigSection):
                yield from references_in(item, f"{before}{name}.{number}.")
        if is_reference(value) and any(isinstance(one, PartName) for one in declared.metadata):
            yield f"{before}{name}", value
