"""Call every design of the shipped operators' CUDA kernels at small sizes, for compute-sanitizer to
watch.

    compute-sanitizer --tool racecheck --report-api-errors no \
        python benchmarks/sanitize_designs.py OPERATOR [--part 0/4]

The sizes are those of the operators' tests, which say whether the values are right; nothing is
compared here, since the tools slow down a reference of many small kernels a hundredfold. Prints the
name of each call once it has ended, and how many there were. ``--part``: each fourth, from the
first. `operators_on_gpu.py` runs all.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "ops"))

Call = tuple[str, Callable[[], Any]]
# Multiply-adds of one call: more take a tool minutes.
MOST = 3e8


def mla_kv() -> Iterator[Call]:
    import test_mla_kv_backward as backward
    import test_mla_kv_cuda as designs
    import test_mla_kv_hopper as hopper

    from kernelproof.ops.mla_kv import cuda, mla_kv

    def run(design: str | None, sizes: Any, options: dict[str, Any]) -> None:
        operands, given = designs.call(*sizes, device="cuda", **options)
        for _ in range(2):  # words that blocks exchange are used again
            cuda.project_cuda(*operands, design=design, **given)

    def gradients(sizes: Any) -> None:
        _, _, *leaves = backward.operands(*sizes, device="cuda")
        out = mla_kv(*(x.requires_grad_() for x in leaves), kv_heads=sizes[3])
        torch.autograd.grad(out, leaves, torch.randn_like(out))

    listed = [(design, sizes, options) for design, sizes, options in designs.HOPPER]
    listed += [(design, sizes, options) for design, _, sizes, options in hopper.CLUSTERS]
    listed += [
        ("pair", (64, 512, 128, 4, 64, 64), dict(dtype=torch.bfloat16)),
        ("decode", (1, 1032, 256, 9, 128, 128), dict(dtype=torch.bfloat16)),
        ("wgmma", (200, 264, 136, 3, 128, 128), dict(dtype=torch.float16, norm=True)),
        (None, (384, 256, 48, 4, 32, 32), {}),
    ]
    for design, sizes, options in listed:
        tokens, model, rank, heads, k_dim, v_dim = sizes
        if tokens * rank * (model + heads * (k_dim + v_dim)) <= MOST:
            yield f"{design} {sizes} {options}", partial(run, design, sizes, options)
    small = [s for s in designs.SIZES if s[0] <= 129 and s[1] <= 1024]
    for design, dtype in itertools.product(("small", "fused", "block", "mma"), designs.DTYPES):
        for number, sizes in enumerate(small):
            form, rope = designs.FORMS[number % 4], (0, 0, 8, 5)[number % 4]
            given = dict(dtype=dtype, form=form, rope=rope, norm=number % 3 == 1)
            yield f"{design} {sizes} {given}", partial(run, design, sizes, given)
    for sizes in (backward.FOUNDING, (8, 128, 64, 1, 64)):
        yield f"gradients {sizes}", partial(gradients, sizes)


def gated_recurrence() -> Iterator[Call]:
    import test_gated_recurrence_chunks as chunks
    import test_gated_recurrence_gradients as gradients

    from kernelproof.ops.gated_recurrence import gated_recurrence, gated_recurrence_step

    def forward(steps: int, gates: str, sizes: Any, dtype: torch.dtype, batch: int) -> None:
        given = chunks.call(steps, gates, *sizes, batch=batch, dtype=dtype)
        gated_recurrence(**given, scale=0.3, return_state=True)

    def backward(steps: int, gates: str, sizes: Any) -> None:
        gradients.gradients(gradients.call(steps, gates, *sizes))

    def packed() -> None:
        given = chunks.call(200, "h", 128, 128, batch=1)
        given["initial_state"] = torch.randn(4, 4, 128, 128, device="cuda")
        bounds = torch.tensor([0, 0, 80, 97, 200], device="cuda")
        gated_recurrence(**given, cu_seqlens=bounds, return_state=True)

    def step(gates: str) -> None:
        given = chunks.call(1, gates, 72, 40, dtype=torch.float32)
        state = given.pop("initial_state")
        gated_recurrence_step(**{name: x[:, 0] for name, x in given.items()}, state=state)

    bf16, f16, f32 = chunks.DTYPES
    some = ["", "k", "v", "h", "kh", "vh"]
    for gates, sizes in itertools.product(some, [*gradients.SIZES, (40, 72)]):
        yield f"gradients {gates} {sizes}", partial(backward, 131, gates, sizes)
    for gates, sizes in itertools.product(some, chunks.SIZES + chunks.TAILS):
        yield f"{gates} {sizes}", partial(forward, 131, gates, sizes, bf16, 1)
    fine = [(64, 64), (128, 128), (256, 64), *chunks.TAILS]
    for gates, dtype, sizes in itertools.product(("k", "v", "kv", "kh"), (f16, f32), fine):
        yield f"{gates} {sizes} {dtype}", partial(forward, 131, gates, sizes, dtype, 1)
    for gates, dtype in itertools.product(("k", "v", "h"), (bf16, f32)):  # segments
        yield f"{gates} 1100 {dtype}", partial(forward, 1100, gates, (128, 128), dtype, 1)
    for gates, dtype in itertools.product(("k", "v", "h", "kv"), chunks.DTYPES):
        yield f"general {gates} {dtype}", partial(forward, 50, gates, (33, 17), dtype, 1)
    yield "packed", packed
    for gates in ("", "k", "vh"):
        yield f"step {gates}", partial(step, gates)


def int8_attention() -> Iterator[Call]:
    import test_int8_attention as plain
    import test_int8_decode as decode
    import test_int8_forms as forms
    import test_int8_wgmma as wgmma

    from kernelproof.ops.int8_attention import cuda, cuda_wgmma, int8_attention
    from kernelproof.ops.int8_attention.contract import Form

    def moved(form: Form) -> Form:
        places = ("cu_seqlens_q", "cu_seqlens_k", "kv_lens", "block_table")
        found = {name: getattr(form, name) for name in places}
        return form._replace(**{n: None if x is None else x.cuda() for n, x in found.items()})

    def launch(tensors: Any, form: Form, causal: bool = True) -> None:
        cuda.launch_form(*(t.cuda() for t in tensors), causal, 0.1, moved(form))

    def whole(tensors: Any, form: Form) -> None:
        on_gpu = tuple(t.cuda() for t in tensors)
        out = torch.empty(on_gpu[0].shape, dtype=form.out_dtype, device="cuda")
        lse = torch.empty(out.shape[:3], device="cuda")
        cuda_wgmma.run(on_gpu, True, 0.1, moved(form), out, lse, 132)

    for name, (sizes, facts) in wgmma.CASES.items():
        yield f"wgmma {name}", partial(whole, wgmma.made(**sizes), Form(**facts))
    for dim, strict, granularity in itertools.product((16, 96, 128, 256), (0, 1), ("", "qkv")):
        tensors = wgmma.made((1, 129, 2), (1, 200, 1), granularity, signs=True, dim=dim)
        yield (
            f"wgmma {dim} {strict} {granularity}",
            partial(whole, tensors, Form(bool(strict), with_lse=True)),
        )
    for name, sizes in decode.CASES.items():
        yield f"decode {name}", partial(launch, *decode.made(**sizes))
    for name in forms.problem_forms.CASES:
        tensors, causal, form, _ = forms.made(name)
        b, s, h, d = tensors[0].shape
        if b * s * h * d * max(tensors[1].shape[1], 1) <= MOST:
            yield f"forms {name}", partial(launch, tensors, form, causal)
    for sizes in plain.ODD:
        inputs, _ = plain.make(**sizes)
        yield f"plain {sizes}", lambda inputs=inputs: int8_attention(*(t.cuda() for t in inputs))


OPERATORS = {f.__name__: f for f in (mla_kv, gated_recurrence, int8_attention)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("operator", choices=OPERATORS)
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--only", default="", help="calls whose name has this in it")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        print("sanitize_designs: torch sees no CUDA GPU here", file=sys.stderr)
        return 1
    part, parts = (int(word) for word in given.part.split("/"))
    calls = [call for call in OPERATORS[given.operator]() if given.only in call[0]]
    calls = calls[part::parts]
    count = 0
    for name, call in calls:
        torch.manual_seed(0)
        try:
            call()
        except ValueError as error:  # a design that is asked for by name, for sizes it has not
            if "does not fit" not in str(error):
                raise
            print(f"{name}: {error}", flush=True)
            continue
        torch.cuda.synchronize()
        count += 1
        print(f"{name}: ran", flush=True)
    print(f"{count} calls ran", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
