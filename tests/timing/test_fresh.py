"""Inputs of the timing, and which outputs are looked at."""

from __future__ import annotations

from kernelproof.timing.fresh import Drawn, Fresh
from kernelproof.timing.picks import Picks


def fresh(size: int, cuda: bool = False) -> Fresh:
    return Fresh(lambda seed: [seed], lambda _: size, 5, cuda)


def test_each_round_has_inputs_of_its_own_and_all_contestants_the_same() -> None:
    source = fresh(1000)
    first, again = source.sets(0, 3), source.sets(0, 5)
    assert first == again[:3] and len(again) == 5
    other = source.sets(1, 5)
    assert not {s.seed for s in other} & {s.seed for s in again}
    assert other[0].inputs == [other[0].seed]


def test_large_inputs_are_few() -> None:
    assert fresh(1 << 30).most == 1
    assert fresh(1 << 24).most == 2
    assert 2 <= fresh(1, cuda=True).most <= 8


def test_on_a_gpu_large_inputs_are_renewed_seldom() -> None:
    source = fresh(1 << 30, cuda=True)
    seeds = [source.sets(number, 1)[0].seed for number in range(17)]
    assert len(set(seeds)) == 3


def test_on_a_gpu_each_clock_of_single_calls_has_contents_of_its_own() -> None:
    source = fresh(1000, cuda=True)
    parts = [{s.seed for s in source.sets(3, 8, part)} for part in range(3)]
    assert all(len(part) == source.most for part in parts) and source.most >= 2
    assert len(set.union(*parts)) == 3 * source.most
    # The same for the next contestant; others in the next round.
    assert {s.seed for s in source.sets(3, 8, 2)} == parts[2]
    assert not {s.seed for s in source.sets(4, 8, 2)} & set.union(*parts)
    # Where they are large, all share those that are sent seldom.
    large = fresh(1 << 24, cuda=True)
    assert [s.seed for s in large.sets(0, 2, 0)] == [s.seed for s in large.sets(0, 2, 2)]


def taken(calls: int, kept: int, sets: int) -> set[tuple[int, bool]]:
    """(seed of the inputs, whether others ran before) of every output that can be picked."""
    found = set()
    drawn = [Drawn(seed, []) for seed in range(sets)]
    for _ in range(200):
        picks = Picks(lambda _: 1)
        # Output number i of the last `kept` calls came of the inputs on which that call ran.
        picks.take("host", calls, 0, drawn, kept, lambda i: (calls - kept + i) % sets)
        (pick,) = picks.held
        assert pick.output == pick.seed
        found.add((pick.seed, pick.again))
    return found


def test_any_output_may_be_picked() -> None:
    assert taken(3, 3, 3) == {(0, False), (1, False), (2, False)}
    assert taken(7, 3, 3) == {(0, True), (1, True), (2, True)}


def test_few_are_held() -> None:
    picks = Picks(lambda _: 1)
    for number in range(200):
        picks.take("host", 1, number, [Drawn(number, [])], 1, lambda _: 0)
    assert len(picks.held) == 40
    assert max(pick.number for pick in picks.held) > 40
