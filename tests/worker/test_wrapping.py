"""What is done to a reference to make a baseline of it."""

from __future__ import annotations

import pytest
import torch

from kernelproof.worker import wrapping


def test_a_plain_one_is_itself() -> None:
    module = torch.nn.ReLU()
    assert wrapping.wrapped(module, None) == (module, module)


def test_what_makes_graphs_is_captured_without(monkeypatch) -> None:
    made = []
    monkeypatch.setattr(torch, "compile", lambda module, mode=None: made.append(mode) or mode)
    assert wrapping.wrapped("m", "compile") == (None, None)
    assert wrapping.wrapped("m", "compile max-autotune") == (
        "max-autotune", "max-autotune-no-cudagraphs",
    )  # fmt: skip
    graphed, captured = wrapping.wrapped("m", "graph")
    assert isinstance(graphed, wrapping.Graphed) and captured == "m"
    with pytest.raises(ValueError, match="no wrapping 'x'"):
        wrapping.wrapped("m", "x")


def test_a_graph_reads_copies_of_its_inputs(monkeypatch) -> None:
    one = wrapping.Graphed(None)

    class Replays:
        def replay(self) -> None:
            one.output = one.inputs[0] * one.inputs[1]["n"]

    one.inputs, one.graph = [torch.zeros(2), {"n": torch.zeros(2)}], Replays()
    given = torch.tensor([1.0, 2.0]), {"n": torch.tensor([3.0, 4.0])}
    assert one(*given).tolist() == [3, 8]
    assert one.inputs[0] is not given[0]


def allowed() -> tuple[bool, bool]:
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


def test_precision_is_set_or_left() -> None:
    before = allowed()
    try:
        wrapping.precision(None)
        assert allowed() == before
        wrapping.precision(True)
        assert allowed() == (True, True)
        wrapping.precision(False)
        assert allowed() == (False, False)
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
