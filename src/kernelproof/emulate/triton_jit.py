"""Triton kernels compiled for sm_80 and launched in the emulator instead of on a GPU."""

from __future__ import annotations

import contextlib
import importlib.util
import weakref
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch

_DTYPES = {
    torch.float64: "fp64", torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16",
    torch.int64: "i64", torch.int32: "i32", torch.int16: "i16", torch.int8: "i8",
    torch.uint8: "u8", torch.bool: "i1",
}  # fmt: skip

# How many sets of keys an autotuner has met, less one.
_turns: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

Take = Callable[[Any, str, dict[str, Any], tuple[int, ...], int, int], None]


@contextlib.contextmanager
def taking_triton(
    take: Take, capability: tuple[int, int] = (8, 0), form: str = "ptx"
) -> Iterator[None]:
    """Inside, a launch of a Triton kernel calls ``take(code, name, args, grid, block, shared)``;
    ``form`` of the code: "ptx" (text) or "cubin" (bytes), for the given compute capability."""
    target = ("cuda", 10 * capability[0] + capability[1], 32)
    if importlib.util.find_spec("triton") is None:
        yield
        return
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    compiled: dict[Any, Any] = {}

    def run(self: Any, *args: Any, grid: Any, warmup: bool = False, **given: Any) -> None:
        values, options = _bound(self, args, given)
        signature, constants, attributes = _specialised(self, values)
        key = (id(self), tuple(signature.items()), repr(constants), repr(attributes), repr(options))
        if key not in compiled:
            compiled[key] = _compile(self, signature, constants, attributes, options, target)
        made = compiled[key]
        sizes = grid(values) if callable(grid) else grid
        passed = {n: values[n] for n, kind in signature.items() if kind != "constexpr"}
        block = 32 * made.metadata.num_warps
        take(made.asm[form], made.metadata.name, passed, tuple(sizes), block, made.metadata.shared)

    pruned = Autotuner.prune_configs

    def prune_configs(self: Any, kwargs: dict[str, Any]) -> list[Any]:
        # Nothing here is timed, and any of them may be the quickest on a GPU: each set of keys
        # takes the next one.
        found = pruned(self, kwargs)
        turn = _turns[self] = _turns.get(self, -1) + 1
        return [found[turn % len(found)]]

    def bench(self: Any, *args: Any, config: Any, **meta: Any) -> list[float]:
        return [1.0] * 3

    with (
        mock.patch.object(JITFunction, "run", run),
        mock.patch.object(Autotuner, "prune_configs", prune_configs),
        mock.patch.object(Autotuner, "_bench", bench),
    ):
        yield


def _bound(kernel: Any, args: Any, given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Values by parameter name, and the options of the launch."""
    values = {p.name: p.default for p in kernel.params if p.has_default}
    values |= dict(zip(kernel.arg_names, args, strict=False))
    values |= {name: value for name, value in given.items() if name in kernel.arg_names}
    names = ("num_warps", "num_stages")
    return values, {name: given[name] for name in names if name in given}


def _specialised(kernel: Any, values: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Types, constants and divisibility of the parameters, as Triton's own launcher has them."""
    signature: dict[str, str] = {}
    constants: dict[Any, Any] = {}
    attributes: dict[Any, Any] = {}
    for number, parameter in enumerate(kernel.params):
        value = values[parameter.name]
        kind = "constexpr" if parameter.is_constexpr else _kind(value)
        signature[parameter.name] = kind
        if kind == "constexpr":
            constants[(number,)] = value
        elif (value.data_ptr() if isinstance(value, torch.Tensor) else value) % 16 == 0 and (
            not isinstance(value, float)
        ):
            attributes[(number,)] = [["tt.divisibility", 16]]
    return signature, constants, attributes


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return "*" + _DTYPES[value.dtype]
    if value is None or (isinstance(value, int) and value == 1):
        return "constexpr"
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        return "i32" if -(1 << 31) <= value < 1 << 31 else "i64"
    return "fp32"


def _compile(
    kernel: Any, signature: Any, constants: Any, attributes: Any, options: Any, target: Any
) -> Any:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = ASTSource(kernel, signature=signature, constexprs=constants, attrs=attributes)
    return triton.compile(source, target=GPUTarget(*target), options=options)
