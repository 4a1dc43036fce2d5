"""Answers of workers that are none: a crash of the candidate, whatever is wrong with them."""

from __future__ import annotations

import math

import pytest

from kernelproof import forms
from kernelproof.errors import CandidateCrash

CALL = {
    "output": None, "mutated": [0], "views_input": [[0, 1]], "reused": [], "overrun": [[0, "a"]],
    "overlaps": [[0, 0]], "devices": ["cpu"], "emulated": None, "refused": [],
    "draws": False,
}  # fmt: skip
EMULATED = {"launches": 1, "errors": [], "notes": ["slow"], "apart": [0]}
TRACED = {
    "tripwires": {"patched": [], "seen": [], "opened": [], "threads": 0, "settings": []},
    "profile": {"seconds": 1e-3, "library": 0.0, "names": []},
}


def test_answers_are_taken_as_they_are() -> None:
    assert forms.read("call", CALL, forms.CALL) == CALL
    assert forms.read("call", {**CALL, "emulated": EMULATED}, forms.CALL)["emulated"] == EMULATED
    assert forms.read("traced", TRACED, forms.TRACED) == TRACED
    assert forms.read("traced", {**TRACED, "profile": None}, forms.TRACED)["profile"] is None
    assert "pass" not in forms.read("call", {**CALL, "pass": True}, forms.CALL)


@pytest.mark.parametrize(
    "wrong",
    [
        {"mutated": ["x"]}, {"mutated": [True]}, {"mutated": [-1]}, {"mutated": 5},
        {"mutated": [1 << 70]}, {"views_input": [0]}, {"reused": [[0]]}, {"overrun": [[0]]},
        {"overrun": [["x", "y"]]}, {"overlaps": [[0, 1, 2]]}, {"devices": [5]},
        {"devices": None}, {"emulated": {}}, {"emulated": {**EMULATED, "errors": [1]}},
        {"refused": {}}, {"draws": 1},
    ],
)  # fmt: skip
def test_of_another_form_they_are_nonsense(wrong: dict[str, object]) -> None:
    with pytest.raises(CandidateCrash, match="nonsense in answer to 'call'"):
        forms.read("call", {**CALL, **wrong}, forms.CALL)


def test_profiles_and_times_are_looked_at_too() -> None:
    for seconds in (math.nan, math.inf, "1", None):
        profile = {"seconds": seconds, "library": 0.0, "names": []}
        with pytest.raises(CandidateCrash, match="'traced'"):
            forms.read("traced", {**TRACED, "profile": profile}, forms.TRACED)
    with pytest.raises(CandidateCrash, match="'prepare'"):
        forms.read("prepare", {"first": 1.0, "host": 1.0, "graph": 1.5, "problem": ""},
                   forms.PREPARED)  # fmt: skip


def test_words_are_such_as_can_be_printed() -> None:
    told = forms.read("call", {**CALL, "devices": ["cpu\x1b[2J\udcff"]}, forms.CALL)
    assert told["devices"] == [r"cpu\x1b[2J\udcff"]
