"""Frames between parent and worker: a JSON header and raw buffers.

A worker runs code that nobody trusts, so nothing that it sends is unpickled: values travel as JSON
and tensor contents as bytes. The parent's own messages may carry pickles, which only the worker
opens. Large buffers go through shared memory; see `segments`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any

from kernelproof import staging
from kernelproof.worker import nests, segments
from kernelproof.worker.segments import Segment

_HEAD = struct.Struct("<QI")  # length of the JSON text, number of buffers
_SIZE = struct.Struct("<Q")
_MAX_JSON = 1 << 28
_CHUNK = 1 << 20
_MOST_TEXT = 200_000
_MOST_DEPTH = 64
_MOST_AXES = 64  # that torch computes with
# Types with which it computes nothing.
_ODD_TYPES = re.compile(r"q|bits|float4|u?int[1-7]$")
_BESIDE = 1 << 63  # of a size: the buffer is a segment, whose descriptor comes with one byte

Buffer = bytes | memoryview | Segment


class Closed(Exception):
    """The other side is gone."""


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected sockets with room for a chunk, so that the two sides change places less often:
    16 MB there and back take 5 ms instead of 12. Linux gives less where it allows less."""
    both = socket.socketpair()
    for sock in both:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _CHUNK)
    return both


def send(
    sock: socket.socket, header: Any, buffers: Sequence[Buffer] = (), waits: bool = False
) -> None:
    """Send one frame. ``waits``: the other side copies segments and says so, after which their
    memory is used again; it must then receive without ``trusting``."""
    text = json.dumps(header).encode()
    sizes = b"".join(_SIZE.pack(len(b) | _flag(b)) for b in buffers)
    try:
        sock.sendall(_HEAD.pack(len(text), len(buffers)) + sizes + text)
        with segments.File() as kept:
            for buffer in buffers:
                if not isinstance(buffer, Segment):
                    sock.sendall(buffer)
                elif waits:
                    _send_segment(sock, buffer, kept)
                    if not sock.recv(1):
                        raise Closed
                else:
                    with segments.File() as own:
                        _send_segment(sock, buffer, own)
    except (BrokenPipeError, ConnectionResetError) as error:
        raise Closed from error


def _flag(buffer: Buffer) -> int:
    return _BESIDE if isinstance(buffer, Segment) else 0


def _send_segment(sock: socket.socket, segment: Segment, file: segments.File) -> None:
    """Where there is no such file to be had, the bytes follow the byte that has no descriptor."""
    try:
        segment.write(file)
    except OSError:
        sock.sendall(b"b")
        sock.sendall(segment.bytes())
        return
    socket.send_fds(sock, [b"f"], [file.fd])


def receive(
    sock: socket.socket, timeout: float | None = None, trusting: bool = False,
    most: int | None = None,
) -> tuple[Any, list[Any]]:  # fmt: skip
    """Receive one frame: its header, and a buffer for each that was sent. ``timeout`` in seconds
    covers the whole frame. ``trusting``: the other side writes to no segment afterwards. ``most``:
    bytes that its buffers may have in all; they are taken before anything is put into them.

    Raises:
        Closed: the other side has closed the connection.
        TimeoutError: no whole frame within ``timeout``.
        ValueError: what arrived is not a frame.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    length, count = _HEAD.unpack(_exactly(sock, _HEAD.size, deadline))
    if length > _MAX_JSON or count > 1 << 16:
        raise ValueError("not a frame")
    sizes = [_SIZE.unpack(_exactly(sock, _SIZE.size, deadline))[0] for _ in range(count)]
    total = sum(size & ~_BESIDE for size in sizes)
    if most is not None and total > most:
        raise ValueError(f"{total / 1e9:.3g} GB, and there is memory for {most / 1e9:.3g} GB")
    header = json.loads(bytes(_exactly(sock, length, deadline)))
    return header, [_buffer(sock, size, deadline, trusting) for size in sizes]


def _buffer(sock: socket.socket, size: int, deadline: float | None, trusting: bool) -> Any:
    if not size & _BESIDE:
        return _exactly(sock, size, deadline)
    size &= ~_BESIDE
    sock.settimeout(_left(deadline))
    try:
        mark, found, _, _ = socket.recv_fds(sock, 1, 1)
    except ConnectionResetError as error:
        raise Closed from error
    finally:
        with contextlib.suppress(OSError):
            sock.settimeout(None)
    try:
        if mark == b"b":
            return _exactly(sock, size, deadline)
        if not mark:
            raise Closed
        if not found:
            raise ValueError("not a frame: a segment without its descriptor")
        if trusting:
            return segments.in_place(found[0], size)
        return segments.copied(found[0], size)
    finally:
        for fd in found:
            os.close(fd)
        if not trusting:
            with contextlib.suppress(OSError):
                sock.sendall(b"c")


def _left(deadline: float | None) -> float | None:
    """Seconds until ``deadline``; raises TimeoutError past it."""
    if deadline is None:
        return None
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _exactly(sock: socket.socket, size: int, deadline: float | None) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    got = 0
    while got < size:
        sock.settimeout(_left(deadline))
        try:
            n = sock.recv_into(view[got : got + _CHUNK])
        except ConnectionResetError as error:
            raise Closed from error
        if n == 0:
            raise Closed
        got += n
    sock.settimeout(None)
    return data


def plain_text(value: Any) -> str:
    """``value`` as text for a terminal, a record, a page: a candidate chooses its words. Of what is
    not printable only line ends and tabs stay as they are, of what is long both ends."""
    text = str(value)
    if len(text) > _MOST_TEXT:
        left_out = len(text) - _MOST_TEXT
        half = _MOST_TEXT // 2
        text = f"{text[:half]}\n... {left_out} characters left out ...\n{text[-half:]}"
    return text if text.isprintable() else "".join(map(_printable, text))


def _printable(char: str) -> str:
    return char if char.isprintable() or char in "\n\t" else ascii(char)[1:-1]


def encode(value: Any, buffers: list[Buffer]) -> Any:
    """``value`` (a nest of tensors, numbers, text and None) as JSON; tensor bytes are appended to
    ``buffers``, those of large tensors that are equal only once. What does not fit is named by its
    type, for the parent to judge."""
    return _encoded(value, buffers, [])


def _encoded(value: Any, buffers: list[Buffer], large: list[tuple[int, Any]]) -> Any:
    """``large``: numbers of buffers that are segments, and what they will be filled from."""
    import torch

    if nests.is_a(value, torch.Tensor):
        return _encode_tensor(value, buffers, large)
    value = nests.plain(value)
    if value is None or type(value) in (bool, str):
        return {"k": "value", "v": value}
    if type(value) is int:
        return {"k": "int", "v": str(value)}
    if type(value) is float:
        return {"k": "float", "v": value if math.isfinite(value) else repr(value)}
    if nests.is_a(value, tuple, list):
        kind = "tuple" if nests.is_a(value, tuple) else "list"
        return {"k": kind, "v": [_encoded(item, buffers, large) for item in nests.items(value)]}
    if nests.is_a(value, dict):
        items = [[key, _encoded(v, buffers, large)] for key, v in nests.pairs(value)]
        return {"k": "dict", "v": items}
    return {"k": "other", "type": f"{type(value).__module__}.{type(value).__qualname__}"}


def decode(data: Any, buffers: Sequence[Any], depth: int = 0) -> Any:
    """The value that `encode` described, tensors on the CPU. On nonsense raises ValueError, or
    whatever reading it does. ``depth``: of the nest around it."""
    if depth > _MOST_DEPTH:
        raise ValueError(f"a nest of more than {_MOST_DEPTH} levels")
    kind = data.get("k") if isinstance(data, dict) else None
    if kind == "tensor":
        return _decode_tensor(data, buffers)
    if kind == "value":
        if not (data["v"] is None or isinstance(data["v"], (bool, str))):
            raise ValueError(f"not an encoded value: {data!r:.80}")
        return data["v"]
    if kind == "int":
        return int(data["v"])
    if kind == "float":
        return float(data["v"])
    if kind in ("tuple", "list"):
        items = [decode(item, buffers, depth + 1) for item in data["v"]]
        return tuple(items) if kind == "tuple" else items
    if kind == "dict":
        return {str(key): decode(item, buffers, depth + 1) for key, item in data["v"]}
    if kind == "other":
        return Foreign(plain_text(data["type"]))
    raise ValueError(f"not an encoded value: {data!r:.80}")


class Foreign:
    """Stands for an object that a worker returned and that is neither tensor nor plain value."""

    def __init__(self, type_name: str) -> None:
        self.type_name = type_name


def _encode_tensor(value: Any, buffers: list[Buffer], large: list[tuple[int, Any]]) -> Any:
    import torch

    described = {
        "k": "tensor",
        "type": f"{type(value).__module__}.{type(value).__qualname__}",
        "shape": [int(n) for n in torch.Tensor.size(value)],
        "dtype": str(value.dtype).removeprefix("torch."),
        "device": str(value.device),
        "grad": bool(value.requires_grad),
    }
    if value.layout is not torch.strided or type(value) is not torch.Tensor:
        return described
    # By torch's own function: a tensor may carry an attribute `detach` that computes first.
    plain = torch.Tensor.detach(value)
    described["buffer"] = len(buffers)
    if plain.numel() * plain.element_size() >= segments.LARGE_BYTES:
        flat = plain.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
        # What repeated calls return is compared where it lies: each way to the parent takes longer.
        # A worker that lies about it could as well send the same bytes again.
        for number, other in large:
            if segments.equal(flat, other):
                described["buffer"] = number
                return described
        large.append((len(buffers), flat))
        # From a GPU straight into the segment.
        buffers.append(Segment(flat.numel(), lambda target: staging.copy(target, flat)))
        return described
    flat = plain.cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    raw = flat.view(torch.uint8).numpy() if flat.numel() else None
    buffers.append(memoryview(raw) if raw is not None else b"")  # type: ignore[arg-type]
    return described


def _decode_tensor(data: Any, buffers: Sequence[Any]) -> Any:
    import torch

    shape = [int(n) for n in data["shape"]]
    dtype = getattr(torch, str(data["dtype"]), None)
    if not isinstance(dtype, torch.dtype) or _ODD_TYPES.match(str(data["dtype"])):
        raise ValueError(f"a tensor of dtype {data['dtype']!r}")
    if data.get("buffer") is None:
        return Foreign(plain_text(data["type"]))
    raw = buffers[int(data["buffer"])]
    numel = math.prod(shape)
    if len(raw) != numel * dtype.itemsize or any(n < 0 for n in shape) or len(shape) > _MOST_AXES:
        raise ValueError(f"a {dtype} tensor of shape {shape} does not have {len(raw)} bytes")
    if numel == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(raw, dtype=torch.uint8).view(dtype).reshape(shape)
