"""Launches written as text, for a kernel without a problem file.

    // launch: block_sum<<<3, 128>>>(f32[300], out f32[3], 300)

A buffer is a dtype with its sizes in brackets; ``= 0``, ``= 1`` or ``= range`` after it gives its
values, which are random otherwise. ``out`` marks memory that holds nothing yet. Other arguments are
numbers or ``null``. A third number between the brackets is dynamic shared memory in bytes.
"""

from __future__ import annotations

import ast
import dataclasses
import math
import re
from typing import Any

import numpy as np

from kernelproof.emulate.image import Buffer
from kernelproof.errors import UsageError

DTYPES = {
    "f64": np.float64, "f32": np.float32, "f16": np.float16, "i64": np.int64, "i32": np.int32,
    "i16": np.int16, "i8": np.int8, "u64": np.uint64, "u32": np.uint32, "u16": np.uint16,
    "u8": np.uint8,
}  # fmt: skip
# An emulated launch of more would take hours.
_MOST_ELEMENTS = 1 << 28
_LAUNCH = re.compile(r"^(?P<name>.+?)\s*<<<(?P<sizes>.*?)>>>\s*\((?P<args>.*)\)$", re.DOTALL)
_BUFFER = re.compile(r"^(out\s+)?(\w+)\[([^\]]*)\]\s*(?:=\s*([\w.+-]+))?$")


@dataclasses.dataclass(frozen=True)
class LaunchSpec:
    """``arguments`` makes the same values each time."""

    text: str
    kernel: str
    grid: Any
    block: Any
    shared: int
    args: tuple[str, ...]

    def arguments(self) -> list[Any]:
        random = np.random.default_rng(0)
        return [_argument(text, random) for text in self.args]


def find(source: str) -> list[LaunchSpec]:
    """The launches that a source's comments name."""
    return [parse(text) for text in re.findall(r"^\s*//\s*launch:\s*(.+?)\s*$", source, re.M)]


def parse(text: str) -> LaunchSpec:
    """Raises UsageError for text that is no launch."""
    found = _LAUNCH.match(text.strip())
    if found is None:
        raise UsageError(
            f"{text!r} is no launch; write it as in: scale<<<8, 128>>>(f32[1000], out f32[1000], 3)"
        )
    try:
        sizes = ast.literal_eval(f"({found['sizes']},)")
    except (SyntaxError, ValueError):
        sizes = ()
    if len(sizes) not in (2, 3):
        raise UsageError(
            f"<<<{found['sizes']}>>>: give grid, block and, where needed, shared bytes"
        )
    args = tuple(_split(found["args"]))
    shared = sizes[2] if len(sizes) == 3 else 0
    spec = LaunchSpec(text.strip(), found["name"], sizes[0], sizes[1], shared, args)
    spec.arguments()
    return spec


def _split(text: str) -> list[str]:
    parts, depth, part = [], 0, ""
    for char in text:
        depth += (char == "[") - (char == "]")
        if char == "," and depth == 0:
            parts.append(part.strip())
            part = ""
        else:
            part += char
    return [*parts, part.strip()] if part.strip() else parts


def _argument(text: str, random: np.random.Generator) -> Any:
    if text == "null":
        return None
    found = _BUFFER.match(text)
    if found is None:
        try:
            value = ast.literal_eval(text)
        except (SyntaxError, ValueError):
            value = None
        if isinstance(value, (bool, int, float)):
            return value
        raise UsageError(f"argument {text!r}: give a number, null, or a buffer such as f32[100]")
    out, kind, sizes, fill = found.groups()
    if kind not in DTYPES:
        raise UsageError(f"argument {text!r}: no dtype {kind!r}; there are {', '.join(DTYPES)}")
    try:
        shape = tuple(int(n) for n in sizes.split(","))
    except ValueError:
        raise UsageError(f"argument {text!r}: sizes are whole numbers, as in f32[20, 30]") from None
    if any(n < 0 for n in shape) or math.prod(shape) > _MOST_ELEMENTS:
        raise UsageError(
            f"argument {text!r}: sizes of 0 or more, {_MOST_ELEMENTS:,} elements at the most"
        )
    array = _filled(np.dtype(DTYPES[kind]), shape, fill, random)
    return Buffer(array, initialised=False) if out else array


def _filled(
    dtype: np.dtype[Any], shape: tuple[int, ...], fill: str | None, random: np.random.Generator
) -> Any:
    if fill == "range":
        return np.arange(np.prod(shape)).astype(dtype).reshape(shape)
    if fill is not None:
        try:
            return np.full(shape, float(fill)).astype(dtype)
        except ValueError:
            raise UsageError(f"buffers are filled with a number or `range`, not {fill!r}") from None
    if dtype.kind == "f":
        return random.standard_normal(shape).astype(dtype)
    low = -100 if dtype.kind == "i" else 0
    return random.integers(low, 100, shape).astype(dtype)
