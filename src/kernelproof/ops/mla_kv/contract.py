"""`kernelproof::mla_kv` as a PyTorch operator: dispatch by device, and shapes for torch.compile."""

from __future__ import annotations

import torch

from kernelproof.ops.mla_kv.layout import check_kinds, check_shapes

torch.library.define(
    "kernelproof::mla_kv",
    "(Tensor hidden, Tensor w_down, Tensor w_up_k, Tensor w_up_v, int kv_heads) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)


@torch.library.impl("kernelproof::mla_kv", "cpu")
def _cpu(
    hidden: torch.Tensor,
    w_down: torch.Tensor,
    w_up_k: torch.Tensor,
    w_up_v: torch.Tensor,
    kv_heads: int,
) -> torch.Tensor:
    from kernelproof.ops.mla_kv.cpu import mla_kv_cpu

    return mla_kv_cpu(hidden, w_down, w_up_k, w_up_v, kv_heads)


@torch.library.impl("kernelproof::mla_kv", "cuda")
def _cuda(
    hidden: torch.Tensor,
    w_down: torch.Tensor,
    w_up_k: torch.Tensor,
    w_up_v: torch.Tensor,
    kv_heads: int,
) -> torch.Tensor:
    from kernelproof.ops.mla_kv.cuda import mla_kv_cuda

    return mla_kv_cuda(hidden, w_down, w_up_k, w_up_v, kv_heads)


def _fake(
    hidden: torch.Tensor,
    w_down: torch.Tensor,
    w_up_k: torch.Tensor,
    w_up_v: torch.Tensor,
    kv_heads: int,
) -> torch.Tensor:
    check_kinds(hidden, w_down, w_up_k, w_up_v)
    check_shapes(hidden, w_down, w_up_k, w_up_v, kv_heads=kv_heads)
    columns = w_up_k.shape[1]
    return hidden.new_empty((*hidden.shape[:-1], 2, kv_heads, columns // kv_heads))


torch.library.register_fake("kernelproof::mla_kv", _fake)

mla_kv_op = torch.ops.kernelproof.mla_kv.default
