"""The base class of every pydantic model of the project."""

from pydantic import BaseModel, ConfigDict


class StrictModel(BaseModel):
    """An immutable model that refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")
