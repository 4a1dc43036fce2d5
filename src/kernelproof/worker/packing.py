"""Pickles for workers, in which plain tensors are bytes with a shape.

torch's own pickle of a tensor goes through the format of its files, a third of a millisecond on
either side; a round of a timing sends hundreds of tensors.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from typing import Any


def packed(value: Any) -> bytes:
    """``value`` for `pickle.loads`. Of a tensor the whole storage goes, as by torch's own pickle:
    a view keeps its strides and its offset, and shares memory with no other."""
    import torch

    file = io.BytesIO()
    pickler = pickle.Pickler(file, protocol=5)
    pickler.dispatch_table = copyreg.dispatch_table.copy()
    # By exact type: what derives from a tensor goes torch's way.
    pickler.dispatch_table[torch.Tensor] = _reduced
    pickler.dump(value)
    return file.getvalue()


def _reduced(tensor: Any) -> Any:
    import torch

    plain = (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not tensor.requires_grad
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not vars(tensor)
    )
    if not plain:
        return tensor.__reduce_ex__(5)
    data = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy().tobytes()
    where = tensor.storage_offset(), tuple(tensor.shape), tensor.stride()
    return unpacked, (data, tensor.dtype, *where)


def unpacked(data: bytes, dtype: Any, offset: int, shape: Any, stride: Any) -> Any:
    """The tensor, in memory of its own."""
    import torch

    whole = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0)
    return torch.empty(0, dtype=dtype).set_(whole.untyped_storage(), offset, shape, stride)
