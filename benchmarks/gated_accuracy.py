"""Errors of gated_recurrence against float64 over families of gates, beside the loop over steps in
the same dtype and flash-linear-attention. No times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernelproof.ops.gated_recurrence import cuda, reference

Tensor = torch.Tensor
_SIZES = (1, 512, 16, 64, 64)  # B, T, H, K, V

# Gates by name, from a normal random tensor.
_FAMILIES: dict[str, Callable[[Tensor], Tensor]] = {
    "mild": torch.sigmoid,
    "slow": lambda x: torch.exp(torch.nn.functional.logsigmoid(x) / 16),
    "1e-3 to 1e-1": lambda x: 1e-3 + 0.099 * torch.special.ndtr(x),
    "5% zeros": lambda x: torch.sigmoid(x) * (x > -1.645),
    "signed": torch.tanh,
    "around one": lambda x: 0.8 + 0.4 * torch.special.ndtr(x),
}
FAMILIES = {
    f"{dtype} {axis} gate, {family}": (dtype, axis, family)
    for dtype in ("fp32", "bf16")
    for axis in ("key", "value")
    for family in _FAMILIES
}


def accuracy(name: str, ours_alone: bool = False) -> dict[str, Any]:
    """A row: root mean squares of errors of y, relative to float64."""
    dtype, axis, family = FAMILIES[name]
    torch.manual_seed(0)
    batch, steps, heads, key_dim, value_dim = _SIZES
    element = torch.float32 if dtype == "fp32" else torch.bfloat16
    q, k = (torch.randn(batch, steps, heads, key_dim, device="cuda") for _ in range(2))
    v = torch.randn(batch, steps, heads, value_dim, device="cuda")
    q, k, v = (q * key_dim**-0.5).to(element), k.to(element), v.to(element)
    gate = _FAMILIES[family](torch.randn(batch, steps, heads, key_dim, device="cuda"))
    gates = (gate, None, None) if axis == "key" else (None, gate, None)
    true = reference.run(q.double(), k.double(), v.double(), *(
        None if g is None else g.double() for g in gates
    ))[0]  # fmt: skip
    results = {
        "kernelproof": cuda.launch(q, k, v, *gates)[0],
        "loop": reference.run(q, k, v, *gates)[0],
    }
    if bool((gate > 0).all()) and not ours_alone:
        results |= _of_fla(q, k, v, gates)
    errors = {n: float((y.double() - true).norm() / true.norm()) for n, y in results.items()}
    return {
        "name": name, "kind": "accuracy", "dtype": dtype, "axis": axis, "family": family,
        "sizes": list(_SIZES), "design": "-", "errors": errors, "seconds": {},
    }  # fmt: skip


def _of_fla(q: Tensor, k: Tensor, v: Tensor, gates: Any) -> dict[str, Tensor]:
    """What it has for positive gates: by steps for both axes, in chunks for keys alone."""
    try:
        from fla.ops.gla import chunk_gla, fused_recurrent_gla
    except ImportError:
        return {}
    log_k, log_v = (None if g is None else g.log() for g in gates[:2])
    found = {"fused_recurrent_gla": fused_recurrent_gla(q, k, v, gk=log_k, gv=log_v, scale=1.0)[0]}
    if log_k is not None:
        found["chunk_gla"] = chunk_gla(q, k, v, log_k, scale=1.0)[0]
    return found
