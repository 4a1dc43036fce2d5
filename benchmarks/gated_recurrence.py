"""Time gated_recurrence on a GPU against flash-linear-attention and the loop over steps.

    python benchmarks/gated_recurrence.py [--rows NAME...] [--add] [--tuning MS] [--output FILE]

flash-linear-attention (the package fla-core) is left out where it is not installed. It has no gates
of values: beside such a row stands its kernel for key gates of the same sizes. Every contender is
captured into a CUDA graph of some calls, and the replays of all of them take turns (the loop over
steps, thousands of launches, by itself; and its kernels in chunks for packed sequences, which read
lengths on the host, without a graph). Rows of the backward are forward and backward together.
Errors are of root mean squares, relative to float64; of a backward, the largest of all gradients.
Rows of the kind "accuracy" (gated_accuracy.py) have errors alone. Writes
results/<gpu>/gated_recurrence.json; with ``--add`` rows of that file stay which are not asked for.
Each row names its commit. With ``--ours`` our kernels alone are measured anew, and what is known of
the others stays in the row, which then names the commit of that run as well (``rivals``).

Triton kernels are tuned at first use, for each size and dtype anew, which takes minutes. With
``--tuning`` each of their configurations is timed for so many milliseconds, and after the rows of
the kind "target" the choice is among those that won there. ``--compile`` runs each contender once
and times nothing, so that what Triton compiles is in its cache.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gated_accuracy import FAMILIES, accuracy
from gated_rows import ROWS, Row, operands
from mla_kv import timed

from kernelproof.environment import capture
from kernelproof.ops.gated_recurrence import cuda, gated_recurrence, reference
from kernelproof.ops.gated_recurrence.explaining import explain

ROOT = Path(__file__).resolve().parents[1]
# Launches of a captured graph that the loop over steps may have.
_EAGER_STEPS = 1024
_LEAF_NAMES = ("q", "k", "v", "gate_k", "gate_v", "gate_head")
Calls = dict[str, Callable[[], Any]]


def of_fla(row: Row, given: list[Any], bounds: Any) -> tuple[str, Callable[[], Any]] | None:
    """Its fastest kernel for such gates, which are logarithms there."""
    try:
        from fla.ops.gla import chunk_gla, fused_recurrent_gla
        from fla.ops.simple_gla import chunk_simple_gla, fused_recurrent_simple_gla
    except ImportError:
        return None
    q, k, v, *gates = given
    if row.key_heads:
        q, k = (x.repeat_interleave(row.heads // row.key_heads, 2) for x in (q, k))
    options: dict[str, Any] = {"scale": 1.0}
    if bounds is not None:
        options["cu_seqlens"] = bounds.long()
    logs = [None if gate is None else gate.log() for gate in gates]
    if row.kind == "decode":
        options["initial_state"] = torch.randn(
            row.batch, row.heads, row.key_dim, row.value_dim, device="cuda"
        )
        options["output_final_state"] = True
    elif row.gates in ("k", "v", "kh") and row.steps > 128:
        log = (
            logs[0] if logs[0] is not None else torch.randn(k.shape, device="cuda").abs().neg() / 16
        )
        if row.gates == "kh":
            log = log + logs[2].unsqueeze(-1)
        if row.kind == "backward":
            return "chunk_gla", with_gradients(
                lambda q, k, v, log: chunk_gla(q, k, v, log, **options)[0], [q, k, v, log]
            )
        return "chunk_gla", lambda: chunk_gla(q, k, v, log, **options)
    elif row.gates in ("h", ""):
        if row.kind == "backward":  # its backward refuses Hopper with this Triton
            return None
        log = logs[2] if row.gates else torch.zeros(v.shape[:3], device="cuda")
        return "chunk_simple_gla", lambda: chunk_simple_gla(q, k, v, log, **options)
    if row.gates == "h":
        one = logs[2]
        return "fused_recurrent_simple_gla", lambda: fused_recurrent_simple_gla(
            q, k, v, one, **options
        )
    return "fused_recurrent_gla", lambda: fused_recurrent_gla(
        q, k, v, gk=logs[0], gv=logs[1], **options
    )


def with_gradients(run: Callable[..., Any], leaves: list[Any]) -> Callable[[], Any]:
    """A call of ``run`` and of its backward, for all ``leaves``, from one gradient of y."""
    leaves = [None if x is None else x.detach().requires_grad_() for x in leaves]
    by = [x for x in leaves if x is not None]
    torch.manual_seed(1)
    weights = torch.randn(leaves[2].shape, device="cuda").to(leaves[2].dtype)

    def call() -> Any:
        with torch.enable_grad():
            return torch.autograd.grad(run(*leaves), by, weights)

    return call


def ours(q: Any, k: Any, v: Any, gate_k: Any, gate_v: Any, gate_head: Any) -> Any:
    return gated_recurrence(q, k, v, gate_k=gate_k, gate_v=gate_v, gate_head=gate_head)


def contenders(row: Row, given: list[Any], bounds: Any, ours_alone: bool = False) -> Calls:
    if row.kind == "decode":
        state = torch.randn(row.batch, row.heads, row.key_dim, row.value_dim, device="cuda")
        found: Calls = {"kernelproof": lambda: cuda.launch_step(*given, 1.0, state)}
    elif row.kind == "backward":
        found = {"kernelproof": with_gradients(ours, given)}
    else:
        found = {"kernelproof": lambda: cuda.launch(*given, cu_seqlens=bounds)[0]}
    if ours_alone:
        return found
    other = of_fla(row, given, bounds)
    if other is not None:
        found[other[0]] = other[1]
    if row.steps <= _EAGER_STEPS and not row.sequences and row.kind in ("target", "steps"):
        found["eager"] = lambda: reference.run(*given)[0]
    return found


def exact(given: list[Any], bounds: Any) -> torch.Tensor:
    """y in float64, by chunks of 32 steps where gates allow it to be divided, else step by step."""
    q, k, v, *gates = (None if x is None else x.double() for x in given)
    if bounds is not None or k.shape[2] != v.shape[2] or sum(g is not None for g in gates) != 1:
        return reference.run(q, k, v, *gates, cu_seqlens=bounds)[0]
    out = []
    shape = (v.shape[0], v.shape[2], k.shape[3], v.shape[3])
    state = torch.zeros(shape, device="cuda", dtype=torch.float64)
    for first in range(0, v.shape[1], 32):
        part = slice(first, min(first + 32, v.shape[1]))
        a, b, c = (x[:, part].transpose(1, 2) for x in (q, k, v))
        rows, columns, heads = (None if g is None else g[:, part].transpose(1, 2) for g in gates)
        rows = heads.unsqueeze(-1) if heads is not None else rows
        if rows is not None:
            p = rows.cumprod(2)
            scores = ((a * p) @ (b / p).mT).tril()
            y = (a * p) @ state + scores @ c
            state = p[:, :, -1:].mT * (state + (b / p).mT @ c)
        else:
            p = columns.cumprod(2)
            y = p * (a @ state + (a @ b.mT).tril() @ (c / p))
            state = p[:, :, -1:] * (state + b.mT @ (c / p))
        out.append(y.transpose(1, 2))
    return torch.cat(out, 1)


def errors(row: Row, calls: Calls, given: list[Any], bounds: Any) -> Any:
    """Of each contender that computes this very function."""
    if row.kind in ("decode", "steps", "backward"):
        return {}
    true = exact(given, bounds)
    found = {}
    for name, call in calls.items():
        if "v" in row.gates and "chunk" in name:
            continue
        y = call()
        y = (y[0] if isinstance(y, tuple) else y).double()
        found[name] = float((y - true).norm() / true.norm())
    return found


def gradient_errors(row: Row, calls: Calls, given: list[Any]) -> dict[str, dict[str, float]]:
    """Of each gradient, by contender; of a gate both by the gate (flash-linear-attention's by its
    logarithm is divided by the gate in float64). The first batch and four heads are looked at."""
    part = [None if x is None else x[:1, :, :4] for x in given]
    wide = [None if x is None else x.double() for x in part]
    found: dict[str, dict[str, float]] = {}
    torch.manual_seed(1)
    weights = torch.randn(given[2].shape, device="cuda").to(given[2].dtype)[:1, :, :4].double()
    with torch.enable_grad():
        leaves = [None if x is None else x.detach().requires_grad_() for x in wide]
        by = [x for x in leaves if x is not None]
        true = torch.autograd.grad(exact(leaves, None), by, weights)
    names = [n for n, x in zip(_LEAF_NAMES, given, strict=True) if x is not None]
    for name, call in calls.items():
        if name != "kernelproof" and row.gates != "k":
            continue
        got = [x[:1, :, :4].double() for x in call()]
        if name != "kernelproof":
            got[-1] = got[-1] / by[-1].detach()
        found[name] = {
            n: float((x - y).norm() / y.norm()) for n, x, y in zip(names, got, true, strict=True)
        }
    return found


def host_seconds(given: list[Any], number: int = 500) -> float:
    """Host time of one eager call of the public function: the fastest of six loops."""
    best = float("inf")
    for _ in range(6):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(number):
            ours(*given)
        best = min(best, (time.perf_counter() - start) / number)
    return best


def timed_eagerly(call: Callable[[], Any], row: Row) -> list[float]:
    """Seconds of a call in a loop of them, launches included, for what cannot be captured."""
    times = []
    for number in range(row.rounds + 2):
        start, end = torch.cuda.Event(True), torch.cuda.Event(True)
        start.record()
        for _ in range(row.calls):
            call()
        end.record()
        end.synchronize()
        if number >= 2:
            times.append(start.elapsed_time(end) / row.calls / 1e3)
    return times


def measured(row: Row, ours_alone: bool = False) -> dict[str, Any]:
    torch.manual_seed(0)
    given, bounds = operands(row)
    calls = contenders(row, given, bounds, ours_alone)
    q, k, v, gate_k, gate_v, gate_head = given
    assert q is not None and k is not None and v is not None
    text = explain(
        q, k, v, gate_k=gate_k, gate_v=gate_v, gate_head=gate_head, cu_seqlens=bounds
    ).splitlines()
    design = text[1].strip().split(",")[0].split(" on ")[0]
    if row.kind == "decode":
        design = "step.cu"
    elif row.kind == "backward":
        design += (
            " and " + text[2].strip().removeprefix("gradients: ").split(",")[0].split(" on ")[0]
        )
    alone = {"eager": calls["eager"]} if "eager" in calls else {}
    found = {"errors": errors(row, calls, given, bounds)}
    if row.kind == "backward":
        found["gradients"] = gradient_errors(row, calls, given)
        found["errors"] = {n: max(e.values()) for n, e in found["gradients"].items()}
    if row.name.startswith("founding"):
        found["host_seconds"] = host_seconds(given)
    # flash-linear-attention reads lengths of packed sequences on the host.
    eager = {n: c for n, c in calls.items() if row.sequences and n.startswith("chunk_")}
    together = {n: c for n, c in calls.items() if n not in alone and n not in eager}
    few = dataclasses.replace(row, calls=1, rounds=5)
    seconds = timed({n: lambda _, c=c: c() for n, c in together.items()}, row)
    seconds |= timed({n: lambda _, c=c: c() for n, c in alone.items()}, few)
    seconds |= {f"{n}, no graph": timed_eagerly(c, row) for n, c in eager.items()}
    return {
        **dataclasses.asdict(row),
        "bytes": row.bytes,
        "design": design,
        **found,
        "seconds": seconds,
    }


def with_rivals(row: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """A row of our kernels alone, with what an earlier one has of the others."""
    both = {name: {**before[name], **row[name]} for name in ("errors", "seconds")}
    if "eager" in both["seconds"]:  # the order of contenders is that of tables
        both["seconds"]["eager"] = both["seconds"].pop("eager")
    return {**row, **both, "rivals": before.get("rivals", before["commit"])}


def told(result: dict[str, Any]) -> str:
    medians = {name: statistics.median(t) for name, t in result["seconds"].items()}
    words = ", ".join(f"{name} {t * 1e6:.2f} us" for name, t in medians.items())
    error = ", ".join(f"{name} {e:.2e}" for name, e in result["errors"].items())
    host = f"; host {result['host_seconds'] * 1e6:.2f} us" if "host_seconds" in result else ""
    return f"{result['name']}: {words or '-'}{host}; errors {error or '-'} ({result['design']})"


def tuners() -> list[Any]:
    """All kernels of Triton that choose among configurations."""
    from triton.runtime.autotuner import Autotuner

    return [x for x in gc.get_objects() if isinstance(x, Autotuner)]


def limit_tuning(milliseconds: int) -> None:
    """Time each configuration for so long; with 0 run it once."""
    from triton.testing import do_bench

    def briefly(call: Callable[[], Any], quantiles: Any) -> Any:
        if milliseconds == 0:
            call()
            return [1.0] * len(quantiles)
        return do_bench(call, warmup=5, rep=milliseconds, quantiles=quantiles)

    for tuner in tuners():
        tuner.cache_results, tuner._do_bench = False, briefly
        tuner.__dict__.pop("do_bench", None)  # what has been made of it before


def narrow_tuning() -> None:
    """Leave the configurations that have won."""
    for tuner in tuners():
        if tuner.cache:
            won = {str(config): config for config in tuner.cache.values()}
            tuner.configs = list(won.values())


def take_part(part: int, parts: int) -> None:
    """Leave one of so many parts of the configurations."""
    for tuner in tuners():
        tuner.configs = tuner.configs[part::parts] or tuner.configs[:1]


def compile_only(row: Row) -> None:
    """Run flash-linear-attention once."""
    given, bounds = operands(row)
    other = of_fla(row, given, bounds)
    if other is not None:
        other[1]()
        torch.cuda.synchronize()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", nargs="*", default=None, help="kinds or names; all by default")
    parser.add_argument("--add", action="store_true", help="keep the other rows of the file")
    parser.add_argument("--tuning", type=int, default=None, metavar="MS")
    parser.add_argument("--ours", action="store_true", help="measure our kernels alone")
    parser.add_argument("--compile", action="store_true", help="measure nothing")
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1), metavar=("I", "N"))
    parser.add_argument("--commit", default="", help="of the sources, where git cannot tell")
    output = ROOT / "results" / "h200" / "gated_recurrence.json"
    parser.add_argument("--output", type=Path, default=output)
    given = parser.parse_args()
    environment = capture().model_dump()
    environment["commit"] = environment["commit"] or given.commit
    commit = environment["commit"]
    before = json.loads(given.output.read_text()) if given.add else {"rows": []}
    kept = {
        row["name"]: {"commit": before["environment"]["commit"], **row} for row in before["rows"]
    }
    report = {"date": datetime.date.today().isoformat(), "environment": environment, "rows": []}
    work: list[tuple[str, str, Callable[[], dict[str, Any]]]] = [
        (row.kind, row.name, lambda row=row: measured(row, given.ours)) for row in ROWS
    ]
    work += [("accuracy", name, lambda name=name: accuracy(name, given.ours)) for name in FAMILIES]
    order = [name for _, name, _ in work]
    if given.rows:  # in the order in which they are asked for
        work = [one for asked in given.rows for one in work if asked in one[:2]]
    tuned = given.tuning is not None or given.compile
    if tuned:
        import fla.ops.gla
        import fla.ops.simple_gla  # noqa: F401

        limit_tuning(0 if given.compile else given.tuning)
        take_part(*given.part)
    with torch.no_grad():
        for number, (kind, name, measure) in enumerate(work):
            if given.compile:
                compile_only(next(row for row in ROWS if row.name == name))
                continue
            row, known = {**measure(), "commit": commit}, kept.get(name)
            kept[name] = with_rivals(row, known) if given.ours and known else row
            print(told(kept[name]), flush=True)
            report["rows"] = [kept[name] for name in order if name in kept]
            partial = given.output.with_suffix(".part")  # an end in between loses nothing
            partial.write_text(json.dumps(report, indent=1) + "\n")
            partial.replace(given.output)
            torch.cuda.empty_cache()
            if (
                tuned
                and kind == "target"
                and (number + 1 == len(work) or work[number + 1][0] != kind)
            ):
                narrow_tuning()
    return 0


if __name__ == "__main__":
    sys.exit(main())
