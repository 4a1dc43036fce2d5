"""Honest kernels and ones with a wrong formula below the rounding noise, in plain PyTorch.

Each function draws a run and returns (output, reference's output, truth in float64). As a program
it prints the table of docs/verdict.md: ``python tests/check/structure_kernels.py``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

import numpy as np
import torch

from kernelproof.check import budget
from kernelproof.check.oracle import round_to
from kernelproof.check.structure import Hint, Structure, counting_hints, hint_of

Run = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
_TF32 = round_to("tf32")


def one_by_one(x: torch.Tensor) -> torch.Tensor:
    """Sum over the last axis in float32, one term after the other (torch's cumsum is wider)."""
    return torch.from_numpy(np.add.accumulate(x.numpy(), axis=-1, dtype=np.float32))[..., -1]


def truncated(x: torch.Tensor) -> torch.Tensor:
    """float64 values cut to float32 toward zero, as tensor cores do after each step."""
    near = x.float()
    over = near.double().abs() > x.abs()
    return torch.where(over, torch.nextafter(near, torch.zeros_like(near)), near).double()


# --- matrix products, float32 ---------------------------------------------------------------------


def product(kernel: Callable[..., torch.Tensor], m=128, k=512, n=128, positive=False) -> Run:
    a, b = torch.randn(m, k), torch.randn(k, n)
    if positive:
        a, b = a.abs(), b.abs()
    # One after the other, as plain loops do: how a library sums depends on the processor.
    return kernel(a, b), serial(a, b), a.double() @ b.double()


def serial(a, b):
    total = torch.zeros(a.shape[0], b.shape[1])
    for i in range(a.shape[1]):
        total = total + a[:, i : i + 1] * b[i : i + 1]
    return total


def fused(a, b):
    """Serial with fused multiply-add: one rounding a term."""
    total = torch.zeros(a.shape[0], b.shape[1])
    for i in range(a.shape[1]):
        total = (total.double() + a[:, i : i + 1].double() * b[i : i + 1].double()).float()
    return total


def pairwise(a, b):
    terms = a.unsqueeze(2) * b.unsqueeze(0)
    while terms.shape[1] > 1:
        terms = terms[:, ::2] + terms[:, 1::2]
    return terms[:, 0]


def split(a, b):
    return torch.stack([x @ y for x, y in zip(a.split(64, 1), b.split(64, 0), strict=True)]).sum(0)


def wide(a, b):
    return (a.double() @ b.double()).float()


def tensor_core(step: int, products: int = 1) -> Callable[..., torch.Tensor]:
    """Truncating accumulation, ``step`` terms at a time; three products for 3xTF32."""

    def run(a, b):
        a, b = a.double(), b.double()
        high_a, high_b = _TF32(a), _TF32(b)
        low_a, low_b = _TF32(a - high_a), _TF32(b - high_b)
        pairs = [(low_a, high_b), (high_a, low_b), (high_a, high_b)] if products == 3 else [(a, b)]
        total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float64)
        for i in range(0, a.shape[1], step):
            for x, y in pairs:
                total = truncated(total + x[:, i : i + step] @ y[i : i + step])
        return total.float()

    return run


def times(factor: float) -> Callable[..., torch.Tensor]:
    return lambda a, b: ((a @ b).double() * factor).float()


def last_column_off(a, b):
    """One column of the product is off by 1e-6."""
    total = (a @ b).double()
    total[:, -1] *= 1 + 1e-6
    return total.float()


# --- normalisation over rows ----------------------------------------------------------------------


def norm(
    dtype=torch.bfloat16, rows=48, columns=1024, scale=3.0, affine=False, eps=1e-5,
    unbiased=False, statistics=None, inside=torch.float32, one_pass=False, factor=1.0, exact=False,
) -> Run:  # fmt: skip
    x = (scale * torch.randn(rows, columns)).to(dtype)
    weight = (torch.randn(columns) if affine else torch.ones(columns)).to(dtype)
    bias = (torch.randn(columns) if affine else torch.zeros(columns)).to(dtype)

    def run(wide, eps, unbiased, statistics, one_pass, factor=1.0):
        v = x.to(wide)
        mean = v.mean(-1, keepdim=True)
        if one_pass:
            mean = one_by_one(v).unsqueeze(-1) / columns
            var = one_by_one(v * v).unsqueeze(-1) / columns - mean * mean
        else:
            var = v.var(-1, keepdim=True, unbiased=unbiased)
        scale = torch.rsqrt(var + eps) * factor
        if statistics is not None:
            mean, scale = mean.to(statistics).to(wide), scale.to(statistics).to(wide)
        return (v - mean) * scale * weight.to(wide) + bias.to(wide)

    got = run(inside, eps, unbiased, statistics, one_pass, factor)
    got = got if exact else got.to(dtype)
    own = run(torch.float32, 1e-5, False, None, False).to(dtype)
    return got, own, run(torch.float64, 1e-5, False, None, False)


# --- sums, softmax, attention, activations --------------------------------------------------------


def reduction(kernel: Callable[[torch.Tensor], torch.Tensor], columns=2000, rows=300) -> Run:
    x = torch.rand(rows, columns)
    return kernel(x), x.sum(-1), x.double().sum(-1)


def truncated_sum(x):
    total = torch.zeros(x.shape[0], dtype=torch.float64)
    for part in x.double().split(4, -1):
        total = truncated(total + part.sum(-1))
    return total.float()


def frobenius(serial: bool) -> Run:
    x = torch.randn(64, 80)
    norm = one_by_one((x * x).flatten()).sqrt() if serial else x.norm()
    return x / norm, x / x.norm(), x.double() / x.double().norm()


def attention(dtype=torch.bfloat16, weights=None, denominator=None, scale=None) -> Run:
    q, k, v = (torch.randn(8, 64, 80).to(dtype) for _ in range(3))

    def run(wide, weights=None, denominator=None, scale=None):
        factor = scale or 1 / math.sqrt(80)
        score = (q.to(wide) @ k.to(wide).mT) * factor
        p = (score - score.amax(-1, keepdim=True)).exp()
        total = p.sum(-1, keepdim=True)
        if weights is not None:
            p = p.to(weights).to(wide)
        if denominator is not None:
            total = total.to(denominator).to(wide)
        return p @ v.to(wide) / total

    got = run(torch.float32, weights, denominator, scale).to(dtype)
    return got, run(torch.float32).to(dtype), run(torch.float64)


def eager_bf16(rows=64, columns=1000) -> Run:
    """Every intermediate in bf16, one rounding after the other."""
    x = torch.randn(rows, columns).bfloat16()

    def steps(v):
        centred = v - v.mean(-1, keepdim=True)
        return centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5)

    return steps(x), steps(x.float()).bfloat16(), steps(x.double())


def gelu(dtype=torch.float32, exact=True) -> Run:
    x = torch.randn(200, 300).to(dtype)

    def run(v):
        return v * 0.5 * torch.erfc(-v / math.sqrt(2))

    got = run(x.float()) if exact else torch.nn.functional.gelu(x.float())
    return got.to(dtype), torch.nn.functional.gelu(x), run(x.double())


def scaled(constant: float, dtype=torch.float32) -> Run:
    """A constant that is rounded to the tensor's precision."""
    x = torch.randn(200, 300).to(dtype)
    rounded = torch.tensor(constant).to(dtype)
    return x * rounded, (x.float() * constant).to(dtype), x.double() * constant


BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32

# name -> (draws a run, terms of its sums)
HONEST: dict[str, tuple[Callable[[], Run], int]] = {
    "product fp32, fp64 accumulation": (lambda: product(wide), 512),
    "product fp32, serial": (lambda: product(serial), 512),
    "product fp32, fused multiply-add": (lambda: product(fused), 512),
    "product fp32, pairwise": (lambda: product(pairwise, 64, 512, 64), 512),
    "product fp32, split K": (lambda: product(split), 512),
    "product fp32, truncating, 4 a step": (lambda: product(tensor_core(4)), 512),
    "product fp32, truncating, 8 a step": (lambda: product(tensor_core(8)), 512),
    "product fp32, 3xTF32, truncating": (lambda: product(tensor_core(8, 3), k=192), 192),
    "product of positives, serial": (lambda: product(serial, positive=True), 512),
    "product of positives, truncating": (lambda: product(tensor_core(4), k=64, positive=True), 64),
    "sum of positives fp32, serial": (lambda: reduction(one_by_one), 2000),
    "sum of positives fp32, truncating": (lambda: reduction(truncated_sum, 100), 100),
    "x / norm(x) fp32, serial": (lambda: frobenius(True), 80),
    "layer norm fp32, one pass": (lambda: norm(FP32, one_pass=True), 1024),
    "layer norm fp32, fp64 inside": (lambda: norm(FP32, inside=torch.float64), 1024),
    "layer norm bf16, one pass": (lambda: norm(BF16, one_pass=True), 1024),
    "layer norm bf16, weight and bias": (lambda: norm(BF16, affine=True, one_pass=True), 1024),
    "layer norm bf16, fp64 inside": (lambda: norm(BF16, inside=torch.float64), 1024),
    "layer norm bf16, bf16 statistics": (lambda: norm(BF16, statistics=BF16), 1024),
    "layer norm bf16, unit scale, bf16 statistics": (
        lambda: norm(BF16, scale=1.0, statistics=BF16), 1024),
    "layer norm bf16, 16384 columns, bf16 statistics": (
        lambda: norm(BF16, 16, 16384, statistics=BF16), 16384),
    "layer norm fp16, fp16 statistics": (lambda: norm(FP16, statistics=FP16), 1024),
    "layer norm bf16, bf16 throughout": (eager_bf16, 1000),
    "attention bf16, fp32 inside": (lambda: attention(), 80),
    "attention bf16, bf16 weights": (lambda: attention(weights=BF16), 80),
    "attention bf16, bf16 denominator": (lambda: attention(denominator=BF16), 80),
    "attention fp16, fp16 weights": (lambda: attention(FP16, weights=FP16), 80),
    "attention fp32": (lambda: attention(FP32), 80),
    "gelu fp32, erfc": (lambda: gelu(), 1),
    "gelu bf16, fp32 inside": (lambda: gelu(BF16, False), 1),
    "constant rounded to fp32": (lambda: scaled(0.1), 1),
    "constant rounded to bf16": (lambda: scaled(0.1, BF16), 1),
    "constant rounded to fp16": (lambda: scaled(0.1, FP16), 1),
}  # fmt: skip

# name -> (draws a run, terms, what the words must hold)
WRONG: dict[str, tuple[Callable[[], Run], int, str]] = {
    "layer norm bf16, unbiased variance": (lambda: norm(unbiased=True), 1024, "in a variance"),
    "layer norm bf16, unit scale, unbiased variance": (
        lambda: norm(scale=1.0, unbiased=True), 1024, "N - 1 for N in a variance of N = 1024"),
    "layer norm bf16, weight and bias, unbiased variance": (
        lambda: norm(affine=True, unbiased=True), 1024, "N - 1 for N in a variance of N = 1024"),
    "layer norm fp16, unbiased variance": (
        lambda: norm(FP16, unbiased=True), 1024, "N - 1 for N in a variance of N = 1024"),
    "layer norm bf16, eps 1e-3 for 1e-5": (lambda: norm(eps=1e-3), 1024, "eps = 0.001"),
    "layer norm bf16, weight and bias, eps 1e-3 for 1e-5": (
        lambda: norm(affine=True, eps=1e-3), 1024, "eps = 0.001"),
    "layer norm fp16, eps 1e-3 for 1e-5": (lambda: norm(FP16, eps=1e-3), 1024, "eps = 0.001"),
    "product fp32 times 1 + 3e-7": (lambda: product(times(1 + 3e-7)), 512, "scale error of 3"),
    "product fp32 times 1 + 1e-6": (lambda: product(times(1 + 1e-6)), 512, "scale error of 1e-06"),
}  # fmt: skip

# Told and not failed: an honest kernel can look like them.
TOLD: dict[str, tuple[Callable[[], Run], int, str]] = {
    "product fp32 times 1 - 3e-7": (lambda: product(times(1 - 3e-7)), 512, "truncates"),
    "layer norm bf16, factor 1 + 7e-4": (lambda: norm(factor=1.0007), 1024, "scale error"),
    "one column of a product off by 1e-6": (
        lambda: product(last_column_off), 512, "at index 127 of axis 1"),
}  # fmt: skip


def pooled(draw: Callable[[], Run], terms: int, seed: int = 1, runs: int = 6) -> Structure:
    structure = None
    for n in range(runs):
        torch.manual_seed(1000 * seed + n)
        got, own, truth = draw()
        structure = structure or Structure(got.dtype, terms)
        structure.add(got, own, truth)
    assert structure is not None
    return structure


def hints(name: str, terms: int) -> list[Hint]:
    """N - 1 for N, and for a norm its other eps, as a check derives them from the reference."""
    found = counting_hints((48, 64, 128, terms))
    if name.startswith("layer norm"):
        dtype = FP16 if "fp16" in name else FP32 if "fp32" in name else BF16
        how = dict(affine="bias" in name and "weight" in name, scale=1.0 if "unit" in name else 3.0)
        for eps in (1e-6, 1e-4, 1e-3, 1e-2):
            torch.manual_seed(0)
            other, own, truth = norm(dtype, eps=eps, inside=torch.float64, exact=True, **how)
            hint = hint_of(f"eps = {eps:g} for 1e-05", other, own, truth, dtype)
            found += [hint] if hint else []
    return found


def main(seeds: int) -> None:
    print("| kernel | slope | in unit roundoffs | sigma | row spread / slope | verdict |")
    print("|---|---|---|---|---|---|")
    for name, (draw, terms, *_) in {**HONEST, **WRONG, **TOLD}.items():
        worst, outcomes = None, []
        for seed in range(1, seeds + 1):
            structure = pooled(draw, terms, seed)
            found = structure.finding(hints(name, terms))
            outcomes.append(found.outcome if found else "none")
            for key, (mine, _) in structure._pairs.items():
                slope = mine.estimate()
                if slope is None or key == "offset":
                    continue
                if worst is None or slope.sigma > worst.sigma:
                    worst = slope
        assert worst is not None
        unit = budget.unit_roundoff(draw()[1].dtype)
        spread = worst.spread / abs(worst.slope) if worst.slope else 0.0
        print(
            f"| {name} | {worst.slope:+.1e} | {worst.slope / unit:+.3f} | {worst.sigma:.0f} | "
            f"{spread:.1f} | {', '.join(f'{o} {outcomes.count(o)}' for o in sorted(set(outcomes)))}"
            " |", flush=True,
        )  # fmt: skip


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
