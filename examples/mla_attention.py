"""An MLA attention block, trained and timed with its K/V projection written out and fused.

The block follows DeepSeek-V2 (arXiv:2405.04434, section 2.1) at small sizes. `MLAProjection` has
the parameters of the published layer, so that the fused block loads the other one's weights.
"""

import statistics
import time

import torch
from torch import nn
from torch.nn import functional

from kernelproof.ops.mla_kv import MLAProjection, explain

HIDDEN, RANK, HEADS, K_DIM, V_DIM, ROPE = 1024, 256, 16, 64, 64, 32


class WrittenOut(nn.Module):
    """The projection as published code has it: down, norm, up, and a concatenation."""

    def __init__(self):
        super().__init__()
        self.kv_a_proj_with_mqa = nn.Linear(HIDDEN, RANK + ROPE, bias=False)
        self.kv_a_layernorm = nn.RMSNorm(RANK, 1e-6)
        self.kv_b_proj = nn.Linear(RANK, HEADS * (K_DIM + V_DIM), bias=False)

    def forward(self, hidden, rotate):
        latent, k_pe = self.kv_a_proj_with_mqa(hidden).split([RANK, ROPE], dim=-1)
        up = self.kv_b_proj(self.kv_a_layernorm(latent)).unflatten(-1, (HEADS, K_DIM + V_DIM))
        k, v = up.split([K_DIM, V_DIM], dim=-1)
        shared = rotate(k_pe.unsqueeze(-2)).expand(*k.shape[:-1], ROPE)
        return torch.cat((k, shared), dim=-1), v


class Attention(nn.Module):
    """Causal attention; ``projection`` makes keys (B, S, H, Dk + P) and values (B, S, H, Dv)."""

    def __init__(self, projection):
        super().__init__()
        self.q_proj = nn.Linear(HIDDEN, HEADS * (K_DIM + ROPE), bias=False)
        self.o_proj = nn.Linear(HEADS * V_DIM, HIDDEN, bias=False)
        self.projection = projection

    def forward(self, hidden):
        angles = positions(hidden.shape[1], hidden.device)
        q = self.q_proj(hidden).unflatten(-1, (HEADS, K_DIM + ROPE))
        q = torch.cat((q[..., :K_DIM], turn(q[..., K_DIM:], angles)), dim=-1)
        k, v = self.projection(hidden, lambda part: turn(part, angles))
        out = functional.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        )
        return self.o_proj(out.transpose(1, 2).flatten(2))


def positions(length, device):
    """Angles of the rotary embedding, (S, 1, P / 2)."""
    frequencies = 10_000.0 ** (-torch.arange(0, ROPE, 2, device=device) / ROPE)
    return torch.outer(torch.arange(length, device=device), frequencies).unsqueeze(1)


def turn(part, angles):
    """``part (B, S, H, P)``, its halves turned against each other by ``angles``."""
    a, b = part.chunk(2, dim=-1)
    cos, sin = angles.cos().to(part.dtype), angles.sin().to(part.dtype)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


def seconds(functions, device, repeats=15):
    """Median time of each of ``functions``, called in turn."""
    times = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
            function()
            if device == "cuda":
                torch.cuda.synchronize()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    written = Attention(WrittenOut()).to(device)
    fused = Attention(
        MLAProjection(HIDDEN, RANK, HEADS, K_DIM, V_DIM, rope_dim=ROPE)
    ).to(device)  # fmt: skip
    fused.load_state_dict(written.state_dict())
    hidden = torch.randn(2, 48, HIDDEN, device=device)

    expected, found = written(hidden), fused(hidden)
    print("outputs", tuple(found.shape), f"largest difference {(found - expected).abs().max():.1e}")
    gradients = [
        torch.autograd.grad(block(hidden).square().mean(), list(block.parameters()))
        for block in (written, fused)
    ]
    worst = max(float((a - b).abs().max() / a.abs().max()) for a, b in zip(*gradients, strict=True))
    print(f"gradients of {len(gradients[0])} parameters, largest relative difference {worst:.1e}")

    angles = positions(hidden.shape[1], hidden.device)

    def rotate(part):
        return turn(part, angles)

    with torch.no_grad():
        times = seconds(
            {
                "projection, written out": lambda: written.projection(hidden, rotate),
                "projection, fused": lambda: fused.projection(hidden, rotate),
                "block, written out": lambda: written(hidden),
                "block, fused": lambda: fused(hidden),
            },
            device,
        )
    for name, value in times.items():
        print(f"{name:24} {value * 1e6:8.0f} us")
    layer = fused.projection
    print(explain(
        hidden, layer.kv_a_proj_with_mqa.weight[:RANK], layer.kv_b_proj.weight, kv_heads=HEADS,
        k_dim=K_DIM, weights="out_in", norm_weight=layer.kv_a_layernorm.weight, layout="split",
    ))  # fmt: skip


if __name__ == "__main__":
    main()
