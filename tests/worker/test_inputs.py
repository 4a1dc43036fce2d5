"""A worker's copy of the inputs: layout kept, and writes inside and outside told apart."""

from __future__ import annotations

import pickle

import pytest
import torch

from kernelproof.worker.inputs import Placed


def arrived(x: torch.Tensor) -> torch.Tensor:
    """As a worker receives it."""
    return pickle.loads(pickle.dumps(x, protocol=5))


BASE = torch.arange(24.0)


@pytest.mark.parametrize(
    "x",
    [
        BASE.view(4, 6),
        BASE.view(4, 6).t(),
        BASE.view(4, 6)[:, :4],
        BASE.view(4, 6)[1:, 1:],
        BASE[1:],
        BASE[::3],
        BASE[:6].expand(4, 6),
        BASE[:0],
        torch.tensor(3.0),
        torch.arange(24, dtype=torch.int8)[3:].view(3, 7),
        BASE.bfloat16()[5:],
        torch.complex(BASE, BASE).view(4, 6).t(),
        BASE > 5,
    ],
)
def test_values_strides_and_alignment_are_kept(x: torch.Tensor) -> None:
    placed = Placed([arrived(x)], "cpu")
    (given,) = placed.given
    assert torch.equal(given, x) and given.stride() == x.stride()
    assert given.data_ptr() % 64 == x.storage_offset() * x.element_size() % 64
    assert placed.mutated() == [] and placed.overrun() == []


def around(x: torch.Tensor, start: int, count: int) -> torch.Tensor:
    return torch.as_strided(x, (count,), (1,), x.storage_offset() + start)


@pytest.mark.parametrize(
    ("x", "place", "words"),
    [
        (BASE, 24, "1 element(s) past its end"),
        (BASE, 26, "3 element(s) past its end"),
        (BASE, -1, "1 element(s) before its start"),
        (BASE.view(4, 6)[:, :4], 5, "in the gaps between its rows"),
        (torch.arange(9, dtype=torch.int64), 9, "1 element(s) past its end"),
        (torch.complex(BASE, BASE), 24, "1 element(s) past its end"),
        (BASE > 90, 24, "1 element(s) past its end"),
    ],
)
def test_a_write_outside_is_seen_and_placed(x: torch.Tensor, place: int, words: str) -> None:
    placed = Placed([2, arrived(x)], "cpu")
    around(placed.given[1], place, 1).zero_()
    assert placed.overrun() == [[1, words]] and placed.mutated() == []


def test_a_write_inside_is_a_changed_input_and_no_overrun() -> None:
    placed = Placed([BASE.clone(), {"w": [BASE.clone()]}], "cpu")
    placed.given[1]["w"][0][3] = torch.nan
    assert placed.mutated() == [1] and placed.overrun() == []
    placed = Placed([BASE.view(4, 6)[:, :4]], "cpu")
    placed.given[0][0, 0] = 9
    assert placed.mutated() == [0] and placed.overrun() == []


def test_nan_is_no_change_and_a_new_shape_or_structure_is() -> None:
    assert Placed([torch.tensor([torch.nan])], "cpu").mutated() == []
    placed = Placed([BASE.view(4, 6).clone(), [1, 2], float("nan")], "cpu")
    placed.given[0].t_()
    placed.given[1].append(3)
    assert placed.mutated() == [0, 1]


def test_reading_outside_gives_nan_or_the_largest_integer() -> None:
    (x,) = Placed([BASE], "cpu").given
    assert around(x, -2, 2).isnan().all() and around(x, 24, 8).isnan().all()
    (i,) = Placed([torch.arange(4, dtype=torch.int32)], "cpu").given
    assert around(i, 4, 2).tolist() == [2**31 - 1] * 2


def test_large_inputs_go_to_the_device_once(monkeypatch) -> None:
    """Where a later copy is like one from here: not those with an offset, which a copy loses."""
    from types import SimpleNamespace

    from kernelproof.worker import inputs

    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=1 << 20)
    )
    monkeypatch.setattr(inputs, "_LARGE_BYTES", 1000)
    x = torch.randn(20, 30)
    given = [x, [x.t()], x.flatten()[1:], 5]
    # A second name of the CPU stands for the GPU.
    near = inputs.nearer(given, "cpu:0", 3)
    assert near[0] is not x and torch.equal(near[0], x) and near[1][0].stride() == (1, 30)
    assert near[2] is given[2] and near[3] == 5
    assert inputs.nearer(given, "cpu:0", 1) is given and inputs.nearer(given, "cpu", 3) is given
    monkeypatch.setattr(inputs, "_SHARE", 1 << 20)
    assert inputs.nearer(given, "cpu:0", 3) is given
