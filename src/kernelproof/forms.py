"""What a worker's answers look like. A candidate can write to its worker's channel, so that nothing
in an answer is what it should be until it has been looked at."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from kernelproof.errors import CandidateCrash
from kernelproof.worker.wire import plain_text

# Takes what was sent to what it stands for; raises ValueError or TypeError for anything else.
Form = Callable[[Any], Any]


def anything(value: Any) -> Any:
    return value


def number(value: Any) -> int:
    """Not negative, as all that are sent."""
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise TypeError
    return value


def seconds(value: Any) -> float:
    """Finite; of any sign, since clocks that were tampered with are looked for elsewhere."""
    if type(value) is not float or not math.isfinite(value):
        raise TypeError
    return value


def text(value: Any) -> str:
    """As it can be printed."""
    if not isinstance(value, str):
        raise TypeError
    return plain_text(value)


def list_of(form: Form) -> Form:
    def read(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise TypeError
        return [form(item) for item in value]

    return read


def row_of(*forms: Form) -> Form:
    """A list of as many items as there are ``forms``."""

    def read(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise TypeError
        return [form(item) for form, item in zip(forms, value, strict=True)]

    return read


def or_none(form: Form) -> Form:
    return lambda value: None if value is None else form(value)


def truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def fields(forms: Mapping[str, Form]) -> Form:
    """A dict that has these fields; others are left out."""

    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise TypeError
        return {name: form(value.get(name)) for name, form in forms.items()}

    return read


def read(do: str, answer: Any, form: Form) -> Any:
    """``answer`` to the request ``do``. Raises CandidateCrash where it is not of this form."""
    try:
        return form(answer)
    except (TypeError, ValueError):
        raise nonsense(do, answer) from None


def nonsense(do: str, answer: Any) -> CandidateCrash:
    return CandidateCrash(
        f"the worker sent nonsense in answer to {do!r}: {plain_text(repr(answer)):.80}"
    )


_pairs = list_of(row_of(number, number))
_texts = list_of(text)

CALL = fields(
    {
        "output": anything, "mutated": list_of(number), "views_input": _pairs, "reused": _pairs,
        "overrun": list_of(row_of(number, text)), "overlaps": _pairs, "devices": _texts,
        "emulated": or_none(
            fields(
                {"launches": number, "errors": _texts, "notes": _texts, "apart": list_of(number)}
            )
        ),
        "refused": _texts, "draws": truth,
    }
)  # fmt: skip
LOAD = fields(
    {
        "import_seconds": seconds, "construct_seconds": seconds, "weights": text,
        "alike": or_none(truth),
    }
)  # fmt: skip
TRACED = fields(
    {
        "tripwires": fields(
            {
                "patched": _texts, "seen": _texts, "opened": _texts, "threads": number,
                "settings": _texts,
            }
        ),
        "profile": or_none(fields({"seconds": seconds, "library": seconds, "names": _texts})),
    }
)  # fmt: skip
PREPARED = fields({"first": seconds, "host": seconds, "graph": number, "problem": text})
# What the times are is looked at apart: a false clock is more than nonsense.
SAMPLED = fields({"readings": list_of(anything), "kept": number})
UNSEEN = fields({"new": seconds, "seen": seconds, "kept": number})
CAPTURED = fields({"modules": list_of(anything), "stopped": text})
KERNELS = list_of(
    fields(
        {
            "name": text, "seconds": seconds, "count": number, "grid": list_of(number),
            "block": list_of(number), "shared": number,
        }
    )
)  # fmt: skip
