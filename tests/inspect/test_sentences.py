"""For each rule a kernel (or a call) of which it speaks, with its figures, and one of which not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kernelproof.inspect import limits, sentences, tools
from kernelproof.inspect.assemble import kernels_of
from kernelproof.inspect.compile import Compiled
from kernelproof.inspect.devices import find
from kernelproof.inspect.facts import Call, Facts, Measured
from kernelproof.types import KernelFacts, Launch

H200 = find("h200")
Zoo = Callable[..., Compiled]
needs_sass = pytest.mark.skipif(
    tools.find("nvdisasm") is None, reason="no nvdisasm: pip install nvidia-cuda-nvdisasm"
)


def launch(grid: int, block: int, shared: int = 0, **more: Any) -> Launch:
    return Launch(grid=(grid, 1, 1), block=(block, 1, 1), shared=shared, **more)


def kernel(zoo: Zoo, name: str, how: Launch | None = None) -> KernelFacts:
    launches = {name: how} if how is not None else None
    return kernels_of(zoo().cubin, H200, names={name: name}, launches=launches)[0]


FLOATS = {"dtypes": ("float32",)}
# Rule, then the kernel and launch of which it speaks and how, then those of which it does not.
RESOURCES = [
    ("cannot launch", "spills", launch(1000, 512), "512 threads per block, and .* at most 256",
     "spills", launch(1000, 256)),
    ("cannot launch", "dynamic_shared", launch(1000, 128, 230 << 10), "230 KiB of shared memory "
     "exceeds its shared memory", "dynamic_shared", launch(1000, 128, 200 << 10)),
    ("opt-in", "dynamic_shared", launch(1000, 128, 64 << 10, opted_in=False),
     "64.0 KiB of shared memory per block is above the 48.0 KiB", "dynamic_shared",
     launch(1000, 128, 64 << 10, opted_in=True)),
    ("opt-in", "dynamic_shared", launch(1000, 128, 49 << 10, opted_in=False), "49.0 KiB",
     "dynamic_shared", launch(1000, 128, 48 << 10, opted_in=False)),
    ("spills", "spills", None, r"\d+ bytes stored and \d+ loaded per thread at 64 registers",
     "no_spills", None),
    ("local arrays", "local_array", None, r"\d+ accesses, 256 bytes of stack", "spills", None),
    ("too few blocks", "single", launch(40, 128), "40 for 132 multiprocessors leave 70 %",
     "single", launch(132, 128)),
    ("short last wave", "single", launch(2113, 128), "2113 blocks run in 2 waves of 2112, and 50 %",
     "single", launch(4200, 128)),
    ("low occupancy", "no_spills", launch(1000, 256), r"25 % \(16 of 64 warps\), limited by "
     r"\d+ registers per thread; it matters", "single", launch(1000, 256)),
    ("low occupancy", "dynamic_shared", launch(132, 128, 100 << 10), "12 % .*100 KiB of shared "
     "memory per block; it does not matter here: the grid has 1 block per", "dynamic_shared",
     launch(1000, 256, 16 << 10)),
    ("idle lanes", "single", launch(1000, 100), "100 threads are no multiple of 32, so 28 of 128",
     "single", launch(1000, 96)),
]  # fmt: skip
INSTRUCTIONS = [
    ("double precision", "doubled", launch(1000, 128, **FLOATS), r"\d+ instructions, and no",
     "single", launch(1000, 128, **FLOATS)),
    ("double precision", "doubled", launch(1000, 128, **FLOATS), "no argument is float64",
     "doubled", launch(1000, 128, dtypes=("float32", "float64"))),
    ("narrow loads", "narrow", None, "1 of 1 loads of global memory take at most 4 bytes",
     "wide", None),
    ("many barriers", "many_barriers", launch(1000, 256), r"2 in loops of \d+ instructions",
     "few_barriers", launch(1000, 256)),
    ("many barriers", "many_barriers", launch(1000, 64), "one for every", "many_barriers",
     launch(1000, 32)),
]  # fmt: skip


def spoken(zoo: Zoo, rule: str, name: str, how: Launch | None) -> str:
    found = next(r for r in sentences.RULES if r.name == rule)
    return found.sentence(Facts(kernel(zoo, name, how), H200))


@pytest.mark.parametrize(("rule", "name", "how", "words", "other", "other_how"), RESOURCES)
def test_rules_on_resources_and_launches(
    zoo: Zoo, rule: str, name: str, how: Any, words: str, other: str, other_how: Any
) -> None:
    import re

    assert re.search(words, spoken(zoo, rule, name, how)), spoken(zoo, rule, name, how)
    assert spoken(zoo, rule, other, other_how) == ""


@needs_sass
@pytest.mark.parametrize(("rule", "name", "how", "words", "other", "other_how"), INSTRUCTIONS)
def test_rules_on_instructions(
    zoo: Zoo, rule: str, name: str, how: Any, words: str, other: str, other_how: Any
) -> None:
    test_rules_on_resources_and_launches(zoo, rule, name, how, words, other, other_how)


# What was measured of a call, and what is said of it. 2 MB and 1 GFLOP need 0.5 us and 20 us.
WORK = {"bytes": 2e6, "flops": 1e9, "bandwidth": 4e12, "rate": 5e13}
MOVING = {"bytes": 80e6, "flops": 1e8, "bandwidth": 4e12, "rate": 5e13}
CALLS = [
    ("below the floor", {"seconds": 15e-6, **WORK}, "15.0 us is below the 20.0 us",
     {"seconds": 21e-6, **WORK}),
    ("launch-bound", {"seconds": 6.5e-6, "launch_floor": 4.2e-6}, "4.20 us of 6.50 us is what an "
     "empty launch takes, and the call makes one launch; fusing further cannot",
     {"seconds": 6.5e-6, "launch_floor": 3e-6}),
    ("memory-bound", {"seconds": 25e-6, **MOVING}, "at 80 % of", {"seconds": 40e-6, **MOVING}),
    ("compute-bound", {"seconds": 25e-6, **WORK}, "at 80 % of", {"seconds": 25e-6, **MOVING}),
    ("far from the floor", {"seconds": 60e-6, **WORK}, "60.0 us is 3.00x the 20.0 us",
     {"seconds": 30e-6, **WORK}),
    ("far from the floor", {"seconds": 60e-6, **WORK}, "waits",
     {"seconds": 60e-6, "launch_floor": 40e-6, **WORK}),
]  # fmt: skip


def of_call(rule: str, zoo: Zoo, measured: dict[str, float], *names: str) -> str:
    kernels = tuple(kernel(zoo, name, launch(1000, 128)) for name in names or ("single",))
    found = next(r for r in limits.RULES if r.name == rule)
    return found.sentence(Call(kernels, H200, Measured(**measured)))


@pytest.mark.parametrize(("rule", "measured", "words", "other"), CALLS)
def test_rules_on_a_call(zoo: Zoo, rule: str, measured: Any, words: str, other: Any) -> None:
    assert words in of_call(rule, zoo, measured)
    assert of_call(rule, zoo, other) == ""
    assert of_call(rule, zoo, {}) == ""


def test_several_launches_are_to_be_fused(zoo: Zoo) -> None:
    times = {"seconds": 6.5e-6, "launch_floor": 4.2e-6}
    text = of_call("launch-bound", zoo, times, "single", "narrow")
    assert "makes 2 launches; fuse the kernels" in text


@needs_sass
def test_products_of_matrices_without_tensor_cores(zoo: Zoo) -> None:
    work = {"flops": 1e9, "matrix_flops": 9e8}
    text = of_call("no tensor cores", zoo, work, "matmul")
    assert "90 % of the FLOPs" in text and "plain multiply-adds and no mma" in text
    assert of_call("no tensor cores", zoo, work, "matmul_mma", "matmul") == ""
    assert of_call("no tensor cores", zoo, {"flops": 1e9, "matrix_flops": 4e8}, "matmul") == ""


def test_every_rule_has_a_test() -> None:
    tested = {row[0] for row in (*RESOURCES, *INSTRUCTIONS, *CALLS)} | {"no tensor cores"}
    assert tested == {rule.name for rule in (*sentences.RULES, *limits.RULES)}


def test_an_easy_kernel_gets_no_sentence(zoo: Zoo) -> None:
    assert kernel(zoo, "wide", launch(1056, 256, **FLOATS)).sentences == ()
