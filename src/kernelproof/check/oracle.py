"""The truth: any PyTorch module run in float64, without rewriting it.

A ``TorchDispatchMode`` sees every ATen operation below autograd and autocast. It lifts every
floating dtype that an operation is asked for (explicit ``.float()``, ``.to(dtype)``, factories) to
float64, and complex64 to complex128; integers and booleans are left alone. Inputs, parameters and
buffers are lifted beforehand.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.weak import WeakTensorKeyDictionary

from kernelproof.check.accumulation import Serial

Rounding = Callable[[torch.Tensor], torch.Tensor]

_LIFTED: dict[torch.dtype, torch.dtype] = {
    torch.float32: torch.float64,
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float8_e4m3fn: torch.float64,
    torch.float8_e5m2: torch.float64,
    torch.float8_e4m3fnuz: torch.float64,
    torch.float8_e5m2fnuz: torch.float64,
    torch.complex64: torch.complex128,
    torch.complex32: torch.complex128,
}

# Operations that multiply operands in tensor cores where the hardware is allowed to; their first
# operands are what a lower precision rounds.
_MATMULS = {
    "mm", "bmm", "addmm", "baddbmm", "addbmm", "addmv", "mv", "dot", "linear", "convolution",
    "_convolution", "cudnn_convolution", "mkldnn_convolution",
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_attention_math",
}  # fmt: skip


def _draws_only_for_dropout(name: str) -> bool:
    """Attention and recurrent layers are tagged random for their dropout, which is off in eval."""
    return name.startswith("_scaled_dot_product") or "rnn" in name or name in ("lstm", "gru")


def lift(value: Any) -> Any:
    """``value`` with every floating tensor in float64; other things as they are."""
    return tree_map(_lift_leaf, value)


def _lift_leaf(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor) and leaf.dtype in _LIFTED:
        return leaf.detach().to(_LIFTED[leaf.dtype])
    return leaf


class Float64Mode(TorchDispatchMode):
    """Runs what is called under it in float64.

    Args:
        operand_rounding: applied to the operands of matrix products, to see what an answer in a
            lower precision would look like; None for the truth.

        serial: adds the error that serial accumulation makes to every sum.

    ``notes`` lists the operations that had to run in float32, each once; ``operations`` counts
    all, ``drew`` tells whether one drew random numbers, and ``read`` whether one brought values to
    the CPU, as `item` does.
    """

    def __init__(
        self, operand_rounding: Rounding | None = None, serial: Serial | None = None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.rounding = operand_rounding
        self.serial = serial
        self.notes: list[str] = []
        self.operations = 0
        self.drew = False
        self.read = False
        # A low-precision tensor that the lift did not reach (a constant of the module's file) gets
        # one float64 twin, so that writes into it are seen by later reads.
        self._twins: WeakTensorKeyDictionary = WeakTensorKeyDictionary()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # True, torch's default, wraps the method below such that its first call imports all of
        # torch._dynamo, which takes longer than most checks. Nothing here is ever compiled.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.operations += 1
        random, product, reads, _ = _kinds.get(id(func)) or _kind(func)
        if random:
            return self._random(func, args, dict(kwargs))
        if reads is not None and not self.read:
            self.read = reads(args, kwargs)
        if not (_as_is(args) and _as_is(kwargs.values())):
            args, kwargs = _mapped(self._raise, args), _mapped(self._raise, kwargs)
        if product and func.overloadpacket.__name__ == "convolution" and args[0].is_cuda:
            self._name_tf32()
        if product and self.rounding is not None:
            args = tuple(self._round(arg) for arg in args)
        try:
            result = func(*args, **kwargs)
        except (RuntimeError, NotImplementedError) as error:
            if not _no_double(error):
                raise
            return self._in_float32(func, args, kwargs)
        if type(result) is not torch.Tensor or result.dtype in _LIFTED:
            result = _mapped(_lift_leaf, result)
        return result if self.serial is None else self.serial.disturb(func, args, kwargs, result)

    def _raise(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.dtype):
            return _LIFTED.get(leaf, leaf)
        if isinstance(leaf, torch.Tensor) and leaf.dtype in _LIFTED:
            if leaf not in self._twins:
                self._twins[leaf] = leaf.to(_LIFTED[leaf.dtype])
            return self._twins[leaf]
        return leaf

    def _round(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
            assert self.rounding is not None
            return self.rounding(leaf)
        return leaf

    def _random(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Draw in float32, as the working precision does, so that both see the same numbers."""
        self.drew = True
        args, kwargs = _mapped(self._raise, args), _mapped(self._raise, kwargs)
        lowered = _mapped(_lower_leaf, args), _mapped(_lower_leaf, kwargs)
        if "dtype" in lowered[1] and lowered[1]["dtype"] is None:
            lowered[1]["dtype"] = torch.float32
        with _default_dtype(torch.float32):
            result = func(*lowered[0], **lowered[1])
        if func._schema.is_mutable and args and isinstance(args[0], torch.Tensor):
            return args[0].copy_(result)
        name = func.overloadpacket.__name__
        if args and isinstance(args[0], torch.Tensor):
            self._note(f"{name}: random, run in float32")
        return _mapped(_lift_leaf, result)

    def _in_float32(self, func: Any, args: Any, kwargs: Any) -> Any:
        self._note(f"{func.overloadpacket.__name__}: no float64 form, run in float32")
        result = func(*_mapped(_lower_leaf, args), **_mapped(_lower_leaf, kwargs))
        return _mapped(_lift_leaf, result)

    def _name_tf32(self) -> None:
        """By default cuDNN's convolutions take fp32 through TF32, the reference's included: then a
        candidate may err as much, and the reader should know."""
        if torch.backends.cudnn.allow_tf32:
            self._note("convolution: the reference uses TF32 (torch.backends.cudnn.allow_tf32)")

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


# By identity: hashing an operation runs Python code, and a loop asks for thousands.
_Reads = Callable[[Any, Any], bool]
_kinds: dict[int, tuple[bool, bool, _Reads | None, Any]] = {}


def _kind(func: Any) -> tuple[bool, bool, _Reads | None, Any]:
    """Whether an operation draws random numbers, whether it multiplies matrices, and what tells of
    its arguments whether it brings values to the CPU; None for one that never does."""
    name = func.overloadpacket.__name__
    seeded = torch.Tag.nondeterministic_seeded in func.tags
    reads: _Reads | None = None
    if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
        reads = _by_mask
    elif name in ("_to_copy", "copy_", "copy"):
        reads = _across
    elif {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(func.tags):
        reads = _always
    # The last keeps the operation alive, and its identity with it.
    known = seeded and not _draws_only_for_dropout(name), name in _MATMULS, reads, func
    _kinds[id(func)] = known
    return known


def _always(args: Any, kwargs: Any) -> bool:
    return True


def _by_mask(args: Any, kwargs: Any) -> bool:
    """Of an indexing: whether a mask decides how many elements there are."""
    masks = (torch.bool, torch.uint8)
    return any(isinstance(x, torch.Tensor) and x.dtype in masks for x in args[1])


def _across(args: Any, kwargs: Any) -> bool:
    """Of a copy: whether it is to another kind of device."""
    into = args[1].device if len(args) > 1 and isinstance(args[1], torch.Tensor) else None
    into = into if into is not None else kwargs.get("device")
    return into is not None and torch.device(into).type != args[0].device.type


_PLAIN = (int, float, bool, type(None))


def _as_is(values: Iterable[Any]) -> bool:
    """Whether an operation's arguments need no lift; tells quickly, and may say no in vain."""
    for value in values:
        kind = type(value)
        if kind is torch.Tensor:
            if value.dtype in _LIFTED:
                return False
        elif kind is list:
            if not all(type(item) is int for item in value):
                return False
        elif kind not in _PLAIN:
            return False
    return True


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """``change`` applied to the leaves of an operation's arguments or results.

    Arguments of operations nest in tuples, lists and the keywords' dict only; torch's general tree
    functions cost several times the operation itself.
    """
    kind = type(value)
    if kind is tuple or kind is list:
        return kind(_mapped(change, item) for item in value)
    if kind is dict:
        return {key: _mapped(change, item) for key, item in value.items()}
    return change(value)


def _lower_leaf(leaf: Any) -> Any:
    if leaf is torch.float64:
        return torch.float32
    if isinstance(leaf, torch.Tensor) and leaf.dtype is torch.float64:
        return leaf.to(torch.float32)
    return leaf


def _no_double(error: Exception) -> bool:
    text = str(error)
    return "not implemented for" in text or "Double" in text or "float64" in text


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def float64(
    operand_rounding: Rounding | None = None, serial: Serial | None = None
) -> Iterator[Float64Mode]:
    """Everything inside runs in float64; the default dtype is float64 too, for factories that name
    no dtype."""
    mode = Float64Mode(operand_rounding, serial)
    with _default_dtype(torch.float64), torch.no_grad(), mode:
        yield mode


def round_to(dtype: str) -> Rounding:
    """A rounding of float64 values to the precision of ``dtype``: "tf32", "bf16" or "fp16".

    TF32 keeps 10 explicit mantissa bits and float32's exponent range (NVIDIA A100 whitepaper).
    """
    if dtype == "bf16":
        return lambda x: x.to(torch.bfloat16).to(torch.float64)
    if dtype == "fp16":
        return lambda x: x.to(torch.float16).to(torch.float64)
    if dtype == "tf32":
        return _round_tf32
    raise ValueError(f"no rounding named {dtype!r}; there are tf32, bf16, fp16")


def _round_tf32(x: torch.Tensor) -> torch.Tensor:
    bits = x.to(torch.float32).contiguous().view(torch.int32)
    # Add half of the 13 dropped bits' unit, ties to even.
    odd = (bits >> 13) & 1
    return ((bits + 0xFFF + odd) & ~0x1FFF).view(torch.float32).to(torch.float64)
