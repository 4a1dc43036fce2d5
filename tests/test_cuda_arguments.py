"""How arguments reach a kernel: bytes at the offsets of its parameters."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import numpy as np
import pytest
import torch

from kernelproof.cuda_launch import Packer
from kernelproof.tensor_map import TensorMap


def packed(args: list[Any], layout: list[tuple[int, int]]) -> bytes:
    memory = ctypes.create_string_buffer(max(offset + size for offset, size in layout))
    Packer(args, layout).pack(memory, args)
    return memory.raw


def test_arguments_take_the_size_of_their_parameter() -> None:
    x = torch.zeros(3)
    args = [x, 7, -2, 1.5, 2.5, True, None, np.float32(3), b"abcdefgh"]
    layout = [(0, 8), (8, 4), (16, 8), (24, 4), (32, 8), (40, 1), (48, 8), (56, 4), (60, 8)]
    found = packed(args, layout)
    assert len(found) == 68
    values = struct.unpack("<Qi4xqf4xd?7xQf8s", found)
    assert values == (x.data_ptr(), 7, -2, 1.5, 2.5, True, 0, 3.0, b"abcdefgh")


def test_a_truth_value_is_as_wide_as_its_parameter() -> None:
    layout = [(0, 4), (4, 4), (8, 1), (9, 1)]
    assert struct.unpack("<iibb", packed([True, 5, False, 7], layout)) == (1, 5, 0, 7)


def test_another_tensor_at_the_same_place() -> None:
    x, y = torch.zeros(3), torch.zeros(3)
    memory = ctypes.create_string_buffer(8)
    packer = Packer([x], [(0, 8)])
    for tensor in (x, y):
        packer.pack(memory, [tensor])
        assert struct.unpack("<Q", memory.raw)[0] == tensor.data_ptr()


@pytest.mark.parametrize(
    ("args", "layout", "words"),
    [
        ([1], [(0, 4), (4, 4)], "takes 2 arguments, 1 given"),
        ([b"abc"], [(0, 8)], "argument 0 has 3 bytes, the kernel's parameter 8"),
        ([1], [(0, 16)], "argument 0 is 1, and the kernel's parameter has 16 bytes"),
        (["x"], [(0, 8)], "argument 0 is 'x'"),
        ([torch.zeros(1), 1], [(0, 4), (4, 4)], "the kernel's parameter has 4 bytes"),
        ([None, 1], [(0, 4), (4, 4)], "argument 0 is None, and the kernel's parameter has 4 bytes"),
    ],
)
def test_arguments_that_do_not_fit(args: list[Any], layout: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        packed(args, layout)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (dict(strides=(24,)), r"multiples of 16 bytes, got .* and \(24,\)"),
        (dict(box=(257, 1)), "each side may have 1 to 256"),
        (dict(tensor=torch.zeros(16, 16, dtype=torch.float64)), "a tensor map of torch.float64"),
    ],
)
def test_tensor_maps_that_the_copy_engine_cannot_take(change: Any, words: str) -> None:
    pytest.importorskip("cuda.bindings.driver")
    made = TensorMap(torch.zeros(16, 16, dtype=torch.bfloat16), (16, 16), (32,), (16, 16))
    with pytest.raises(ValueError, match=words):
        made._replace(**change).encoded()


@pytest.mark.gpu
def test_gpu_tensor_map_has_128_bytes() -> None:
    tensor = torch.zeros(64, 64, dtype=torch.bfloat16, device="cuda")
    made = TensorMap(tensor, (64, 64), (128,), (64, 32))
    assert len(made.encoded()) == 128 and made.encoded() != made._replace(box=(32, 32)).encoded()


@pytest.mark.gpu
def test_gpu_maps_by_address_are_those_of_the_bindings() -> None:
    for dtype in (torch.bfloat16, torch.int8):
        tensors = [torch.zeros(2, 64, 64, dtype=dtype, device="cuda") for _ in range(3)]
        size = tensors[0].element_size()
        sizes, strides, box = (64, 64, 2), (64 * size, 64 * 64 * size), (32, 8, 1)
        maps = [TensorMap(t, sizes, strides, box, 64, 128) for t in tensors]
        encode = maps[0].encoder()
        assert [encode(t.data_ptr()) for t in tensors] == [made.encoded() for made in maps]
        assert len(set(map(encode, (t.data_ptr() for t in tensors)))) == 3
        with pytest.raises(ValueError, match="refuses the address"):
            encode(tensors[0].data_ptr() + 1)
