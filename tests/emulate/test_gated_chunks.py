"""The chunked kernels of the gated recurrence under the emulator: values against float64, contracts
bit for bit, no race and no read of what was not written."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC compiles the kernels")

from kernelproof.emulate.standin import Recorder, standing_in
from kernelproof.ops.gated_recurrence import chunk_choice, chunked, cuda, reference
from kernelproof.ops.gated_recurrence.call import Call

Tensors = list[Tensor | None]
HALF = torch.float16
FAMILIES = {
    "signed": torch.tanh,
    "zeros": lambda x: torch.sigmoid(x) * (x > -1.6),
    "above_one": lambda x: 0.6 + torch.sigmoid(x),
    # Some gates that products of 16 must not meet.
    "large": lambda x: torch.where(x > 2, 50.0, torch.sigmoid(x)),
}
# Of rms: what is rounded to the type of v, and to bfloat16 where that is it, y included.
BOUND = {torch.bfloat16: 4e-3, torch.float16: 4e-4, torch.float32: 5e-7}


def tensors(
    steps: int, gates: str, key_dim: int, value_dim: int = 64, family: str = "signed", *,
    batch: int = 1, heads: int = 1, key_heads: int = 1, log: bool = False,
    gate_dtype: torch.dtype = torch.float32, dtype: torch.dtype = torch.bfloat16,
) -> Tensors:  # fmt: skip
    """q, k, v and the three gates."""
    q, k = (torch.randn(batch, steps, key_heads, key_dim).to(dtype) for _ in range(2))
    made: Tensors = [q, k, torch.randn(batch, steps, heads, value_dim).to(dtype)]
    for letter, width in (("k", (key_dim,)), ("v", (value_dim,)), ("h", ())):
        gate = FAMILIES[family](torch.randn(batch, steps, heads, *width))
        gate = gate.abs().log() if log else gate
        made.append(gate.to(gate_dtype) if letter in gates else None)
    return made


@contextlib.contextmanager
def segments(lead: int | None, length: int) -> Iterator[None]:
    """The first segment has ``lead`` steps, others ``length``, four times as many where chunks have
    64 and not 16; None: there is one segment."""

    def divided(steps: int, _: int, chunk: int = 16) -> tuple[int, int, int]:
        if lead is None or steps <= lead * chunk // 16:
            return 1, steps, steps
        first, other = lead * chunk // 16, length * chunk // 16
        return 1 - (first - steps) // other, first, other

    chunked._plan.cache_clear()
    with (
        mock.patch.object(chunked, "_FEWEST_STEPS", 1),
        mock.patch.object(chunk_choice, "divided", divided),
    ):
        yield
    chunked._plan.cache_clear()


def emulated(
    given: Tensors, state: Tensor | None = None, lead: int | None = None, **options: Any
) -> tuple[Tensor, Tensor]:
    """y and the last state; any finding is a failure, and so is another kernel."""
    recorder = Recorder(hopper=True)
    bounds, log = options.get("cu_seqlens"), options.get("log_gates", False)
    with segments(lead, 32), standing_in(recorder):
        assert chunked.plan(Call(*given, state, None, log, bounds)) is not None
        y, last = cuda.launch(*given, 0.5, state, True, **options)
    results = recorder.taken()
    assert results and [str(f) for r in results for f in r.findings] == []
    assert last is not None
    return y, last


def exact(given: Tensors, state: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    wide = [None if x is None else x.double() for x in given]
    log, bounds = options.get("log_gates", False), options.get("cu_seqlens")
    return reference.run(*wide, log, 0.5, state.double(), bounds)


def assert_close(got: tuple[Tensor, Tensor], want: tuple[Tensor, Tensor]) -> None:
    for mine, true in zip(got, want, strict=True):
        assert (mine.double() - true).norm() <= BOUND[got[0].dtype] * true.norm()


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(11)


@pytest.mark.parametrize(
    ("form", "lead"),
    [
        ({"steps": 39, "gates": "k", "key_dim": 64, "heads": 2, "batch": 2}, None),
        ({"steps": 83, "gates": "k", "key_dim": 64, "family": "zeros"}, 48),
        ({"steps": 83, "gates": "v", "key_dim": 64, "family": "zeros"}, 48),
        ({"steps": 83, "gates": "k", "key_dim": 64, "family": "large"}, 48),
        ({"steps": 83, "gates": "v", "key_dim": 64, "family": "large"}, 48),
        ({"steps": 35, "gates": "kh", "key_dim": 128, "value_dim": 128, "family": "above_one"}, 16),
        ({"steps": 35, "gates": "v", "key_dim": 128, "value_dim": 128}, 16),
        ({"steps": 35, "gates": "k", "key_dim": 256, "family": "large"}, 16),
        ({"steps": 163, "gates": "k", "key_dim": 64}, 16),
        ({"steps": 163, "gates": "h", "key_dim": 64, "family": "above_one"}, 16),
        ({"steps": 131, "gates": "v", "key_dim": 128, "value_dim": 128}, 16),
        ({"steps": 67, "gates": "v", "key_dim": 256, "family": "large"}, 48),
        ({"steps": 67, "gates": "h", "key_dim": 256, "family": "large"}, 48),
        ({"steps": 35, "gates": "vh", "key_dim": 256, "value_dim": 128}, 16),
        ({"steps": 35, "gates": "", "key_dim": 256}, 16),
        ({"steps": 20, "gates": "h", "key_dim": 64, "value_dim": 128}, None),
        # More chunks of 64 steps than slots.
        ({"steps": 470, "gates": "h", "key_dim": 64, "family": "zeros"}, None),
        ({"steps": 163, "gates": "h", "key_dim": 256, "family": "zeros"}, None),
        ({"steps": 163, "gates": "k", "key_dim": 256, "family": "zeros"}, None),
        ({"steps": 35, "gates": "h", "key_dim": 64, "family": "large", "dtype": HALF}, 16),
        ({"steps": 83, "gates": "kh", "key_dim": 64, "family": "above_one"}, 48),
        ({"steps": 33, "gates": "", "key_dim": 64}, None),
        ({"steps": 33, "gates": "vh", "key_dim": 64, "gate_dtype": torch.bfloat16}, None),
        ({"steps": 33, "gates": "k", "key_dim": 64, "gate_dtype": torch.bfloat16}, None),
        ({"steps": 83, "gates": "kv", "key_dim": 64, "family": "zeros"}, 48),
        ({"steps": 83, "gates": "kvh", "key_dim": 64, "family": "large"}, 48),
        ({"steps": 35, "gates": "kv", "key_dim": 128}, 16),
        ({"steps": 83, "gates": "k", "key_dim": 64, "family": "zeros", "dtype": torch.float32}, 48),
        ({"steps": 83, "gates": "v", "key_dim": 64, "family": "large", "dtype": torch.float32}, 48),
        ({"steps": 35, "gates": "kh", "key_dim": 128, "dtype": torch.float32}, 16),
        ({"steps": 35, "gates": "k", "key_dim": 256, "dtype": torch.float32}, 16),
        ({"steps": 35, "gates": "v", "key_dim": 256, "dtype": torch.float32}, 16),
        ({"steps": 51, "gates": "v", "key_dim": 128, "value_dim": 128, "dtype": torch.float32}, 16),
        ({"steps": 35, "gates": "k", "key_dim": 64, "family": "large", "dtype": HALF}, 16),
        (
            {
                "steps": 35,
                "gates": "vh",
                "key_dim": 64,
                "gate_dtype": torch.float16,
                "dtype": torch.float16,
            },
            16,
        ),
    ],
    ids=str,
)
def test_forms(form: dict[str, Any], lead: int | None) -> None:
    given = tensors(**form)
    v = given[2]
    assert v is not None
    state = torch.randn(v.shape[0], v.shape[2], form["key_dim"], v.shape[3])
    assert_close(emulated(given, state, lead), exact(given, state))


def among_nan(x: Tensor | None) -> Tensor | None:
    """The same values inside a tensor that is NaN everywhere else."""
    if x is None:
        return None
    around = torch.full((*x.shape[:2], x.shape[2] + 1, *(n + 16 for n in x.shape[3:])), torch.nan)
    inside = around.to(x.dtype)[:, :, :-1]
    inside = inside[..., 8:-8] if x.dim() == 4 else inside
    return inside.copy_(x)


@pytest.mark.parametrize(
    ("form", "lead"),
    [
        ({"steps": 83, "gates": "k", "key_dim": 72, "value_dim": 40, "heads": 2}, 48),
        ({"steps": 77, "gates": "h", "key_dim": 48, "value_dim": 80, "batch": 2}, 16),
        ({"steps": 37, "gates": "k", "key_dim": 40, "value_dim": 136, "family": "large"}, 16),
        ({"steps": 37, "gates": "v", "key_dim": 104, "value_dim": 200, "family": "large"}, 16),
        ({"steps": 37, "gates": "k", "key_dim": 136, "value_dim": 72, "family": "large"}, 16),
        ({"steps": 37, "gates": "h", "key_dim": 248, "value_dim": 72}, 16),
        ({"steps": 37, "gates": "kv", "key_dim": 72, "value_dim": 40, "family": "large"}, 16),
        (
            {"steps": 37, "gates": "v", "key_dim": 40, "value_dim": 72, "log": True,
             "gate_dtype": torch.bfloat16}, 16,
        ),
        (
            {"steps": 37, "gates": "k", "key_dim": 68, "value_dim": 36, "family": "large",
             "dtype": torch.float32}, 16,
        ),
        (
            {"steps": 37, "gates": "vh", "key_dim": 36, "value_dim": 132, "family": "large",
             "dtype": torch.float32}, 16,
        ),
        ({"steps": 37, "gates": "k", "key_dim": 136, "value_dim": 36, "dtype": torch.float32}, 16),
        ({"steps": 37, "gates": "kv", "key_dim": 40, "value_dim": 72, "dtype": HALF}, 16),
    ],
    ids=str,
)  # fmt: skip
def test_rows_and_columns_that_do_not_fill_a_block(form: dict[str, Any], lead: int) -> None:
    """What lies beside them is not read, and a v of infinity goes through a chunk step by step."""
    log = form.get("log", False)
    given = [among_nan(x) for x in tensors(**form)]
    _, k, v = given[:3]
    assert k is not None and v is not None
    state = torch.full((v.shape[0], v.shape[2], k.shape[3] + 2, v.shape[3] + 3), torch.nan)
    state = state[:, :, 1:-1, 2:-1].copy_(torch.randn(state[:, :, 1:-1, 2:-1].shape))
    assert_close(emulated(given, state, lead, log_gates=log), exact(given, state, log_gates=log))
    v[:, 20, :, -1] = torch.inf
    y, last = emulated(given, state, lead, log_gates=log)
    want, end = exact(given, state, log_gates=log)
    assert torch.equal(y.isfinite(), want.isfinite())
    assert torch.equal(last.isfinite(), end.isfinite())
    columns = slice(0, -1)
    assert_close((y[..., columns], last[..., columns]), (want[..., columns], end[..., columns]))


def test_explain_tells_of_what_is_held_as_zeros() -> None:
    with segments(None, 32), standing_in(Recorder(hopper=True)):
        plans = [chunked.plan(Call(*tensors(33, "k", *sizes))) for sizes in ((72, 40), (64, 64))]
    told = [chunked.describe(plan) for plan in plans if plan is not None]
    assert "beyond 72 x 40 are zeros" in told[0] and "zeros" not in told[1]


def test_packed_sequences_grouped_heads_and_logarithms() -> None:
    lengths = (0, 7, 26, 0)
    bounds = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int64)
    given = tensors(33, "h", 64, heads=2, key_heads=1, log=True)
    state = torch.randn(4, 2, 64, 64)
    options: dict[str, Any] = {"cu_seqlens": bounds, "log_gates": True}
    y, last = emulated(given, state, **options)
    assert_close((y, last), exact(given, state, **options))
    alone: Tensors = [None if x is None else x[:, 7:33] for x in given]
    options["cu_seqlens"] = torch.tensor([0, 26], dtype=torch.int32)
    mine = emulated(alone, state[2:3], **options)
    assert torch.equal(mine[0], y[:, 7:33]) and torch.equal(mine[1], last[2:3])


def test_strides() -> None:
    """Columns of a fused projection, a gate that all rows share and a state inside another one."""
    given = tensors(20, "v", 64, heads=2, key_heads=2)
    q, k, v, _, gate, _ = given
    assert q is not None and k is not None and v is not None and gate is not None
    fused = torch.cat([x.flatten(2) for x in (q, k, v)], -1).split([128, 128, 128], -1)
    sliced: Tensors = [x.unflatten(-1, (2, 64)) for x in fused]
    sliced += [None, gate[:, :1].expand(gate.shape), None]
    state = torch.randn(1, 2, 66, 70)[:, :, 1:65, 3:67]
    assert_close(emulated(sliced, state), exact(sliced, state))


@pytest.fixture
def no_reduced_precision() -> Iterator[None]:
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_bf16_reduced_precision_reduction
    matmul.allow_bf16_reduced_precision_reduction = False
    yield
    matmul.allow_bf16_reduced_precision_reduction = before


@pytest.mark.usefixtures("no_reduced_precision")
@pytest.mark.parametrize(("gates", "key_dim"), [("k", 64), ("h", 64), ("kh", 128), ("k", 256)])
def test_without_reduced_precision(gates: str, key_dim: int) -> None:
    given = tensors(40, gates, key_dim)
    state = torch.randn(1, 1, key_dim, 64)
    y, _ = emulated(given, state, 16)
    true, _ = exact(given, state)
    assert (y.double() - true).norm() <= 1.6 * (true.bfloat16().double() - true).norm()


@pytest.mark.parametrize(
    ("gates", "key_dim"),
    [("k", 64), ("v", 64), ("h", 64), ("", 64), ("k", 256), ("v", 256), ("h", 256)],
)
@pytest.mark.parametrize("later", [1e9, float("nan")], ids=["large", "nan"])
def test_causal(gates: str, key_dim: int, later: float) -> None:
    """Within a chunk as well, whatever comes: products of 16 gates of 1e9 are not finite."""
    given = tensors(40, gates, key_dim)
    y, _ = emulated(given)
    changed = [None if x is None else x.clone() for x in given]
    for x in changed:
        if x is not None:
            x[:, 21:] = later
    assert torch.isfinite(y).all() and torch.equal(emulated(changed)[0][:, :21], y[:, :21])


@pytest.mark.parametrize("gates", ["k", "h"])
def test_a_sequence_does_not_depend_on_its_batch(gates: str) -> None:
    given, state = tensors(70, gates, 64, batch=3), torch.randn(3, 1, 64, 64)
    y, last = emulated(given, state, 48)
    alone: Tensors = [None if x is None else x[1:2] for x in given]
    mine = emulated(alone, state[1:2], 48)
    assert torch.equal(mine[0], y[1:2]) and torch.equal(mine[1], last[1:2])


@pytest.mark.parametrize("gates", ["k", "v"])
def test_gates_that_overflow_meet_zeros(gates: str) -> None:
    """Over a segment whose state is zero, gates may have any product."""
    given = tensors(80, gates, 64)
    for i, x in enumerate(given):
        if x is not None:
            x[:, :60] = 1e20 if i > 2 else 0
    y, last = emulated(given, torch.zeros(1, 1, 64, 64), 48)
    assert torch.isfinite(y).all() and torch.isfinite(last).all()
    assert_close((y, last), exact(given, torch.zeros(1, 1, 64, 64)))


class Changed(Recorder):
    """Launches the sources of another folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(hopper=True)
        self.folder = folder

    def launch(self, source: Any, *rest: Any) -> None:  # type: ignore[override]
        super().launch(self.folder / Path(source).name, *rest)


MISTAKES = {
    "a value that is not finite": ("wide.cu", "if (unsafe < STEPS)  //", "if (false)  //"),
    "gates after a step": ("wide.cu", "after = post[i];", "after = pre[i];"),
    "a step too many": ("wide.cu", "c * 2 + x <= row ?", "true ?"),
    "gates of keys after a step": ("wide_keys.cu", "if (i > piece) after", "if (i >= piece) after"),
}


@pytest.mark.parametrize("mistake", ["none", *MISTAKES])
def test_mistakes_are_seen(mistake: str, tmp_path: Path) -> None:
    """Planted in the kernels of longer chunks; two steps into the second one nothing is finite."""
    file, old, new = MISTAKES.get(mistake, ("wide.cu", " ", " "))
    sources = Path(chunked.__file__).parent
    for source in [*sources.glob("*.cu*"), *sources.glob("*.h")]:
        text = source.read_text()
        if source.name == file:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / source.name).write_text(text)
    given = tensors(70, *(("k", 256) if file == "wide_keys.cu" else ("h", 64)))
    for x in given[2:]:
        if x is not None:
            x[:, 66:] = torch.nan
    with segments(None, 32), standing_in(Changed(tmp_path)):
        y, _ = cuda.launch(*given, 0.5)
    want, _ = reference.run(*[None if x is None else x.double() for x in given], False, 0.5)
    error = (y.double() - want)[:, :66].norm() / want[:, :66].norm()
    assert bool(error <= 4e-3) == (mistake == "none")


def test_wrong_bounds_stay_within_the_tensors() -> None:
    given = tensors(20, "h", 64)
    bounds = torch.tensor([7, -8, 90], dtype=torch.int64)
    recorder = Recorder(hopper=True)
    with segments(None, 32), standing_in(recorder):
        cuda.launch(*given, 0.5, None, True, cu_seqlens=bounds)
    (result,) = recorder.taken()
    assert "out of bounds" not in {finding.kind for finding in result.findings}


def test_every_shape_of_the_kernel_compiles_almost_without_spills() -> None:
    """Gates of keys with one warp, two and none that prepare them; of columns, and of heads."""
    for gates, key_dim, value_dim in (
        (1, 64, 64), (1, 128, 128), (1, 256, 512), (2, 128, 128), (4, 64, 64), (4, 256, 512)
    ):  # fmt: skip
        chosen = chunk_choice.choose("float", 4, gates, key_dim, value_dim, 4096)
        assert chosen is not None
        _, _, said = chosen.config.kernel().compile_verbose("sm_90a")
        spilled = [int(n) for n in re.findall(r"(\d+) bytes spill stores", said)]
        assert spilled and sum(spilled) <= 16, (gates, key_dim)
