"""The device's printf: C format strings on values that lie in the thread's memory."""

from __future__ import annotations

import re
import struct
from typing import Any

from kernelproof.emulate.active import Active

_SPEC = re.compile(r"%([-+ #0]*)(\*|\d+)?(?:\.(\*|\d+))?(hh|h|ll|l|z|j|t)?([diouxXeEfFgGaAcsp%])")


def string(machine: Any, address: int, thread: int = 0) -> str:
    """The C string at a generic address."""
    data = bytearray()
    while len(data) < 4096:
        byte = machine.byte_at(address + len(data), thread)
        if byte == 0:
            break
        data.append(byte)
    return data.decode(errors="replace")


def formatted(machine: Any, text: int, arguments: int, active: Active, n: int) -> str:
    """The text that thread ``n`` of ``active`` prints. Arguments are aligned to their size, as in
    vprintf's buffer (CUDA C++ guide, 10.35)."""
    thread = int(active.threads[n])
    at = arguments

    def take(size: int) -> bytes:
        nonlocal at
        at = -(-at // size) * size
        data = bytes(machine.byte_at(at + i, thread) for i in range(size))
        at += size
        return data

    def one(found: re.Match[str]) -> str:
        flags, width, precision, length, kind = found.groups()
        if kind == "%":
            return "%"
        width = str(struct.unpack("<i", take(4))[0]) if width == "*" else width or ""
        precision = str(struct.unpack("<i", take(4))[0]) if precision == "*" else precision
        spec = f"%{flags}{width}" + (f".{precision}" if precision is not None else "")
        if kind in "di":
            form = "<q" if length in ("l", "ll", "z", "j", "t") else "<i"
            return (spec + "d") % struct.unpack(form, take(struct.calcsize(form)))
        if kind in "ouxX":
            form = "<Q" if length in ("l", "ll", "z", "j", "t") else "<I"
            letter = "d" if kind == "u" else kind
            return (spec + letter) % struct.unpack(form, take(struct.calcsize(form)))
        if kind == "c":
            return (spec + "c") % chr(struct.unpack("<i", take(4))[0] & 0xFF)
        if kind == "s":
            return (spec + "s") % string(machine, struct.unpack("<Q", take(8))[0], thread)
        if kind == "p":
            return hex(struct.unpack("<Q", take(8))[0])
        value = struct.unpack("<d", take(8))[0]
        return float(value).hex() if kind in "aA" else (spec + kind) % value

    return _SPEC.sub(one, string(machine, text, thread))
