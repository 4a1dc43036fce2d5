"""What a candidate returns is read without running its code."""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernelproof.worker import nests, wire
from kernelproof.worker.inputs import leaves_of


class Refuses:
    """In the place of anything that Python calls by itself."""

    def _refuse(self, *_):
        raise AssertionError("code of the candidate ran")

    __iter__ = __len__ = __hash__ = __eq__ = __str__ = __repr__ = __getitem__ = _refuse
    items = values = keys = _refuse
    __class__ = property(_refuse)  # type: ignore[assignment]


class OddTuple(Refuses, tuple):
    pass


class OddList(Refuses, list):
    pass


class OddDict(Refuses, dict):
    pass


class OddText(Refuses, str):
    pass


class OddInt(Refuses, int):
    pass


class OddFloat(Refuses, float):
    pass


class Key(str):
    """Can be in a dict, whose making hashes it."""

    def __str__(self) -> str:
        raise AssertionError("code of the candidate ran")


class Pair(NamedTuple):
    first: torch.Tensor
    second: int


def test_no_code_of_a_class_runs() -> None:
    x = torch.ones(2)
    value = OddTuple(
        (OddList([x, OddInt(3)]), OddDict({Key("a"): OddFloat(0.5)}), OddText("b"), Refuses())
    )
    plain = nests.rebuilt(value, nests.plain)
    assert plain[:3] == ([x, 3], {"a": 0.5}, "b")
    assert [type(leaf) for leaf in (*plain, plain[0][1], plain[1]["a"])][:3] == [list, dict, str]
    assert list(leaves_of(value)) == [x]
    buffers: list = []
    text = wire.encode(value, buffers)
    told = wire.decode(text, buffers)
    assert torch.equal(told[0][0], x) and told[0][1] == 3 and told[1:3] == ({"a": 0.5}, "b")
    assert isinstance(told[3], wire.Foreign)


def test_what_honest_modules_return_comes_through() -> None:
    x = torch.ones(2)
    value = {"pair": Pair(x, 2), "most": torch.max(torch.ones(2, 3), 0), "list": [True, None, 1.5]}
    plain = nests.rebuilt(value, lambda leaf: leaf)
    assert plain["pair"] == (x, 2) and type(plain["pair"]) is tuple
    assert len(plain["most"]) == 2 and plain["list"] == [True, None, 1.5]


def test_keys_that_are_no_text_are_told_as_text() -> None:
    assert nests.pairs({1: "a", None: "b", (1, 2): "c"}) == [
        ("1", "a"), ("None", "b"), ("<tuple>", "c"),
    ]  # fmt: skip
