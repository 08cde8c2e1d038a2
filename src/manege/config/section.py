"""What every part of the configuration is made of."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Chance = Annotated[float, Field(ge=0, le=1)]


class ConfigSection(BaseModel):
    """A frozen part of the configuration that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)
