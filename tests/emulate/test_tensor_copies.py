"""Tensor copies and clusters beside plain formulas, element by element."""

from __future__ import annotations

import itertools
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC compiles the kernels")

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import ptx_case
import ptx_hopper
import ptx_tensor as hopper

from kernelproof import emulate
from kernelproof.emulate.image import Buffer
from kernelproof.emulate.tensor_maps import argument, decode
from kernelproof.errors import UnsupportedError

TILES = {case.name: case for case in hopper.tiles()}
CLUSTERS = {case.name: case for case in hopper.clusters()}
SIZE = {"u1": 1, "u2": 2, "f2": 2, "b2": 2, "u4": 4, "f4": 4, "f8": 8}


def places(m: ptx_case.TensorMapOf, store: bool = False) -> Any:
    """(byte in the tensor, or -1 outside; byte in shared memory) of each element of a box. Stores
    end at a multiple of 16 bytes."""
    ends = [-(-m.sizes[0] * SIZE[m.kind] // 16) * 16 // SIZE[m.kind] if store else m.sizes[0]]
    ends += m.sizes[1:]
    size, at = SIZE[m.kind], 0
    steps = (1, *(m.steps or (1,) * len(m.box))[1:])
    axes = [range(-(-n // s)) for n, s in zip(m.box, steps, strict=True)]
    for index in itertools.product(*axes[::-1]):
        where = [c + i * s for c, i, s in zip(m.corner, index[::-1], steps, strict=True)]
        inside = all(0 <= w < n for w, n in zip(where, ends, strict=True))
        byte = where[0] * size + sum(w * p for w, p in zip(where[1:], m.strides, strict=True))
        row = (at >> 7) & (max(m.swizzle, 16) // 16 - 1)
        yield (byte if inside else -1), at ^ row << 4
        at += size
        if index[-1] == m.box[0] - 1 and m.swizzle:
            at = -(-at // m.swizzle) * m.swizzle


@pytest.mark.parametrize("name", [n for n in TILES if "load" in n])
def test_a_box_comes_to_its_place(name: str) -> None:
    case = TILES[name]
    (given,), out = case.arrays()
    m, want = case.maps[0], bytearray(b"\xab" * out.nbytes)
    tensor, size = given.tobytes(), SIZE[m.kind]
    for byte, at in places(m):
        fill = b"\xf7\x7f" * (size // 2) if m.nan else bytes(size)
        want[at : at + size] = tensor[byte : byte + size] if byte >= 0 else fill
    assert ptx_case.emulated(case).tobytes() == bytes(want)


@pytest.mark.parametrize("name", [n for n in TILES if "store" in n])
def test_a_box_is_stored_where_it_is_inside(name: str) -> None:
    case = TILES[name]
    (given,), out = case.arrays()
    m, want = case.maps[0], bytearray(np.full(len(out), 7, np.uint32).tobytes())
    image, size = given.tobytes(), SIZE[m.kind]
    for byte, at in places(m, store=True):
        if byte >= 0:
            want[byte : byte + size] = image[at : at + size]
    assert ptx_case.emulated(case).tobytes() == bytes(want)


def test_a_box_beyond_its_tensor_stores_nothing() -> None:
    case = hopper.tile("beyond", "f4", (70, 20), (32, 16), (96, 10), store=True)
    assert set(ptx_case.emulated(case).tolist()) == {7}


def _reversed_pairs(x: Any) -> Any:
    return x.reshape(-1, 2, 128)[:, ::-1, ::-1]


EXPECTED = {
    "ld.shared::cluster": lambda x: x.reshape(-1, 2, 128)[:, ::-1],
    "st.shared::cluster": _reversed_pairs,
    "atom.shared::cluster": lambda x: 3 + x.reshape(-1, 2, 128)[:, ::-1] + 3,
    "mbarrier.arrive.remote": _reversed_pairs, "st.async": _reversed_pairs,
    "st.async.v2": _reversed_pairs, "st.async.v4": _reversed_pairs,
    "cp.async.bulk.shared::cluster.shared::cta": _reversed_pairs,
    "cp.async.bulk.global.shared::cta": lambda x: x,
    "ld.generic.mapa": lambda x: np.roll(x.reshape(2, 4, 128), -1, axis=1),
    "getctarank": lambda x: x.reshape(4, 128) ^ np.arange(128, dtype=np.uint32) % 4,
    "registers": lambda x: x.reshape(8, 128) ^ np.array(
        [[b % 4 + 8 * 4 + 64 * (b % 4) + 512 * 4 + 4096 * (b // 4) + 32768 * 2] for b in range(8)],
        np.uint32),
    "cp.async.bulk.multicast": lambda x: np.tile(
        np.concatenate((x[:64], x[128:192]))[::-1], (2, 1)),
    "tensor.load.multicast": lambda x: np.tile(x[:128][::-1], (2, 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", CLUSTERS)
def test_blocks_of_a_cluster_reach_each_other(name: str) -> None:
    case = CLUSTERS[name]
    (given,), _ = case.arrays()
    want = np.ascontiguousarray(EXPECTED[name](given)).reshape(-1)
    np.testing.assert_array_equal(ptx_case.emulated(case), want)


def test_every_cluster_case_has_a_formula() -> None:
    assert EXPECTED.keys() == CLUSTERS.keys()


@pytest.mark.parametrize("case", ptx_hopper.matrices(), ids=lambda c: c.name)
def test_stmatrix_puts_fragments_into_rows(case: ptx_case.Case) -> None:
    (given,), _ = case.arrays()
    count = int(case.name[10])
    want, halves = np.zeros(256, np.uint16), given.view(np.uint16)
    for n, lane, half in itertools.product(range(count), range(32), range(2)):
        row, column = lane // 4, 2 * (lane % 4) + half
        if case.name.endswith("trans"):
            row, column = column, row
        want[64 * n + 8 * row + column] = halves[64 * n + 2 * lane + half]
    assert ptx_case.emulated(case).tobytes() == want.tobytes()


# ---- maps


def _map(**changed: Any) -> emulate.TensorMap:
    how: dict[str, Any] = {
        "sizes": (64, 20), "strides": (128,), "box": (32, 8), "swizzle": 64, "dtype": "float16"
    }  # fmt: skip
    return emulate.TensorMap(np.zeros(64 * 20, np.float16), **{**how, **changed})


def test_a_map_says_what_it_was_told() -> None:
    found = decode(argument(_map(steps=(1, 3), nan=True)).data)
    assert found is not None
    assert (found.sizes, found.strides, found.box) == ((64, 20), (2, 128), (32, 8))
    assert (found.steps, found.nan, found.swizzle, found.element) == ((1, 3), True, 64, 2)
    assert decode(bytes(128)) is None


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"box": (33, 8)}, "66 bytes along the first axis"),
        ({"box": (64, 8)}, "more than the swizzle of 64"),
        ({"box": (32, 257)}, "from 1 to 256"),
        ({"strides": (120,)}, "multiples of 16"),
        ({"swizzle": 48}, "a swizzle of 48"),
        ({"sizes": (64, 0)}, "from 1 to 2"),
        ({"steps": (1, 9)}, "from 1 to 8"),
        ({"strides": (128, 128)}, "2 numbers in strides"),
        ({"dtype": "int8", "box": (64, 8), "nan": True}, "NaN outside"),
        ({"dtype": "complex64"}, "complex64; accepted are"),
    ],
)
def test_what_the_driver_refuses_is_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        argument(_map(**changed))


def test_an_offset_into_a_buffer_counts() -> None:
    whole = np.zeros(64 * 20 + 8, np.float16)
    how = {"sizes": (64, 20), "strides": (128,), "box": (32, 8)}
    argument(emulate.TensorMap(whole[8:], **how))
    with pytest.raises(ValueError, match="address 0x8 is no multiple of 16"):
        argument(emulate.TensorMap(whole[4:], **how))


def test_a_map_beyond_its_buffer_is_found() -> None:
    case = TILES["tensor.load.2d.f2.swizzle64"]
    arrays, out = case.arrays()
    m = case.maps[0]
    short = Buffer(arrays[0][:500].copy(), "short")
    given = emulate.TensorMap(short, m.sizes, m.strides, m.box, m.swizzle, dtype="float16")
    result = emulate.launch(case.source, "t", 1, 128, [arrays[0], out, given])
    assert {f.kind for f in result.errors} == {"out of bounds"}
    assert "past the end of the 2000 bytes of short" in str(result.errors[0])


@pytest.mark.parametrize(
    ("corner", "store", "kind", "words"),
    [
        ((3, 0), False, "misaligned", "3 along the first axis, 6 bytes"),
        ((-4, 0), True, "misaligned", "-8 bytes"),
        ((8, -3), True, "out of bounds", r"begins at \(8, -3\)"),
    ],
)
def test_corners_at_which_a_gpu_stops_are_found(
    corner: tuple[int, int], store: bool, kind: str, words: str
) -> None:
    case = hopper.tile("probe", "f2", (160, 40), (32, 16), corner, store=store)
    arrays, out = case.arrays()
    m, limits = case.maps[0], emulate.Limits(idle=300)
    tensor = out if store else arrays[0]
    given = emulate.TensorMap(tensor, m.sizes, m.strides, m.box, dtype="float16")
    result = emulate.launch(case.source, "t", 1, 128, [arrays[0], out, given], limits=limits)
    found = [f for f in result.errors if f.kind == kind]
    assert found and re.search(words, found[0].message)


def test_what_is_no_map_stops_with_its_line() -> None:
    case = TILES["tensor.load.2d.f2.swizzle64"]
    arrays, out = case.arrays()
    with pytest.raises(UnsupportedError, match=r"source.cu:\d+: no tensor map"):
        emulate.launch(case.source, "t", 1, 128, [arrays[0], out, bytes(128)])


def test_other_coordinates_than_axes_are_found() -> None:
    case = TILES["tensor.load.2d.f2.swizzle64"]
    arrays, out = case.arrays()
    given = emulate.TensorMap(arrays[0], (64,), (), (32,), dtype="float16")
    result = emulate.launch(
        case.source, "t", 1, 128, [arrays[0], out, given], limits=emulate.Limits(idle=500)
    )
    assert any("2 coordinates for a tensor map of 1 axes" in f.message for f in result.errors)


def test_a_grid_that_is_no_multiple_of_the_cluster_is_refused() -> None:
    case = CLUSTERS["ld.shared::cluster"]
    arrays, out = case.arrays()
    with pytest.raises(ValueError, match="not a multiple of the cluster"):
        emulate.launch(case.source, "t", 3, 128, [*arrays, out], cluster=2)
