"""The modules of the problems on our kernels, but for the launcher."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from kernelproof.ops.int8_attention.contract import PLAIN, Form

# What follows the six tensors in each kind of problem_forms.py.
KINDS = {
    "dense": (),
    "packed": ("cu_seqlens_q", "cu_seqlens_k"),
    "lens": ("kv_lens",),
    "paged": ("kv_lens", "block_table"),
}


class ProblemModel(torch.nn.Module):
    """What a launcher needs to stand for the ``Model`` of problem.py and of problem_forms.py: the
    latter's constructor and forward, whose defaults are the former's."""

    def __init__(
        self,
        causal: bool = True,
        kind: str = "dense",
        accuracy: str = "strict",
        out_dtype: torch.dtype = torch.float32,
        block: tuple[int, ...] = (),
        lse: bool = False,
    ) -> None:
        super().__init__()
        self.causal, self.places = causal, KINDS[kind]
        form = Form(accuracy == "strict", out_dtype, tuple(block), with_lse=lse)
        self.form = PLAIN if form == PLAIN else form

    def run(self, launch: Any, tensors: tuple[Tensor, ...]) -> Any:
        """``launch(*six tensors, causal, scale, form)`` as the problem's forward returns it."""
        form = self.form
        if self.places:
            places: dict[str, Any] = dict(zip(self.places, tensors[6:], strict=True))
            form = form._replace(**places)
        dim = tensors[0].shape[3]
        out, lse = launch(*tensors[:6], self.causal, 1 / math.sqrt(max(dim, 1)), form)
        return (out, lse) if form.with_lse else out
