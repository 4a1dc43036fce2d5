"""The designs of mla_kv for sm_90: values and races under the emulator, and exchanges on a GPU."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from test_mla_kv_cuda import BF16, F16, F32, call, chain, check, on_gpu, parted, poison

from kernelproof.cuda import Kernel
from kernelproof.emulate.standin import Recorder, standing_in
from kernelproof.ops.mla_kv import cuda, cuda_exchange, cuda_plan, cuda_wide
from kernelproof.ops.mla_kv.cuda import operands_of
from kernelproof.ops.mla_kv.cuda_operands import Rows, Weight
from kernelproof.ops.mla_kv.cuda_steps import H200, Device, Library
from kernelproof.ops.mla_kv.cuda_wide import Wide

__all__ = ["poison"]


def emulated(
    sizes: Any, design: str, multiprocessors: int, repeats: int = 1, **options: Any
) -> Any:
    """Operands, options, results and what was found on a GPU of a few multiprocessors."""
    operands, options = call(*sizes, **options)
    outs, found = ran(operands, options, design, multiprocessors, repeats)
    return operands, options, outs, found


def ran(
    operands: list[torch.Tensor], options: Any, design: str, multiprocessors: int, repeats: int = 1
) -> Any:
    """Results, and what was found."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC compiles the kernels")
    device, recorder = Device(multiprocessors, (9, 0)), Recorder(hopper=True)
    forget()
    with standing_in(recorder), mock.patch.object(cuda, "device_facts", lambda index: device):
        outs = [cuda.project_cuda(*operands, design=design, **options) for _ in range(repeats)]
    forget()
    results = recorder.taken()
    assert any(design in r.kernel for r in results)
    return outs, [str(f) for r in results for f in r.findings]


def forget() -> None:
    cuda._prepared.cache_clear()
    cuda_plan.plan.cache_clear()
    cuda_exchange._made.clear()


@pytest.mark.parametrize(
    ("design", "multiprocessors", "sizes", "options"),
    [
        ("decode", 4, (1, 256, 128, 2, 64, 64), dict(dtype=BF16)),
        ("decode", 4, (3, 256, 128, 2, 64, 64), dict(dtype=BF16)),
        ("few", 4, (3, 72, 128, 2, 64, 64), {}),
    ],
    ids=str,
)
def test_blocks_exchange_the_shares_of_each_call(
    design: str, multiprocessors: int, sizes: Any, options: dict[str, Any]
) -> None:
    operands, options, outs, found = emulated(sizes, design, multiprocessors, 2, **options)
    assert not found
    check(outs[0], operands, options)
    for a, b in zip(parted(outs[0]), parted(outs[1]), strict=True):
        assert torch.equal(a, b)


CLUSTERS = [
    ("cluster", 16, (20, 77, 41, 3, 13, 13), dict(dtype=BF16)),
    ("cluster", 16, (37, 136, 64, 3, 8, 24), dict(dtype=BF16, form="packed", norm=True, rope=16)),
    ("cluster", 32, (21, 100, 100, 3, 20, 20), {}),
    ("cluster", 16, (37, 72, 40, 2, 8, 24), dict(form="packed_in", norm=True, rope=5, offset=1)),
    ("cluster", 16, (9, 40, 17, 3, 11, 14), dict(form="out_in", rope=3)),
    ("pair", 16, (50, 520, 72, 3, 64, 64), dict(dtype=BF16)),
    ("pair", 4, (37, 136, 72, 2, 64, 128), dict(dtype=F16, form="out_in")),
    ("pair", 8, (150, 200, 136, 2, 64, 128), dict(dtype=BF16, form="packed", norm=True, rope=16)),
    ("pair", 8, (150, 136, 40, 2, 24, 24), dict(dtype=F16)),
    ("split", 132, (3, 136, 72, 2, 24, 24), {}),
    ("split", 132, (21, 77, 41, 3, 13, 13), dict(dtype=BF16)),
    ("split", 132, (37, 136, 64, 3, 8, 24), dict(form="packed", norm=True, rope=16)),
    ("split", 16, (9, 72, 40, 2, 8, 24), dict(dtype=BF16, form="packed_in", norm=True, rope=5)),
    ("split", 16, (9, 200, 104, 1, 11, 14), dict(dtype=F16, form="out_in", rope=3, offset=1)),
]


@pytest.mark.parametrize(("design", "multiprocessors", "sizes", "options"), CLUSTERS, ids=str)
def test_clusters_exchange_shares(
    design: str, multiprocessors: int, sizes: Any, options: dict[str, Any]
) -> None:
    operands, options, (out,), found = emulated(sizes, design, multiprocessors, **options)
    assert not found
    check(out, operands, options)


# Tokens of one tile and of several, ragged; slots that are used again.
WIDE = [
    (2, (70, 72, 72, 3, 64, 64), dict(dtype=BF16), None),
    (3, (130, 136, 200, 2, 64, 128), dict(dtype=F16, form="out_in"), Wide(256)),
    (2, (150, 72, 264, 3, 64, 64), dict(dtype=F16), Wide(64, 3, 2)),
    (2, (90, 72, 136, 2, 64, 128), dict(dtype=F16, form="packed_in"), Wide(128, 4)),
    (1, (70, 72, 264, 3, 24, 24), dict(dtype=BF16), Wide(256, 5)),
    (4, (20, 72, 72, 2, 64, 192), dict(dtype=BF16, form="packed"), Wide(64)),
]


@pytest.mark.parametrize(("multiprocessors", "sizes", "options", "form"), WIDE, ids=str)
def test_one_block_has_all_tokens_of_its_columns(
    multiprocessors: int, sizes: Any, options: dict[str, Any], form: Wide | None
) -> None:
    made = functools.partial(cuda_wide.wide, form=form)
    with mock.patch.object(cuda_plan, "wide", made):
        operands, options, (out,), found = emulated(sizes, "wide", multiprocessors, **options)
    assert not found
    check(out, operands, options)


def test_a_copy_over_results_that_have_not_left_is_found(tmp_path: Path) -> None:
    """Slots of the last weights carry results out; without the wait the next weights come there."""
    source = Path(cuda.__file__).with_name("kernel_wide.cu")
    text, wait = source.read_text(), "          stores_have_read();\n"
    assert text.count(wait) == 1
    (tmp_path / source.name).write_text(text.replace(wait, ""))
    for header in source.parent.glob("*.cuh"):
        shutil.copy(header, tmp_path)
    planted = functools.cache(lambda name, source: Kernel(tmp_path / source, name))
    with mock.patch.object(cuda, "kernel", planted):
        *_, found = emulated((20, 64, 264, 1, 256, 256), "wide", 1, dtype=BF16)
    assert any("race" in f for f in found)


def test_the_wide_design_is_taken_where_it_was_measured_and_fits() -> None:
    def chosen(tokens: int, model: int = 7168, design: str | None = None, **options: Any) -> Any:
        sizes = (tokens, model, 512, 128, 128, 128)
        operands, more = call(*sizes, device="meta", **{"dtype": BF16, **options})
        return cuda_plan.plan(operands_of(*operands, **more), H200, design)

    assert [chosen(n).design for n in (448, 513)] == ["library"] * 2
    assert [chosen(n).design for n in (449, 512)] == ["wide"] * 2
    assert chosen(512, 5120).design == chosen(512, offset=1).design == "library"
    assert chosen(512, norm=True).design != "wide" and chosen(512, rope=8).design != "wide"
    for tokens in (1, 64, 65, 128, 129, 512):
        first, second = chosen(tokens, design="wide").launches
        assert isinstance(first, Library) and second.shared <= 226 * 1024
    for unfit in (dict(tokens=513), dict(tokens=512, norm=True), dict(tokens=512, dtype=F32)):
        with pytest.raises(ValueError, match="'wide' does not fit"):
            chosen(**unfit, design="wide")


@pytest.mark.parametrize("design", ["cluster", "split"])
def test_infinities_stay_in_their_token_of_a_cluster(design: str) -> None:
    operands, options = call(9, 24, 8, 1, 8, 8)
    operands[0][2, 3], operands[0][4, 5] = float("inf"), float("nan")
    (out,), _ = ran(operands, options, design, 16)
    want = torch.stack(chain(operands, options, F32), 1)
    torch.testing.assert_close(out, want, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize(
    ("multiprocessors", "sizes", "options"),
    [
        (2, (70, 136, 72, 1, 64, 64), {}),
        (2, (37, 264, 40, 1, 24, 24), dict(form="out_in")),
    ],
    ids=str,
)
def test_three_parts_have_the_accuracy_of_float32(
    multiprocessors: int, sizes: Any, options: dict[str, Any]
) -> None:
    operands, options, (out,), found = emulated(sizes, "parts", multiprocessors, **options)
    assert not found
    for got, near, exact in zip(
        parted(out), chain(operands, options, F32), chain(operands, options), strict=True
    ):
        error, eager = ((x - exact).square().mean().sqrt() for x in (got, near))
        assert error <= 1.5 * eager


def test_three_parts_keep_infinities_and_what_rounds_to_one() -> None:
    operands, options = call(9, 24, 8, 1, 8, 8)
    hidden, down = operands[:2]
    hidden[2, 3], hidden[4, 5] = float("inf"), float("nan")
    hidden[6, 7] = torch.finfo(F32).max
    down[7] = 0.5 ** torch.arange(10, 18)
    (out,), _ = ran(operands, options, "parts", 2)
    want = torch.stack(chain(operands, options, F32), 1)
    torch.testing.assert_close(out, want, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_one_row_that_ends_within_16_bytes_is_not_read_by_16() -> None:
    """Its tensor may end there: compute-sanitizer calls such a copy an access beyond it."""

    def rows(tokens: int, width: int) -> Rows:
        return Rows(tokens, tokens, 0, 8, 1, width, True)

    def weight(rows: int, width: int) -> Weight:
        return Weight(8, width, 1, rows, 1, width, True)

    for made in (rows, weight):
        assert [made(1, n).wide(2) for n in (1, 7, 8)] == [False, False, True]
        assert made(2, 7).wide(2)
    along_depth = [Weight(1, 8 * n, 8, 7, 1, n, True).wide(2) for n in (1, 2)]
    assert along_depth == [False, True]
    call_of_one = operands_of(*(torch.ones(1, 1, dtype=BF16) for _ in range(4)), kv_heads=1)
    assert "true" not in cuda_plan.plan(call_of_one, design="block").launches[0].name


def test_grids_of_other_sizes_count_their_blocks_apart() -> None:
    """A barrier whose count another number of blocks has left would open too early."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC compiles the kernels")
    operands, options = call(1, 256, 64, 2, 64, 64, dtype=BF16)
    recorder = Recorder(hopper=True)
    forget()
    for multiprocessors in (3, 4):
        cuda._prepared.cache_clear()
        device = Device(multiprocessors, (9, 0))
        with (
            standing_in(recorder),
            mock.patch.object(cuda, "device_facts", return_value=device),
        ):
            out = cuda.project_cuda(*operands, design="decode", **options)
        check(out, operands, options)
    counts = [int(words[1]) for words in cuda_exchange._made.values()]
    forget()
    assert not [str(f) for r in recorder.taken() for f in r.findings]
    assert counts == [3, 4]


def test_a_lost_word_is_waited_for() -> None:
    """An exchange whose words have old numbers ends in no result."""
    with (
        mock.patch.object(
            cuda_exchange, "buffer", lambda index, words, user: torch.zeros(words).long()
        ),
        mock.patch.object(cuda_plan, "few", _with_one_block_fewer),
    ):
        *_, found = emulated((1, 136, 64, 2, 32, 32), "few", 2)
    assert found


def _with_one_block_fewer(*arguments: Any) -> Any:
    from kernelproof.ops.mla_kv.cuda_few import few

    plan = few(*arguments)
    assert plan is not None
    return plan._replace(launches=(plan.launches[0]._replace(grid=plan.launches[0].grid - 1),))


# -- on a GPU --------------------------------------------------------------------------------------

EXCHANGES = [
    ((1, 2048, 512, 16, 128, 128), dict(dtype=BF16)),
    ((16, 7168, 512, 128, 128, 128), dict(dtype=F16, norm=True)),
    ((1, 1024, 256, 8, 64, 64), {}),
    ((7, 2048, 512, 16, 128, 128), dict(norm=True)),
]


def needs_hopper() -> None:
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("this design is for sm_90")


@pytest.mark.gpu
@pytest.mark.parametrize(("sizes", "options"), EXCHANGES, ids=str)
def test_gpu_exchanges_in_streams_and_graphs_at_once(sizes: Any, options: dict[str, Any]) -> None:
    needs_hopper()
    operands, options = call(*sizes, device="cuda", **options)
    expected = cuda.project_cuda(*operands, **options)
    check(expected, operands, options)
    streams = [torch.cuda.Stream() for _ in range(3)]
    graphs, outs = [], []
    for _ in streams:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outs += [cuda.project_cuda(*operands, **options) for _ in range(3)]
        graphs.append(graph)
    torch.cuda.synchronize()
    for number in range(20):
        with torch.cuda.stream(streams[number % 3]):
            graphs[number % 3].replay()
            outs.append(cuda.project_cuda(*operands, **options))
    torch.cuda.synchronize()
    for out in outs:
        for a, b in zip(parted(out), parted(expected), strict=True):
            assert torch.equal(a, b)


@pytest.mark.gpu
def test_gpu_a_kernel_keeps_the_largest_shared_memory_that_it_was_granted() -> None:
    """Of one name, in several sizes."""
    for model in (500, 300, 500, 700, 300, 700):
        operands, options = call(5, model, 70, 3, 11, 11, device="cuda")
        check(cuda.project_cuda(*operands, design="small", **options), operands, options)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ((2048, 2048, 512, 16, 128, 128), {}),
        ((333, 1000, 100, 5, 60, 60), dict(form="out_in")),
        ((4097, 512, 64, 8, 64, 80), dict(norm=True, rope=16)),
    ],
    ids=str,
)
def test_gpu_three_parts_are_no_worse_than_eager(sizes: Any, options: dict[str, Any]) -> None:
    needs_hopper()
    operands, options = call(*sizes, device="cuda", **options)
    out = on_gpu(operands, "parts", **options)
    check(out, operands, options)
    for got, near, exact in zip(
        parted(out), chain(operands, options, F32), chain(operands, options), strict=True
    ):
        error, eager = ((x - exact).square().mean().sqrt() for x in (got, near))
        assert error <= 1.5 * eager


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [64, 129, 512])
def test_gpu_the_second_launch_reads_what_was_written_just_before(tokens: int) -> None:
    """Its weights are read before the first product ends: kernels before that have written them."""
    needs_hopper()
    sizes = (tokens, 7168, 512, 128, 128, 128)
    operands, options = call(*sizes, dtype=BF16, device="cuda")
    written = [torch.empty_like(t) for t in operands]
    expected = cuda.project_cuda(*operands, design="wide", **options)
    check(expected, operands, options)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs = []
        for _ in range(3):
            for to, of in zip(written, operands, strict=True):
                to.copy_(of)
            outs.append(cuda.project_cuda(*written, design="wide", **options))
            for to in written:
                to.zero_()
    for _ in range(10):
        for out in outs:
            out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(out, expected) for out in outs)
