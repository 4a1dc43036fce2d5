"""Words, numbers and the base that all values share."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, WithJsonSchema

Status = Literal["pass", "wrong", "cheat", "compile_error", "crash", "timeout", "unsupported"]
Outcome = Literal["pass", "fail", "note", "skip"]
Evidence = Literal["device", "emulated", "interpreted", "compiled", "cpu", "none"]
# How much is checked beyond the declared cases; see docs/verdict.md.
Level = Literal["quick", "default", "thorough"]
Comparison = Literal["FASTER", "SAME", "SLOWER", "UNCLEAR"]
# What a time per call is of; see docs/timing.md.
Clock = Literal["device", "host", "cold", "single", "warm"]


# A stage reports (what it does, steps done, steps in all); whoever called decides what to show.
Progress = Callable[[str, int, int], None]


def silent(what: str, done: int, total: int) -> None:
    """A `Progress` that shows nothing."""


def _parse_real(value: Any) -> Any:
    return float(value) if isinstance(value, str) else value


def _dump_real(value: float) -> float | str:
    return value if math.isfinite(value) else repr(value)


# JSON has no NaN and no infinity; both do occur in error figures, and they must survive a record.
Real = Annotated[
    float,
    BeforeValidator(_parse_real),
    PlainSerializer(_dump_real, when_used="json"),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"enum": ["nan", "inf", "-inf"]}]}),
]


class Frozen(BaseModel):
    """Base of all values: immutable, and unknown fields are an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")
