"""Graphs of the reference, with a tape in place of CUDA's: operations are noted and done again."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kernelproof.check import models, replay
from kernelproof.check.reference import ReferenceModel
from kernelproof.check.replay import Replays, same_bits


class Tape(TorchDispatchMode):
    """As `torch.cuda.CUDAGraph`: each result stays where it was when noted."""

    def __init__(self):
        super().__init__()
        self.steps = []
        self.replayed = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("operation not permitted when stream is capturing")
        result = func(*args, **(kwargs or {}))
        self.steps.append((func, args, kwargs or {}, result))
        return result

    def replay(self):
        self.replayed += 1
        for func, args, kwargs, result in self.steps:
            again = func(*args, **kwargs)
            for into, value in zip(tree_leaves(result), tree_leaves(again), strict=True):
                if into.data_ptr() != value.data_ptr():
                    into.copy_(value)


@pytest.fixture(autouse=True)
def taped(monkeypatch):
    @contextlib.contextmanager
    def capture(tape, **_):
        with tape:
            yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Tape)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: "the caller's")
    left = []
    monkeypatch.setattr(torch.cuda, "set_stream", left.append)
    monkeypatch.setattr(replay, "_abandoned", [])
    return left


def steps(x, y):
    total = torch.zeros_like(x)
    for row in y.unbind():
        total = total * 0.5 + row * x
    return {"total": total, "first": total[0]}


def inputs(seed, shape=(3,)):
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=draw), torch.randn((4, *shape), generator=draw)]


def ran(replays, function, given, fit=True):
    """One run as `ReferenceModel` makes it: what came, and whether of a graph."""
    form = replays.of(given)
    if form.trusted:
        output = form.replay(given)
        if output is not None:
            return output, True
    output = function(*given)
    form.ran(given, output, fit)
    return output, False


EAGER = replay._EAGER_RUNS + replay._CONFIRMATIONS


def all_ran(function, times=EAGER + 4, **words):
    replays = Replays(function)
    return [ran(replays, function, inputs(seed), **words) for seed in range(times)]


def test_a_graph_takes_over_and_answers_for_new_inputs():
    found = all_ran(steps)
    assert [graph for _, graph in found] == [False] * EAGER + [True] * 4
    for seed, (output, _) in enumerate(found):
        wanted = steps(*inputs(seed))
        assert all(same_bits(output[key], wanted[key]) for key in wanted)


def test_outputs_of_a_graph_have_memory_of_their_own():
    replays = Replays(steps)
    *_, (before, _) = [ran(replays, steps, inputs(seed)) for seed in range(EAGER + 1)]
    kept = before["total"].clone()
    ran(replays, steps, inputs(99))
    assert torch.equal(before["total"], kept)


def test_each_form_has_a_graph_of_its_own():
    replays = Replays(steps)
    for seed in range(EAGER):
        ran(replays, steps, inputs(seed))
    assert not ran(replays, steps, inputs(0, (5,)))[1]
    assert not ran(replays, steps, [inputs(0)[0].double(), inputs(0)[1]])[1]
    assert ran(replays, steps, inputs(0))[1]


def test_an_argument_that_is_no_tensor_is_part_of_the_form():
    def scaled(x, factor):
        return x * factor

    replays = Replays(scaled)
    for _ in range(EAGER):
        ran(replays, scaled, [torch.ones(2), 2.0])
    assert ran(replays, scaled, [torch.ones(2), 2.0])[1]
    assert not ran(replays, scaled, [torch.ones(2), 3.0])[1]


class Counting:
    """Remembers in Python how often it was called."""

    def __init__(self, period):
        self.calls = 0
        self.period = period

    def __call__(self, x, y):
        self.calls += 1
        return x * (1 + self.calls % self.period)


def synchronising(x, y):
    return x * 2 if float(x.sum()) > 0 else x


def writing(x, y):
    x += 1
    return x * 2


@pytest.mark.parametrize("function", [Counting(1000), Counting(2), synchronising])
def test_what_no_graph_can_repeat_stays_eager(function):
    assert not any(graph for _, graph in all_ran(function))


def test_a_failed_capture_leaves_its_graph_alive_and_the_stream_as_it_was(taped):
    """torch before 2.12 asks the graph at each allocation from then on, and goes on capturing's
    stream."""
    assert not any(graph for _, graph in all_ran(synchronising))
    assert [type(graph) for graph in replay._abandoned] == [Tape]
    assert taped == ["the caller's"]


def test_a_graph_that_cannot_be_replayed_gives_way(monkeypatch):
    replays = Replays(steps)
    *_, (_, graph) = [ran(replays, steps, inputs(seed)) for seed in range(EAGER + 1)]
    assert graph

    def refuses(_):
        raise RuntimeError("Offset increment outside graph capture encountered unexpectedly")

    monkeypatch.setattr(Tape, "replay", refuses)
    output, graph = ran(replays, steps, inputs(7))
    assert not graph and same_bits(output["total"], steps(*inputs(7))["total"])
    assert not replays.of(inputs(8)).trusted


def test_a_reference_that_changed_or_returned_its_inputs_stays_eager():
    assert not any(graph for _, graph in all_ran(steps, fit=False))


def test_a_graph_that_writes_to_its_inputs_is_given_up():
    replays = Replays(writing)
    for seed in range(EAGER + 2):
        given = inputs(seed)
        form = replays.of(given)
        assert not form.trusted
        # As if the eager runs had not written: what values decide may come late.
        form.ran(given, (given[0] + 1) * 2, True)


@pytest.mark.parametrize("wrong", [torch.tensor([0.0, -0.0]), torch.tensor([0.0, 0.0, 0.0])])
def test_bits_decide(wrong):
    assert same_bits(torch.zeros(2), torch.zeros(2))
    assert same_bits(torch.tensor(torch.nan), torch.tensor(torch.nan))
    assert not same_bits(torch.zeros(2), wrong)
    assert not same_bits(torch.zeros(2), torch.zeros(2, dtype=torch.float64))


def test_expanded_inputs_have_no_graph():
    assert Replays(steps).of([torch.zeros(1).expand(3), torch.zeros(4, 3)]) is None
    assert Replays(steps).of([object()]) is None


class Loop(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(3))

    def forward(self, x):
        for _ in range(120):
            x = x * self.weight + 0.25
        return x


def model_with_graph():
    model = ReferenceModel(Loop, [], {}, 3, "cpu")
    model._replays = Replays(model.model)  # a device's name decides, and this one is a CPU
    return model


def test_a_reference_model_answers_the_same_through_its_graph():
    model, plain = model_with_graph(), ReferenceModel(Loop, [], {}, 3, "cpu")
    for seed in range(EAGER + 3):
        x = torch.randn(3, generator=torch.Generator().manual_seed(seed))
        got, changed, views = model.run([x], seed)
        assert same_bits(got, plain.run([x], seed)[0])
        assert (changed, views) == ([], False)
    form = model._replays.of([x])
    assert form.trusted and form._graph.replayed >= 3


def test_a_graph_sees_other_weights():
    model = model_with_graph()
    x = torch.randn(3)
    for seed in range(EAGER):
        model.run([x], seed)
    state = {"weight": torch.full((3,), 0.125)}
    with model.holding(state):
        got = model.run([x], 0)[0]
    expected = ReferenceModel(Loop, [], {}, 3, "cpu")
    with expected.holding(state):
        assert same_bits(got, expected.run([x], 0)[0])
    assert model._replays.of([x]).trusted


def test_models_with_graphs_are_kept_and_few():
    models._kept.clear()
    models.keep("plain", ReferenceModel(Loop, [], {}, 3, "cpu"))
    assert models.kept("plain") is None
    made = [model_with_graph() for _ in range(4)]
    for number, model in enumerate(made):
        models.keep(number, model)
    assert [models.kept(number) for number in range(4)] == [None, *made[1:]]
    models.keep(1, made[1])
    models.keep(4, made[0])
    assert models.kept(1) is made[1] and models.kept(2) is None
    models._kept.clear()
