"""The reader of cubins against the assembler's own words, and on files that are none."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelproof.errors import UnsupportedError, UsageError
from kernelproof.inspect import cubin
from kernelproof.inspect.assemble import kernels_of
from kernelproof.inspect.compile import Compiled, source_file, verbose
from kernelproof.inspect.devices import find

EMULATED = Path(__file__).parents[1] / "emulate" / "kernels"
Zoo = Callable[..., Compiled]


def figures(kernel: cubin.Resources) -> dict[str, int | None]:
    """What ``ptxas -v`` tells too, under the same names."""
    return {
        "registers": kernel.registers, "barriers": kernel.barriers, "shared": kernel.shared,
        "stack": kernel.stack, "spill_stores": kernel.spill_stores,
        "spill_loads": kernel.spill_loads,
    }  # fmt: skip


def agree(made: Compiled) -> int:
    """Compare every kernel with ``ptxas -v``; returns how many there are."""
    told = verbose(made.said)
    read = {kernel.symbol: figures(kernel) for kernel in cubin.read(made.cubin).kernels}
    assert read == told
    return len(read)


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a"])
def test_figures_are_those_of_the_assembler(zoo: Zoo, arch: str) -> None:
    assert agree(zoo(arch)) == 14
    assert cubin.read(zoo(arch).cubin).arch == int(arch[3:].rstrip("a"))


def test_so_they_are_from_nvcc(zoo: Zoo) -> None:
    assert agree(zoo("sm_90a", "nvcc")) == 14


def test_and_for_the_kernels_of_the_emulators_tests() -> None:
    try:
        count = sum(agree(source_file(p, "sm_90a", "nvrtc")) for p in sorted(EMULATED.glob("*.cu")))
    except UnsupportedError as error:
        pytest.skip(error.message)
    assert count >= len(list(EMULATED.glob("*.cu"))) > 10


def test_the_comparison_would_see_a_difference(zoo: Zoo) -> None:
    made = zoo()
    changed = made.said.replace(" bytes spill stores", "0 bytes spill stores")
    with pytest.raises(AssertionError):
        agree(Compiled(made.cubin, made.compiler, changed))


def test_spills_are_told_from_arrays(zoo: Zoo) -> None:
    kernels = {k.symbol: k for k in cubin.read(zoo().cubin).kernels}
    spills, array = kernels["spills"], kernels["local_array"]
    assert spills.spill_stores and spills.spill_loads and not spills.local_accesses
    assert array.local_accesses and array.stack == 256
    assert (array.spill_stores, array.spill_loads) == (0, 0)
    assert spills.block_limit == 256 and array.block_limit is None


def as_of_old(code: bytes) -> bytes:
    """The cubin as compilers before CUDA 12.8 made it: they wrote no marks at spills."""
    marks, version = struct.pack("<BB", 4, 0x55), struct.pack("<BBH", 4, 0x37, 4)
    assert marks in code and version in code
    data = bytearray(code.replace(marks, struct.pack("<BB", 4, 0x7F)))
    at = data.find(version)
    while at >= 0:
        data[at + 4 : at + 8] = struct.pack("<I", 126)
        at = data.find(version, at + 4)
    return bytes(data)


def test_an_older_compilers_spills_are_unknown_or_the_assemblers(zoo: Zoo) -> None:
    made, device = zoo(), find("h200")
    old = as_of_old(made.cubin)
    kernel = next(k for k in kernels_of(old, device) if k.symbol == "spills")
    assert kernel.spill_stores is None and kernel.local_accesses
    assert "before CUDA 12.8" in kernel.spills_from
    kernel = next(k for k in kernels_of(old, device, spoken=made.said) if k.symbol == "spills")
    now = next(k for k in kernels_of(made.cubin, device) if k.symbol == "spills")
    assert (kernel.spill_stores, kernel.spills_from) == (now.spill_stores, "ptxas -v")
    single = next(k for k in kernels_of(old, device) if k.symbol == "single")
    assert single.spill_stores == 0  # what does not touch local memory has none


@pytest.mark.parametrize(
    ("data", "words"),
    [(b"// a source", "no ELF64 file"), (b"", "no ELF64 file"),
     (b"\x50\xed\x55\xba" + bytes(80), "a fat binary"),
     (b"\x7fELF\x02" + bytes(80), "another machine")],
)  # fmt: skip
def test_what_is_no_cubin_is_named(data: bytes, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        cubin.read(data)


def test_broken_cubins_are_usage_errors(zoo: Zoo) -> None:
    code = zoo().cubin
    draw = random.Random(0)
    refused = 0
    for trial in range(300):
        data = bytearray(code)
        if trial % 3 == 0:
            data = data[: draw.randrange(64, len(data))]
        for _ in range(20):
            data[draw.randrange(20, len(data))] = draw.randrange(256)
        try:
            cubin.read(bytes(data))
        except UsageError:
            refused += 1
    assert refused > 100


def test_a_cubin_for_another_gpu_says_which(zoo: Zoo) -> None:
    with pytest.raises(UsageError, match=r"a cubin for sm_80, and NVIDIA H200 is sm_90; .*sm_80"):
        kernels_of(zoo("sm_80").cubin, find("h200"))
