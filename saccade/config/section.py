"""What every group of settings is made of."""

from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

Size = Literal["tiny", "small", "medium", "base", "big"]
Placeholder = Literal["tags", "variables", "urls", "emails", "numbers"]
Probability = Annotated[float, Field(ge=0.0, lt=1.0)]

T = TypeVar("T")


def known(value: T | None) -> T:
    """A setting that was left open and has been chosen since."""
    assert value is not None, "the settings were not resolved"
    return value


class Section(BaseModel):
    """A group of settings: unknown names are refused, values are checked, nothing changes after it is made."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
