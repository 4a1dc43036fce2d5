"""The operators ``kernelproof::int8_attention`` and ``int8_attention_lse``: schema, shapes, and who
computes them."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

# |score| <= 128 * 128 * D and differences of two scores must fit in int32.
MAX_HEAD_DIM = 65_535

NAME = "kernelproof::int8_attention"
NAME_WITH_LSE = "kernelproof::int8_attention_lse"
OUT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)

_ARGUMENTS = (
    "(Tensor q, Tensor k, Tensor v, Tensor q_scale, Tensor k_scale, Tensor v_scale, "
    "bool causal, float scale, *, bool strict=True, ScalarType? out_dtype=None, "
    "int[] block=[], Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, "
    "Tensor? kv_lens=None, Tensor? block_table=None)"
)
_TAGS = (torch.Tag.pt2_compliant_tag,)
torch.library.define(NAME, f"{_ARGUMENTS} -> Tensor", tags=_TAGS)
torch.library.define(NAME_WITH_LSE, f"{_ARGUMENTS} -> (Tensor, Tensor)", tags=_TAGS)


class Form(NamedTuple):
    """What is asked for beyond the plain form: everything but the six tensors, causal and scale."""

    strict: bool = True
    out_dtype: torch.dtype = torch.float32
    block: tuple[int, ...] = ()  # of q, k and v; () for scales per head or per token
    cu_seqlens_q: Tensor | None = None
    cu_seqlens_k: Tensor | None = None
    kv_lens: Tensor | None = None
    block_table: Tensor | None = None
    with_lse: bool = False

    @property
    def places(self) -> tuple[Tensor | None, ...]:
        """Offsets, lengths and pages, in the order of the kernels' arguments."""
        return self.cu_seqlens_q, self.cu_seqlens_k, self.kv_lens, self.block_table


PLAIN = Form()


def check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_scale: Tensor,
    k_scale: Tensor,
    v_scale: Tensor,
    form: Form = PLAIN,
    *,
    limit_dim: bool = True,
) -> None:
    """Raise ValueError or TypeError unless the tensors fit together as the operator needs.

    ``limit_dim=False`` is for the reference, whose floating-point scores cannot overflow. Values of
    offsets, lengths and block tables are not looked at here; see `check_places`.
    """
    if not (q.dtype == k.dtype == torch.int8 and v.dtype in (torch.int8, torch.float16)):
        raise TypeError(
            f"q and k must be torch.int8 and v torch.int8 or torch.float16, not {q.dtype}, "
            f"{k.dtype} and {v.dtype}; quantise them first (quantize_int8)"
        )
    if not (q_scale.dtype == k_scale.dtype == v_scale.dtype == torch.float32):
        raise TypeError(
            "q_scale, k_scale and v_scale must be torch.float32, not "
            f"{q_scale.dtype}, {k_scale.dtype} and {v_scale.dtype}; convert with .float()"
        )
    device = q.device
    if not (
        k.device == device
        and v.device == device
        and q_scale.device == device
        and k_scale.device == device
        and v_scale.device == device
    ):
        devices = [str(t.device) for t in (q, k, v, q_scale, k_scale, v_scale)]
        raise ValueError(f"all six tensors must be on one device, not on {', '.join(devices)}")
    if q.dim() != 4 or k.dim() != 4 or v.shape != k.shape:
        raise ValueError(
            "q must be (B, Sq, Hq, D), k and v both (B, Skv, Hkv, D), not "
            f"{tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}"
        )
    batch, _, heads, dim = q.shape
    kv_heads = k.shape[2]
    if k.shape[3] != dim or (k.shape[0] != batch and form.block_table is None):
        raise ValueError(
            f"q {tuple(q.shape)} and k {tuple(k.shape)} must agree in B (first) and D (last)"
        )
    if heads != kv_heads and (kv_heads == 0 or heads % kv_heads != 0):
        raise ValueError(
            f"the {heads} heads of q must be a multiple of the {kv_heads} heads of k and v"
        )
    plain = q_scale.dim() == 1 and k_scale.dim() == 1 and v_scale.dim() == 1
    if not plain or form.block:
        _check_scales(q, k, (q_scale, k_scale, v_scale), form.block)
    elif q_scale.shape != (heads,) or k_scale.shape != (kv_heads,) or v_scale.shape != (kv_heads,):
        raise ValueError(
            f"q_scale must be ({heads},), k_scale and v_scale ({kv_heads},), not "
            f"{tuple(q_scale.shape)}, {tuple(k_scale.shape)} and {tuple(v_scale.shape)}"
        )
    if limit_dim and dim > MAX_HEAD_DIM:
        raise ValueError(
            f"the head dimension is {dim}; up to {MAX_HEAD_DIM} the int32 scores cannot overflow, "
            'beyond that use impl="reference"'
        )
    if form is not PLAIN:
        _check_form(q, k, form)


def _check_scales(
    q: Tensor, k: Tensor, scales: tuple[Tensor, Tensor, Tensor], block: tuple[int, ...]
) -> None:
    """Scales (H,), per token (B, S, H), or per block (B, ceil(S / block), H)."""
    if block and (len(block) != 3 or any(size < 1 for size in block)):
        raise ValueError(
            f"block is {tuple(block)}; it must be one size, or three of q, k and v, of at least 1"
        )
    sizes = block or (1, 1, 1)
    for name, scale, x, size in zip(
        ("q_scale", "k_scale", "v_scale"), scales, (q, k, k), sizes, strict=True
    ):
        length, heads = x.shape[1], x.shape[2]
        blocks = -(-length // size)
        if scale.shape not in ((heads,), (x.shape[0], blocks, heads)):
            per = f"blocks of {size} tokens" if block else "tokens"
            raise ValueError(
                f"{name} must be ({heads},) for heads or ({x.shape[0]}, {blocks}, {heads}) for "
                f"{per}, not {tuple(scale.shape)}; blocks are told with block="
            )


def _check_form(q: Tensor, k: Tensor, form: Form) -> None:
    if form.out_dtype not in OUT_DTYPES:
        names = ", ".join(map(str, OUT_DTYPES))
        raise ValueError(f"out_dtype is {form.out_dtype}; it must be one of {names}")
    cu_q, cu_k, lens, table = form.cu_seqlens_q, form.cu_seqlens_k, form.kv_lens, form.block_table
    if (cu_q is None) != (cu_k is None):
        raise ValueError("cu_seqlens_q and cu_seqlens_k must be given together, or neither")
    if cu_q is not None and (lens is not None or table is not None):
        raise ValueError(
            "cu_seqlens_q and cu_seqlens_k exclude kv_lens and block_table: packed sequences, or a "
            "cache"
        )
    if table is not None and lens is None:
        raise ValueError("block_table needs kv_lens, the number of keys of each sequence")
    for name, places, dims in (
        ("cu_seqlens_q", cu_q, 1),
        ("cu_seqlens_k", cu_k, 1),
        ("kv_lens", lens, 1),
        ("block_table", table, 2),
    ):
        if places is None:
            continue
        if places.dtype != torch.int32:
            raise TypeError(f"{name} must be torch.int32, not {places.dtype}; convert with .int()")
        if places.device != q.device:
            raise ValueError(f"{name} is on {places.device} and q on {q.device}; move one of them")
        if places.dim() != dims:
            raise ValueError(f"{name} has shape {tuple(places.shape)}; it must have {dims} axes")
    if cu_q is not None and cu_k is not None:
        if q.shape[0] != 1:
            raise ValueError(
                f"packed sequences are one batch element: q must be (1, tokens, Hq, D), not "
                f"{tuple(q.shape)}"
            )
        if cu_q.shape != cu_k.shape or cu_q.shape[0] < 1:
            raise ValueError(
                "cu_seqlens_q and cu_seqlens_k must both be (sequences + 1,), not "
                f"{tuple(cu_q.shape)} and {tuple(cu_k.shape)}"
            )
    for name, places in (("kv_lens", lens), ("block_table", table)):
        if places is not None and places.shape[0] != q.shape[0]:
            raise ValueError(
                f"{name} has shape {tuple(places.shape)}; its first size must be B = {q.shape[0]}"
            )


def check_places(q: Tensor, k: Tensor, form: Form) -> None:
    """Raise ValueError where offsets, lengths or pages, on the CPU, point outside of the tensors.

    On a GPU the same would wait for the device, so there the values are trusted.
    """
    for name, cu, count in (
        ("cu_seqlens_q", form.cu_seqlens_q, q.shape[1]),
        ("cu_seqlens_k", form.cu_seqlens_k, k.shape[1]),
    ):
        if cu is None:
            continue
        ends, steps = cu.tolist(), cu.diff().tolist()
        if ends[0] != 0 or ends[-1] != count or any(n < 0 for n in steps):
            raise ValueError(
                f"{name} is {_some(ends)}; it must rise from 0 to {count}, the number of tokens"
            )
    if form.kv_lens is None:
        return
    lens = form.kv_lens.tolist()
    page, table = k.shape[1], form.block_table
    most = page if table is None else table.shape[1] * page
    if any(n < 0 or n > most for n in lens):
        raise ValueError(f"kv_lens is {_some(lens)}; lengths here are 0 to {most}")
    if table is not None:
        used = torch.arange(table.shape[1]) * page < form.kv_lens.unsqueeze(1)
        pages = table[used]
        if pages.numel() and not (int(pages.min()) >= 0 and int(pages.max()) < k.shape[0]):
            raise ValueError(
                f"block_table names pages {int(pages.min())} to {int(pages.max())}; the cache has "
                f"pages 0 to {k.shape[0] - 1}"
            )


def _some(values: list[int]) -> str:
    return str(values if len(values) <= 12 else [*values[:6], "...", *values[-5:]])


def _form(options: dict[str, Any], with_lse: bool) -> Form:
    """The form of an operator's keyword arguments; `PLAIN` itself where it is that."""
    if not options and not with_lse:
        return PLAIN
    given = {name: value for name, value in options.items() if value is not None}
    if "block" in given:
        given["block"] = tuple(given["block"])
    return Form(**given, with_lse=with_lse)


def _fake_both(
    form: Form,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_scale: Tensor,
    k_scale: Tensor,
    v_scale: Tensor,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    check(q, k, v, q_scale, k_scale, v_scale, form)
    out = torch.empty(q.shape, dtype=form.out_dtype, device=q.device)
    return out, torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)


def _fake(*arguments: Any, **options: Any) -> Tensor:
    return _fake_both(_form(options, False), *arguments)[0]


def _fake_lse(*arguments: Any, **options: Any) -> tuple[Tensor, Tensor]:
    return _fake_both(_form(options, True), *arguments)


torch.library.register_fake(NAME, _fake)
torch.library.register_fake(NAME_WITH_LSE, _fake_lse)


@functools.cache
def _launcher(device: str) -> Any:
    """The module that launches on ``device``, imported on first use."""
    if device == "cuda":
        from kernelproof.ops.int8_attention import cuda

        return cuda
    from kernelproof.ops.int8_attention import cpu

    return cpu


def _run(device: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Tensor:
    form = _form(options, False)
    module = _launcher(device)
    out: Tensor = (
        module.launch(*arguments) if form is PLAIN else module.launch_form(*arguments, form)[0]
    )
    return out


def _run_lse(
    device: str, arguments: tuple[Any, ...], options: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    both: tuple[Tensor, Tensor] = _launcher(device).launch_form(*arguments, _form(options, True))
    return both


@torch.library.impl(NAME, "CPU")
def _cpu(*arguments: Any, **options: Any) -> Tensor:
    return _run("cpu", arguments, options)


@torch.library.impl(NAME_WITH_LSE, "CPU")
def _cpu_lse(*arguments: Any, **options: Any) -> tuple[Tensor, Tensor]:
    return _run_lse("cpu", arguments, options)


@torch.library.impl(NAME, "CUDA")
def _cuda(*arguments: Any, **options: Any) -> Tensor:
    return _run("cuda", arguments, options)


@torch.library.impl(NAME_WITH_LSE, "CUDA")
def _cuda_lse(*arguments: Any, **options: Any) -> tuple[Tensor, Tensor]:
    return _run_lse("cuda", arguments, options)
