"""Pickles for workers, in which plain tensors are bytes with a shape.

torch's own pickle of a tensor goes through the format of its files, a third of a millisecond on
either side; a round of a timing sends hundreds of tensors.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from collections.abc import Callable
from typing import Any

from kernelproof.worker.segments import Segment, of_memory

# Storages of so many bytes go beside the pickle: gigabytes are not copied into it and out of it.
_BESIDE = 1 << 20


def packed(value: Any) -> bytes:
    """``value`` for `pickle.loads`. Of a tensor the whole storage goes, as by torch's own pickle:
    a view keeps its strides and its offset, and shares memory with no other."""
    return _pickled(value, None)


def parts(value: Any) -> list[bytes | memoryview | Segment]:
    """The same in parts: a pickle, and the large storages that it leaves out, which `whole` puts
    together again. They are the tensors' own memory, not a copy."""
    beside: list[bytes | memoryview | Segment] = []
    pickled = _pickled(value, lambda part: beside.append(of_memory(part.raw())))
    return [pickled, *beside]


def whole(received: list[Any]) -> Any:
    """The value of `parts`, as they were received; tensors take their memory."""
    return pickle.loads(received[0], buffers=received[1:])


def _pickled(value: Any, beside: Callable[[pickle.PickleBuffer], Any] | None) -> bytes:
    import torch

    file = io.BytesIO()
    pickler = pickle.Pickler(file, protocol=5, buffer_callback=beside)
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
    raw = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy()
    # Of the array itself: Python 3.11 crashes when it collects a memoryview that has a view of its
    # own, as an error's traceback may keep them.
    beside = raw.nbytes >= _BESIDE
    data = pickle.PickleBuffer(raw) if beside else raw.tobytes()  # type: ignore[arg-type]
    where = tensor.storage_offset(), tuple(tensor.shape), tensor.stride()
    return unpacked, (data, tensor.dtype, *where)


def unpacked(data: Any, dtype: Any, offset: int, shape: Any, stride: Any) -> Any:
    """The tensor, in memory of its own."""
    import torch

    own = bytearray(data) if isinstance(data, bytes) else data
    memory = torch.frombuffer(own, dtype=torch.uint8) if own else torch.empty(0)
    return torch.empty(0, dtype=dtype).set_(memory.untyped_storage(), offset, shape, stride)
