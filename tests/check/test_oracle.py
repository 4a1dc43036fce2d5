"""The oracle: float64 for any module, with planted traps."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kernelproof.check.expected import expect
from kernelproof.check.oracle import float64, lift, round_to
from kernelproof.check.reference import ReferenceModel


def truth_of(model: nn.Module, *inputs: torch.Tensor) -> torch.Tensor:
    with float64():
        return model.double()(*lift(inputs))


class ExplicitCasts(nn.Module):
    def forward(self, x):
        return (x.half().float() + x.to(torch.bfloat16)).type(torch.float32).sum(-1)


class Factories(nn.Module):
    def forward(self, x):
        y = torch.zeros(x.shape, dtype=torch.float32)
        y += 0.1
        return y + torch.ones(3) * 0.3 + torch.arange(0, 0.3, 0.1)[:3] + torch.tensor(0.7) + x


class Constant(nn.Module):
    """A tensor that is neither parameter nor buffer, written to in place."""

    def __init__(self):
        super().__init__()
        self.c = torch.full((3,), 0.1)

    def forward(self, x):
        self.c += 0.2
        return x + self.c


class Autocast(nn.Module):
    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return x @ x.T


class Complex(nn.Module):
    def forward(self, x):
        return torch.fft.ifft(torch.fft.fft(x.to(torch.complex64)) * (1 + 0.3j)).real


class Masked(nn.Module):
    def forward(self, x):
        mask = torch.ones(x.shape[-2:], dtype=torch.bool).triu(1)
        return x.masked_fill(mask, torch.finfo(x.dtype).min).softmax(-1)


class InPlace(nn.Module):
    def forward(self, x):
        y = x.clone()
        y.mul_(0.3).add_(0.1)
        y[0] = 0.7
        return y.relu_()


@pytest.mark.parametrize(
    "model", [ExplicitCasts, Factories, Constant, Autocast, Complex, Masked, InPlace]
)
def test_the_oracle_is_as_exact_as_float64_written_by_hand(model: type[nn.Module]) -> None:
    x = torch.randn(3, 3)
    got = truth_of(model(), x)
    assert got.dtype == torch.float64
    by_hand = {
        ExplicitCasts: lambda d: (d + d).sum(-1),
        Factories: lambda d: d + 0.1 + 0.3 + torch.tensor([0, 0.1, 0.2]).double() + 0.7,
        Constant: lambda d: d + torch.full((3,), 0.1).double() + 0.2,
        Autocast: lambda d: d @ d.T,
        Complex: lambda d: (
            (torch.fft.ifft(torch.fft.fft(d.to(torch.complex128)) * (1 + 0.3j))).real
        ),
        Masked: lambda d: d.masked_fill(torch.ones(3, 3).bool().triu(1), -torch.inf).softmax(-1),
        InPlace: lambda d: torch.cat(
            [torch.full((1, 3), 0.7, dtype=torch.float64), (d * 0.3 + 0.1)[1:]]
        ).relu(),
    }[model](x.double())
    # float32 anywhere on the way would leave an error of about 1e-8 or more.
    tolerance = 3e-9 if model is Factories or model is Constant else 1e-13
    assert float((got - by_hand).abs().max()) <= tolerance


def test_integers_and_booleans_are_left_alone() -> None:
    class Mixed(nn.Module):
        def forward(self, x, i):
            return x[i], i + 1, x > 0

    with float64():
        y, i, b = Mixed()(*lift([torch.randn(4), torch.tensor([1, 2])]))
    assert (y.dtype, i.dtype, b.dtype) == (torch.float64, torch.int64, torch.bool)


def test_random_numbers_are_those_of_the_working_precision() -> None:
    class Noisy(nn.Module):
        def forward(self, x):
            return x + torch.randn(3) + torch.rand(3) + torch.empty(3).uniform_()

    x = torch.zeros(3)
    torch.manual_seed(3)
    working = Noisy()(x)
    torch.manual_seed(3)
    with float64():
        exact = Noisy()(lift(x))
    assert float((working - exact).abs().max()) <= 1e-6


def test_attention_and_recurrent_layers_run_in_float64() -> None:
    q = torch.randn(1, 2, 5, 8)
    with float64() as mode:
        out = F.scaled_dot_product_attention(lift(q), lift(q), lift(q), is_causal=True)
    d = q.double()
    scores = (d @ d.mT / 8**0.5).masked_fill(torch.ones(5, 5).bool().triu(1), -torch.inf)
    assert float((out - scores.softmax(-1) @ d).abs().max()) <= 1e-13
    assert mode.notes == []


def test_an_operation_without_float64_is_named() -> None:
    @torch.library.custom_op("kernelproof_test::only_float32", mutates_args=())
    def only_float32(x: torch.Tensor) -> torch.Tensor:
        if x.dtype != torch.float32:
            raise RuntimeError("\"only_float32\" not implemented for 'Double'")
        return x * 2

    with float64() as mode:
        out = only_float32(lift(torch.ones(3)))
    assert torch.equal(out, torch.full((3,), 2.0, dtype=torch.float64))
    assert mode.notes == ["only_float32: no float64 form, run in float32"]


def test_rounding_matches_the_dtypes() -> None:
    x = torch.randn(1000, dtype=torch.float64)
    assert torch.equal(round_to("bf16")(x), x.bfloat16().double())
    tf32 = round_to("tf32")(x)
    assert 2**-12.5 < float(((tf32 - x) / x).abs().max()) <= 2**-11
    assert torch.equal(round_to("tf32")(tf32), tf32)
    with pytest.raises(ValueError, match="fp8"):
        round_to("fp8")


def test_reference_model_sees_conditioning_and_precisions() -> None:
    class Product(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(64, 64))

        def forward(self, x):
            return x @ self.w

    model = ReferenceModel(Product, [], {}, 5, "cpu")
    x = [torch.randn(64, 64)]
    truth = model.truth(x, 0)

    def rms(y):
        return float((y - truth).square().mean().sqrt() / truth.square().mean().sqrt())

    working, changed, views = model.run(x, 0)
    assert (changed, views) == ([], False)
    assert 1e-8 < rms(working) < 1e-6
    assert 1e-8 < rms(model.perturbed(x, 0)) < 1e-6
    assert 1e-4 < rms(model.in_precision(x, 0, "tf32")) < 1e-3
    assert 1e-3 < rms(model.in_precision(x, 0, "bf16")) < 1e-2
    assert torch.equal(model.truth(x, 0), truth), "the weights must be put back"


def test_the_oracle_moves_to_the_cpu_when_memory_ends() -> None:
    class Hungry(nn.Module):
        def __init__(self, times: int = 2) -> None:
            super().__init__()
            self.asked, self.times = 0, times

        def forward(self, x):
            self.asked += x.dtype == torch.float64
            if self.asked and self.asked <= self.times:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return x.sum(-1)

    x = torch.randn(4, 8)
    # Once what was kept for later is given up, there may be enough of it.
    model = ReferenceModel(Hungry, [1], {}, 0, "cpu:0")
    assert torch.equal(model.truth([x], 0), x.double().sum(-1))
    assert model.oracle == "cpu:0" and not model.notes
    # A second name of the CPU stands for the GPU.
    model = ReferenceModel(Hungry, [], {}, 0, "cpu:0")
    assert torch.equal(model.truth([x], 0), x.double().sum(-1))
    assert model.oracle == "cpu" and "does not fit" in model.notes[0]
    value = model.run([x], 0)[0]
    ((_, found),) = expect(model, [x], 0, value, 2, True)
    assert found.value.device == found.truth.device == found.response.device
    # There is nowhere to move to from the CPU.
    with pytest.raises(torch.OutOfMemoryError):
        ReferenceModel(Hungry, [], {}, 0, "cpu").truth([x], 0)


class Steps(nn.Module):
    """A loop of many small operations."""

    def __init__(self, steps: int = 150, draws: bool = False) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(4))
        self.steps, self.draws = steps, draws

    def forward(self, x):
        for _ in range(self.steps):
            x = torch.tanh(x * self.w)
        return x + torch.rand_like(x) if self.draws else x


def once(steps: int = 150, elements: int = 8, draws: bool = False) -> ReferenceModel:
    """After a run of the oracle, where a second name of the CPU stands for the GPU."""
    model = ReferenceModel(Steps, [steps, draws], {}, 0, "cpu:0")
    x = torch.randn(elements, 4)
    truth = model.truth([x], 0)
    assert draws or torch.allclose(truth, model.run([x], 0)[0].double(), atol=1e-4)
    return model


def test_an_oracle_of_many_small_operations_runs_where_it_is_quicker() -> None:
    model, x = once(), torch.randn(8, 4)
    assert model._place == "cpu" and model.oracle == "cpu:0"
    model._on_device = 1e3
    model.truth([x], 1)
    assert model._place == "cpu"
    model._on_device = 0.0
    model.truth([x], 2)
    assert model._place == "cpu:0"
    model.truth([x], 3)
    assert model._place == "cpu:0", "it has been tried"


@pytest.mark.parametrize(
    "options", [{"steps": 50}, {"draws": True}, {"elements": 1 << 17}], ids=str
)
def test_other_oracles_stay_where_they_are(options: dict[str, int]) -> None:
    model = once(**options)  # type: ignore[arg-type]
    assert model._place == "cpu:0" and model._on_device is None


def test_a_rough_answer_comes_from_where_the_oracle_runs() -> None:
    model, x = once(), torch.randn(8, 4)
    want = model.run([x], 1)[0]
    model._move("cpu")
    assert torch.allclose(model.roughly([x], 1), want)
    model._twin.w.data.zero_()
    assert model.roughly([x], 1).abs().max() == 0, "the twin answers"

    def fails(*_: object) -> None:
        raise RuntimeError("Expected all tensors to be on the same device")

    model._twin.register_forward_pre_hook(fails)
    assert torch.allclose(model.roughly([x], 1), want)
    assert model._place == "cpu:0"
    assert torch.allclose(model.roughly([x], 1), want)


def test_an_oracle_that_cannot_move_goes_back() -> None:
    model, x = once(), torch.randn(8, 4)
    first = model.truth([x], 0)
    model._move("cpu")

    def fails(*_: object) -> None:
        if model._place == "cpu":
            raise RuntimeError("Expected all tensors to be on the same device")

    model.exact.register_forward_pre_hook(fails)
    assert torch.equal(model.truth([x], 0), first)
    assert model._place == "cpu:0"
    # What fails on both fails.
    model.exact.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model.truth([x], 0)


def test_no_precision_is_named_where_memory_ends_while_they_are_measured() -> None:
    """The truth stays where it is: an oracle on the CPU may take minutes."""

    class Hungry(nn.Module):
        full = False

        def forward(self, x):
            if self.full and x.dtype == torch.float64:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return x.sum(-1)

    x = torch.randn(4, 8)
    model = ReferenceModel(Hungry, [], {}, 0, "cpu:0")
    value = model.run([x], 0)[0]
    ((_, found),) = expect(model, [x], 0, value, 0, True)
    assert set(found.levels) == {"fp32", "tf32", "bf16", "fp16"}
    truth = model.truth([x], 0)

    def once_more(inputs, seed, operands=None, moves=True):
        model.exact.full = True
        return truth if moves else ReferenceModel.truth(model, inputs, seed, operands, moves)

    model.truth = once_more  # type: ignore[method-assign]
    ((_, found),) = expect(model, [x], 0, value, 0, True)
    assert found.levels == {} and torch.equal(found.truth, truth)
    assert model.oracle == "cpu:0" and "was not measured" in model.notes[0]


def test_inputs_that_are_kept_on_the_gpu_give_the_same_oracles(monkeypatch) -> None:
    """Also where the module writes to its inputs, and where some are integers or float64."""
    from kernelproof.check import reference

    class Writes(nn.Module):
        def forward(self, x, index, y):
            x.mul_(2.0)
            index.add_(1)
            return (x @ y.to(x.dtype))[index]

    def drawn() -> list[torch.Tensor]:
        torch.manual_seed(3)
        return [torch.randn(8, 16), torch.arange(5), torch.randn(16, 4, dtype=torch.float64)]

    model, x = ReferenceModel(Writes, [], {}, 0, "cpu:0"), drawn()
    names = ("tf32", "bf16", "fp16")
    want = [model.truth(x, 0), *(model.in_precision(x, 0, name) for name in names)]
    monkeypatch.setattr(reference, "_LARGE_BYTES", 0)
    monkeypatch.setattr(reference, "_room", lambda place: 1 << 40)
    for _ in range(2):
        found = [model.truth(x, 0), *(model.in_precision(x, 0, name) for name in names)]
        assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))
        assert model._moved[0] is x
    assert all(torch.equal(a, b) for a, b in zip(x, drawn(), strict=True))
    model.forget()
    assert model._moved == (None, None)


@pytest.mark.parametrize(
    ("function", "read"),
    [
        (lambda x: x * 2, False),
        (lambda x: x[torch.tensor([1, 0])], False),
        (lambda x: x.to(torch.float16).clone(), False),
        (lambda x: x[x > 0], True),
        (lambda x: x * float(x.sum()), True),
        (lambda x: x if x.sum() > 0 else -x, True),
        (lambda x: x.nonzero(), True),
        (lambda x: x.index_put((x > 0,), torch.zeros(())), True),
    ],
)
def test_it_tells_whether_the_cpu_reads_a_value(function, read: bool) -> None:
    """Where it does no CUDA graph can be captured."""
    with float64() as mode:
        function(torch.randn(5, dtype=torch.float64))
    assert mode.read is read


def test_a_copy_to_another_device_is_read() -> None:
    with float64() as mode, torch.device("meta"):
        torch.ones(3, device="cpu").to("meta")
    assert mode.read
