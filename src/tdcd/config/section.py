"""What every section of the configuration is, and the types of its keys."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", max_length=24)]
"""Of a silo or a client; short enough that a certificate can carry both."""
Address = Annotated[str, Field(pattern=r"^(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}$")]


class Section(BaseModel):
    """A table of the TOML file: unknown keys are errors, and values have the types that they are written with."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
