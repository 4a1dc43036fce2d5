"""Removes one barrier, warp barrier or wait at a time from the shipped CUDA kernels, and shows what
the emulator reports: a Markdown table on stdout.

python benchmarks/emulate_mutations.py [SOURCE]    e.g. mla_kv, or mla_kv/kernel_mma

The waits of programmatic dependent launch (`wait_for_previous_kernel`) are not among them: launches
follow one another under the emulator, so it cannot tell.
"""

from __future__ import annotations

import functools
import re
import shutil
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from kernelproof.emulate.standin import Recorder, standing_in
from kernelproof.errors import KernelproofError
from kernelproof.ops.gated_recurrence import chunk_choice, chunked_backward, cuda_backward
from kernelproof.ops.gated_recurrence import chunked as gated_chunks
from kernelproof.ops.gated_recurrence import cuda as gated
from kernelproof.ops.int8_attention import cuda as attention
from kernelproof.ops.int8_attention import cuda_wgmma
from kernelproof.ops.int8_attention.contract import Form
from kernelproof.ops.mla_kv import cuda as mla
from kernelproof.ops.mla_kv import cuda_backward as mla_backward
from kernelproof.ops.mla_kv import cuda_hopper, cuda_plan
from kernelproof.ops.mla_kv.cuda_steps import Device

OPS = Path(gated.__file__).parents[1]
STATEMENT = re.compile(
    r"__syncthreads\(\);|__syncwarp\(\);|__syncthreads_or\((?P<or>[^()]*)\)|wait_copies<[^>]*>\(\);"
    r"|wait_copies_but_last\(\);|workers_sync\(\);|cluster_(sync|meet)\(\);|wait_at_barrier\([^()]*\);"
    r"|product_wait<[^>]+>\(\);|show_products\(\);|barrier_wait\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\);"
    r"|asm volatile\(\"(cp\.async\.commit_group;\\n\\t)?cp\.async\.wait_(all|group [^;]*);\""
    r"[^;]*\);"
    r"|asm volatile\(\"bar\.(sync|arrive) [^;]*;\"[^;]*\);"
)


class Swapped(Recorder):
    """Launches the source of the same name in another folder."""

    def __init__(self, folder: Path, hopper: bool) -> None:
        super().__init__(hopper)
        self.folder = folder

    def launch(self, source: Any, *rest: Any) -> None:  # type: ignore[override]
        super().launch(self.folder / Path(source).name, *rest)


def _gated(
    steps: int, rows: int, columns: int, gate: float | None = None, heads: int = 1
) -> Callable[[], Any]:
    def run() -> Any:
        torch.manual_seed(0)
        q, k = (torch.randn(1, steps, heads, rows) for _ in range(2))
        v, gates = torch.randn(1, steps, heads, columns), torch.rand(1, steps, heads, columns)
        if gate is not None:
            gates[:, :9] = gate
        return gated.launch(q, k, v, None, gates, None, 1.0, torch.randn(1, heads, rows, columns))

    return run


def _gated_backward(
    steps: int, rows: int, columns: int, processors: int = 108
) -> Callable[[], Any]:
    facts = types.SimpleNamespace(multi_processor_count=processors)

    def run() -> Any:
        torch.manual_seed(0)
        q, k, gate_k = (torch.rand(1, steps, 1, rows) for _ in range(3))
        v, gate_v = (torch.rand(1, steps, 1, columns) for _ in range(2))
        state, head = torch.randn(1, 1, rows, columns), torch.rand(1, steps, 1)
        of_y, of_state = torch.randn(v.shape), torch.randn(state.shape)
        with (
            mock.patch.object(torch.cuda, "get_device_properties", lambda device: facts),
            mock.patch.object(cuda_backward, "_BLOCKS_PER_PROCESSOR", 1),
        ):
            return cuda_backward.launch_backward(
                of_y, of_state, q, k, v, gate_k, gate_v, head, 0.5, state
            )

    return run


def _gated_gradients(
    gates: str, sizes: tuple[int, int], gate_of: float = 1.0, steps: int = 130
) -> Callable[[], Any]:
    """In chunks on tensor cores, and a head with a large gate by the general kernel."""

    def run() -> Any:
        torch.manual_seed(0)
        q, k = (torch.randn(1, steps, 1, sizes[0]).bfloat16() for _ in range(2))
        v, of_y = (torch.randn(1, steps, 1, sizes[1]).bfloat16() for _ in range(2))
        widths = {"k": (sizes[0],), "v": (sizes[1],)}
        given = [torch.rand(1, steps, 1, *w) if x in gates else None for x, w in widths.items()]
        for gate in given:
            if gate is not None:
                gate[:, 40, :, 3] = gate_of
        # Blocks take two chunks, the last one fewer.
        with mock.patch.object(chunked_backward, "_strips", lambda chunks, *_: (chunks + 1) // 2):
            return cuda_backward.launch_backward(of_y, None, q, k, v, *given)

    run.hopper = True  # type: ignore[attr-defined]
    return run


def _gated_step(rows: int, columns: int) -> Callable[[], Any]:
    def run() -> Any:
        torch.manual_seed(0)
        q, k = (torch.randn(1, 1, 1, rows) for _ in range(2))
        v, gate = torch.randn(1, 1, 1, columns), torch.rand(1, 1, 1, columns)
        return gated.launch_step(q, k, v, None, gate, None, 1.0, torch.randn(1, 1, rows, columns))

    return run


def _gated_in_chunks(
    gates: str, key_dim: int, steps: int, lead: int, dtype: torch.dtype = torch.bfloat16,
    precise: bool = False,
) -> Callable[[], Any]:  # fmt: skip
    """On tensor cores, the first of two segments ``lead`` steps long. ``precise``: as torch asks
    for it where its own products of bfloat16 may not be reduced."""

    def run() -> Any:
        torch.manual_seed(0)
        q, k = (torch.randn(1, steps, 1, key_dim).to(dtype) for _ in range(2))
        v = torch.randn(1, steps, 1, 64).to(dtype)
        widths = {"k": (key_dim,), "v": (64,), "h": ()}
        given = [torch.rand(1, steps, 1, *w) if x in gates else None for x, w in widths.items()]
        halves = (2, lead, -(-(steps - lead) // 64) * 64) if lead < steps else (1, steps, steps)
        gated_chunks._plan.cache_clear()
        with (
            mock.patch.object(gated_chunks, "_FEWEST_STEPS", 1),
            mock.patch.object(chunk_choice, "divided", lambda *_: halves),
        ):
            matmul = torch.backends.cuda.matmul
            matmul.allow_bf16_reduced_precision_reduction = not precise
            try:
                return gated.launch(q, k, v, *given)
            finally:
                matmul.allow_bf16_reduced_precision_reduction = True

    run.hopper = True  # type: ignore[attr-defined]
    return run


def _attention(tokens: int, heads: int, dim: int, processors: int = 108) -> Callable[[], Any]:
    def run() -> Any:
        torch.manual_seed(0)
        q, k, v = (
            torch.randint(-127, 128, (2, tokens, heads, dim), dtype=torch.int8) for _ in range(3)
        )
        scales = [torch.rand(heads) * 0.01 + 0.005 for _ in range(3)]
        with mock.patch.object(attention, "processors", lambda index: processors):
            return attention.launch(q, k, v, *scales, True, dim**-0.5)

    return run


def _cache(tokens: int, dim: int) -> Callable[[], Any]:
    """Decoding, with scales per token."""

    def run() -> Any:
        torch.manual_seed(0)
        q, k, v = (
            torch.randint(-127, 128, (1, n, 2, dim), dtype=torch.int8) for n in (1, tokens, tokens)
        )
        scales = [torch.rand(1, n, 2) * 0.01 for n in (1, tokens, tokens)]
        lens = torch.tensor([tokens], dtype=torch.int32)
        return attention.launch_form(q, k, v, *scales, True, 0.1, Form(kv_lens=lens))

    return run


def _prefill(tokens: int, dim: int, strict: bool, per_token: bool = False) -> Callable[[], Any]:
    """Many queries on a GPU of two multiprocessors of compute capability 9.0."""

    def run() -> Any:
        torch.manual_seed(0)
        q, k, v = (
            torch.randint(-127, 128, (1, tokens, 2, dim), dtype=torch.int8) for _ in range(3)
        )
        axes = (1, tokens, 2) if per_token else (2,)
        scales = [torch.rand(*axes) * 0.01 for _ in range(3)]
        with (
            mock.patch.object(attention, "processors", lambda index: 2),
            mock.patch.object(cuda_wgmma, "slower", lambda *given: ""),
        ):
            return attention.launch_form(q, k, v, *scales, True, 0.1, Form(strict, with_lse=True))

    run.hopper = True  # type: ignore[attr-defined]
    return run


def _mla(
    tokens: int, model: int, rank: int, columns: int, design: str,
    dtype: torch.dtype = torch.float32, *, heads: int = 4, norm: bool = False,
    along_depth: bool = False, infinite: bool = False, multiprocessors: int = 0, cluster: int = 1,
    one_step: bool = False,
) -> Callable[[], Any]:  # fmt: skip
    """``multiprocessors``: of a small GPU of compute capability 9.0 instead of 108 of 8.0.
    ``one_step``: each block of mla_kv_decode sums the shares of all tokens."""
    pairs = functools.partial(cuda_hopper.prefill, cluster=cluster)
    together = functools.partial(cuda_hopper.decode, two_steps=False)

    def run() -> Any:
        torch.manual_seed(0)
        shapes = ((model, rank), (rank, columns), (rank, columns))
        hidden = torch.randn(1, tokens, model).to(dtype)
        weights = [torch.randn(*s).to(dtype) for s in shapes]
        if along_depth:
            weights = [w.t().contiguous().t() for w in weights]
        if infinite:
            hidden[0, 3, 5] = float("inf")
        weight = torch.randn(rank).to(dtype) if norm else None
        device = Device(multiprocessors, (9, 0)) if multiprocessors else Device(108, (8, 0))
        mla._prepared.cache_clear()
        cuda_plan.plan.cache_clear()
        with (
            mock.patch.object(mla, "device_facts", lambda index: device),
            mock.patch.object(cuda_plan, "prefill", pairs),
            mock.patch.object(cuda_plan, "decode", together if one_step else cuda_hopper.decode),
        ):
            return mla.project_cuda(
                hidden, *weights, kv_heads=heads, norm_weight=weight, design=design
            )

    run.hopper = multiprocessors > 0  # type: ignore[attr-defined]
    return run


def _mla_gradients(tokens: int, model: int, rank: int, columns: int) -> Callable[[], Any]:
    def run() -> Any:
        torch.manual_seed(0)
        hidden, grad = torch.randn(tokens, model), torch.randn(tokens, 2, 1, columns)
        weights = [torch.randn(s) for s in ((model, rank), (rank, columns), (rank, columns))]
        with mock.patch.object(mla, "device_facts", lambda index: Device(3, (9, 0))):
            return mla_backward.launch(grad[:, 0], grad[:, 1], hidden, *weights)

    run.hopper = True  # type: ignore[attr-defined]
    return run


_MMA = [
    _mla(40, 320, 128, 64, "mma", torch.bfloat16), _mla(40, 320, 128, 64, "mma"),
    _mla(9, 24, 8, 8, "mma", infinite=True, heads=1),
    _mla(9, 150, 70, 80, "block", torch.bfloat16, norm=True),
    _mla(9, 24, 8, 136, "block", infinite=True, heads=1),
]  # fmt: skip
_DECODE = [
    _mla(1, 256, 64, 64, "decode", torch.bfloat16, heads=1, multiprocessors=2),
    _mla(3, 256, 256, 576, "decode", torch.float16, heads=1, norm=True, multiprocessors=4),
    _mla(
        2,
        128,
        64,
        64,
        "decode",
        torch.float16,
        heads=1,
        norm=True,
        multiprocessors=2,
        one_step=True,
    ),
    _mla(1, 128, 64, 1600, "decode", torch.float16, heads=1, norm=True, multiprocessors=2),
    _mla(3, 136, 256, 64, "decode", torch.float16, heads=1, multiprocessors=4),
    _mla(9, 128, 256, 512, "decode", torch.float16, heads=1, multiprocessors=4),
    _mla(3, 136, 512, 1032, "decode", torch.float16, heads=1, along_depth=True, multiprocessors=8),
]
_CLUSTER = [
    _mla(20, 77, 41, 24, "cluster", torch.bfloat16, norm=True, multiprocessors=16),
    _mla(9, 24, 8, 24, "cluster", infinite=True, multiprocessors=8),
]
_PAIR = [
    _mla(50, 520, 72, 128, "pair", torch.bfloat16, heads=1, norm=True, multiprocessors=16),
    _mla(130, 704, 136, 520, "pair", torch.float16, heads=1, multiprocessors=4),
    _mla(60, 64, 64, 320, "pair", torch.float16, heads=1, along_depth=True, multiprocessors=1),
]
_MLA_WIDE = [
    _mla(20, 64, 264, 256, "wide", torch.bfloat16, heads=1, multiprocessors=1),
    _mla(130, 64, 264, 200, "wide", torch.float16, heads=1, along_depth=True, multiprocessors=1),
]
_SPLIT = [
    _mla(9, 136, 40, 24, "split", torch.bfloat16, norm=True, multiprocessors=32),
    _mla(9, 24, 8, 24, "split", infinite=True, multiprocessors=8),
]
_WGMMA = [
    _mla(128, 328, 256, 64, "wgmma", torch.bfloat16, heads=1, norm=True, multiprocessors=1),
    _mla(250, 72, 512, 64, "wgmma", torch.float16, heads=1, norm=True, multiprocessors=2),
    _mla(130, 64, 328, 64, "wgmma", torch.float16, heads=1, multiprocessors=2, cluster=2),
    _mla(5, 64, 64, 64, "wgmma", torch.float16, heads=1, multiprocessors=2),
]
# More chunks than slots; rows prepared by one warp, by two and beforehand; gates of columns.
_CHUNKS = [
    _gated_in_chunks("k", 64, 400, 48), _gated_in_chunks("kh", 128, 100, 32),
    _gated_in_chunks("vh", 64, 100, 32),
    _gated_in_chunks("k", 256, 400, 208, torch.float16),
]  # fmt: skip
_TWO_HALVES = _gated_in_chunks("k", 256, 400, 208, precise=True)
# q and k of several planes: with gates of keys, and without.
_FINE_CHUNKS = [
    _gated_in_chunks("k", 128, 200, 64, torch.float32),
    _gated_in_chunks("h", 64, 100, 32, torch.float32),
]
# Chunks of 64 steps, and of 32, more than slots: what prepares them works ahead, or copies.
_LONG_CHUNKS = [
    _gated_in_chunks("h", 64, 520, 64), _gated_in_chunks("h", 256, 330, 128),
    _gated_in_chunks("k", 256, 330, 128), _gated_in_chunks("k", 256, 150, 64, torch.float32),
]  # fmt: skip
_NARROW = [
    _mla(130, 600, 72, 136, "narrow", torch.bfloat16, heads=1, norm=True, multiprocessors=2),
    _mla(5, 64, 64, 264, "narrow", torch.float16, heads=1, multiprocessors=2),
]
# Per source with barriers or waits, launches that together reach all of them: one span and several,
# one warp per segment and two, gates that make segments take turns; each attention kernel over
# several tiles; each design of mla_kv, with norms, and with infinities, which are summed anew.
WORK: dict[str, list[Callable[[], Any]]] = {
    "gated_recurrence/kernel.cu": [
        _gated(20, 32, 8), _gated(300, 64, 16), _gated(40, 520, 8), _gated(4, 520, 8),
        _gated(4, 32, 8), _gated(40, 32, 8, 1e30), _gated(3000, 4, 4), _gated(6, 1024, 4),
    ],
    "gated_recurrence/backward.cu": [
        _gated_backward(20, 8, 8), _gated_backward(80, 8, 8), _gated_backward(20, 36, 12, 1),
        _gated_gradients("k", (64, 128), 9.0),
    ],
    # 64 rows to a block and 128, with one, two and three times 64 columns.
    "gated_recurrence/backward_chunks.cu": [
        _gated_gradients("k", (64, 128)), _gated_gradients("k", (128, 192)),
        _gated_gradients("v", (64, 128)),
    ],
    "gated_recurrence/backward_states.cu": [_gated_gradients("k", (64, 192), steps=330)],
    "gated_recurrence/step.cu": [_gated_step(70, 24)],
    "gated_recurrence/chunk_work.cuh": _CHUNKS[:1],
    "gated_recurrence/wide.cu": _LONG_CHUNKS,
    "gated_recurrence/wide_keys.cu": _LONG_CHUNKS[2:],
    "gated_recurrence/chunked.cu": [*_CHUNKS[2:], *_FINE_CHUNKS],
    "gated_recurrence/chunk_prepare.cuh": [*_CHUNKS, *_FINE_CHUNKS],
    "gated_recurrence/chunk_keys.cuh": [_CHUNKS[0], _TWO_HALVES],
    "gated_recurrence/fine.cuh": _FINE_CHUNKS[:1],
    "gated_recurrence/levels.cuh": _CHUNKS[:1],
    "gated_recurrence/gate_keys.cu": _CHUNKS[-1:],
    "int8_attention/kernel.cu": [_attention(40, 2, 64), _attention(195, 1, 32, 2)],
    "int8_attention/kernel_decode.cu": [_cache(1100, 64)],
    "int8_attention/kernel_general.cu": [_cache(200, 96)],
    "int8_attention/kernel_rows.cu": [_attention(70, 1, 300)],
    "int8_attention/kernel_wgmma.cu": [
        _prefill(130, 64, False), _prefill(200, 128, True), _prefill(130, 256, False),
        _prefill(130, 64, True, per_token=True),
    ],
    "mla_kv/kernel.cu": [
        _mla(5, 128, 32, 64, "registers"), _mla(20, 70, 70, 80, "fused"),
        _mla(20, 70, 70, 80, "fused", norm=True), _mla(20, 70, 40, 48, "product"),
    ],
    "mla_kv/mma.cuh": _MMA,
    "mla_kv/kernel_mma.cu": [_mla(5, 700, 48, 16, "mma", torch.bfloat16, norm=True)],
    "mla_kv/kernel_decode.cu": _DECODE,
    "mla_kv/kernel_wgmma.cu": _WGMMA,
    "mla_kv/kernel_cluster.cu": _CLUSTER,
    "mla_kv/kernel_pair.cu": _PAIR,
    "mla_kv/kernel_wide.cu": _MLA_WIDE,
    "mla_kv/kernel_split.cu": _SPLIT,
    "mla_kv/kernel_narrow.cu": _NARROW,
    "mla_kv/kernel_few.cu": [
        _mla(1, 136, 64, 128, "few", heads=1, multiprocessors=2),
        _mla(3, 72, 128, 64, "few", heads=1, norm=True, multiprocessors=6),
    ],
    "mla_kv/kernel_thin.cu": [
        _mla(18, 136, 16, 136, "thin", torch.float16, heads=1, norm=True, multiprocessors=2),
        _mla(5, 64, 8, 1032, "thin", torch.bfloat16, heads=1, multiprocessors=2),
    ],
    "mla_kv/kernel_small.cu": [
        _mla(3, 40, 12, 8, "small", norm=True), _mla(3, 40, 48, 8, "small"),
    ],
    "mla_kv/kernel_parts.cu": [
        _mla(130, 136, 72, 64, "parts", heads=1, multiprocessors=2),
        _mla(5, 320, 64, 136, "parts", heads=1, along_depth=True, multiprocessors=1),
    ],
    "mla_kv/kernel_backward.cu": [_mla_gradients(5, 24, 48, 16)],
}  # fmt: skip
# Definitions of what the other sources are searched for.
HEADERS = ("hopper.cuh", "common.cuh", "tensor_core.cuh")


def mutants(text: str) -> Iterator[tuple[int, str, str]]:
    """(line, what was removed, the changed source)."""
    for found in STATEMENT.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        new = f"({found['or']})" if found["or"] else ";"
        yield line, found[0], text[: found.start()] + new + text[found.end() :]


def sources() -> Iterator[Path]:
    """Shipped sources with a barrier or a wait."""
    for file in sorted(OPS.glob("*/*.cu*")):
        if file.name not in HEADERS and STATEMENT.search(file.read_text()):
            yield file


def report(folder: Path, work: list[Callable[[], Any]]) -> str:
    """The first error that any of the launches shows."""
    for run in work:
        recorder = Swapped(folder, getattr(run, "hopper", False))
        with standing_in(recorder):
            try:
                run()
            except KernelproofError as error:
                return f"{type(error).__name__}: {str(error).splitlines()[0]}"
        for result in recorder.taken():
            for finding in result.errors:
                return f"{finding.kind} at line {finding.line}" + (
                    f", with line {finding.other_line}" if finding.other_line else ""
                )
    return ""


def rows(only: str = "") -> Iterator[dict[str, Any]]:
    """One per mutant; line 0 is the kernel as it is."""
    for source in sources():
        name = f"{source.parent.name}/{source.name}"
        if only not in name:
            continue
        label = source.parent.name if source.name == "kernel.cu" else name.removesuffix(".cu")
        for line, removed, found in _reports(source, WORK[name]):
            yield {"kernel": label, "line": line, "removed": removed, "reported": found}


def _reports(source: Path, work: list[Callable[[], Any]]) -> Iterator[tuple[int, str, str]]:
    """(line, what was removed, the first error) of each mutant of one source."""
    text = source.read_text()
    for line, removed, changed in [(0, "nothing", text), *mutants(text)]:
        # A folder each: within a process, a source at one place is compiled once, whatever becomes
        # of its headers.
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            for file in (*source.parent.glob("*.cu"), *source.parent.glob("*.cuh")):
                shutil.copy(file, folder)
            (folder / source.name).write_text(changed)
            removed = removed.removesuffix(";").replace('asm volatile("', "").split(';"')[0]
            removed = " ".join(removed.replace("\\n\\t", " ").split())
            yield line, removed, report(folder, work)


def main() -> None:
    only = sys.argv[1] if len(sys.argv) > 1 else ""
    print("| kernel | line | removed | reported |\n|---|---|---|---|", flush=True)
    missed = 0
    for row in rows(only):
        missed += not row["reported"] and row["line"] > 0
        words = row["reported"] or "no"
        print(
            f"| {row['kernel']} | {row['line'] or '-'} | `{row['removed']}` | {words} |", flush=True
        )
    print(f"\n{missed} not reported")


if __name__ == "__main__":
    main()
