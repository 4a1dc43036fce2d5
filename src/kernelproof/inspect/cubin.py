"""Resources of kernels, read from a cubin: an ELF64 file with NVIDIA's own sections.

What is read where (names of attributes as in NVIDIA's binary utilities):

    registers     EIATTR_REGCOUNT of .nv.info; older files: top byte of .text.<kernel>'s sh_info
    stack         EIATTR_FRAME_SIZE of .nv.info
    barriers      EIATTR_NUM_BARRIERS of .nv.info.<kernel>; older files: bits 20 to 26 of the flags
                  of .text.<kernel>
    block size    EIATTR_REQNTID, else EIATTR_MAX_THREADS, of .nv.info.<kernel>
    shared        size of .nv.shared.<kernel>, less what the system keeps from sm_90 on
    constants     sizes of .nv.constant<bank>[.<kernel>]; bank 0 holds the parameters
    spills        EIATTR_ANNOTATIONS of kind 1 of .nv.info.<kernel>: the addresses of the loads and
                  stores that move registers to the stack and back; their width is in their code

Compilers before CUDA 12.8 do not mark spills. The widths, opcodes and the marks agree with
``ptxas -v`` and nvdisasm on what tests/inspect compiles.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator

from kernelproof.errors import UsageError

_MACHINE = 190  # EM_CUDA
_SYMBOLS, _FUNCTION, _ENTRY = 2, 2, 0x10  # SHT_SYMTAB, STT_FUNC, STO_CUDA_ENTRY
_MAX_THREADS, _REQUIRED_THREADS, _FRAME_SIZE = 0x05, 0x10, 0x11
_REGISTERS, _API_VERSION, _BARRIERS, _ANNOTATIONS = 0x2F, 0x37, 0x4C, 0x55
_WITH_PAYLOAD = 4  # EIFMT_SVAL
_SPILL = 1  # kind of annotation
_MARKS_SPILLS = 128  # CUDA 12.8, in tenths
_SYSTEM_SHARED = 1024  # bytes of a block's shared memory that the system keeps
_INSTRUCTION = 16  # bytes, from sm_70 on
_LOAD_LOCAL, _STORE_LOCAL = 0x983, 0x387
_WIDTHS = (1, 1, 2, 2, 4, 8, 16)  # bytes by the width field: u8 s8 u16 s16 32 64 128


@dataclasses.dataclass(frozen=True)
class Resources:
    """What one kernel takes. Bytes; ``spill_stores`` and ``spill_loads`` are None where the file
    does not tell spills from arrays; ``local_accesses`` counts the instructions on local memory
    that are no spills (all of them, where that is not told). ``cuda``: version of the compiler in
    tenths, 0 where unknown; ``block_limit``: threads of a block as declared."""

    symbol: str
    registers: int
    shared: int
    stack: int
    constants: dict[int, int]
    barriers: int
    block_limit: int | None
    spill_stores: int | None
    spill_loads: int | None
    local_accesses: int
    code: int
    cuda: int


@dataclasses.dataclass(frozen=True)
class Cubin:
    """``arch``: compute capability times ten, such as 90."""

    arch: int
    kernels: tuple[Resources, ...]


@dataclasses.dataclass(frozen=True)
class _Section:
    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int


def read(data: bytes) -> Cubin:
    """The kernels of a cubin, in the order of its symbols.

    Raises UsageError for anything else, naming what it looks like.
    """
    if data[:4] != b"\x7fELF" or len(data) < 64 or data[4] != 2:
        kind = "a fat binary" if data[:4] == b"\x50\xed\x55\xba" else "no ELF64 file"
        raise UsageError(f"not a cubin but {kind}; make one by `nvcc -cubin -arch=sm_90 FILE.cu`")
    if struct.unpack_from("<H", data, 18)[0] != _MACHINE:
        raise UsageError("an ELF file of another machine than NVIDIA's; give a cubin")
    try:
        return _Reader(data).cubin()
    except (struct.error, IndexError, ValueError, KeyError) as error:
        raise UsageError(f"a broken or cut cubin ({error}); compile it again") from None


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.sections = self._sections()
        self.by_name = {s.name: s for s in self.sections}

    def cubin(self) -> Cubin:
        flags = struct.unpack_from("<I", self.data, 48)[0]
        # The second byte holds the architecture since ABI version 8 (CUDA 13), the lowest before.
        arch = flags >> 8 & 0xFF if self.data[8] >= 8 else flags & 0xFF
        symbols = self._symbols()
        shared_by_symbol = self._by_symbol(_REGISTERS), self._by_symbol(_FRAME_SIZE)
        kernels = [
            self._kernel(arch, name, index, self.sections[section], *shared_by_symbol)
            for index, (name, info, other, section) in enumerate(symbols)
            if info & 0xF == _FUNCTION and other & _ENTRY and section
        ]
        return Cubin(arch, tuple(kernels))

    def _kernel(
        self, arch: int, name: str, index: int, text: _Section,
        registers: dict[int, int], frames: dict[int, int],
    ) -> Resources:  # fmt: skip
        block_limit, barriers, cuda = None, text.flags >> 20 & 0x7F, 0
        marked: list[int] = []
        for attribute, value, payload in self._attributes(f".nv.info.{name}"):
            words = struct.unpack(f"<{len(payload) // 4}I", payload[: len(payload) // 4 * 4])
            if attribute in (_MAX_THREADS, _REQUIRED_THREADS):
                block_limit = words[0] * words[1] * words[2]
            elif attribute == _BARRIERS:
                barriers = value & 0xFF
            elif attribute == _API_VERSION:
                cuda = words[0]
            elif attribute == _ANNOTATIONS:
                marked += [o for k, o in zip(words[::2], words[1::2], strict=False) if k == _SPILL]
        stores, loads, others = self._local(text, marked)
        # Where there is nothing on local memory, nothing was spilled, whoever compiled it.
        told = cuda >= _MARKS_SPILLS or not others
        shared = self.by_name.get(f".nv.shared.{name}")
        size = shared.size if shared is not None else 0
        return Resources(
            symbol=name,
            registers=registers.get(index, text.info >> 24),
            shared=max(0, size - _SYSTEM_SHARED) if arch >= 90 else size,
            stack=frames.get(index, 0),
            constants=self._constants(name),
            barriers=barriers,
            block_limit=block_limit,
            spill_stores=stores if told else None,
            spill_loads=loads if told else None,
            local_accesses=others,
            code=text.size,
            cuda=cuda,
        )

    def _local(self, text: _Section, marked: list[int]) -> tuple[int, int, int]:
        """Bytes of marked stores and loads, and the number of other accesses to local memory."""
        spills = set(marked)
        sums = {_STORE_LOCAL: 0, _LOAD_LOCAL: 0}
        others = 0
        for at in range(0, text.size - text.size % _INSTRUCTION, _INSTRUCTION):
            low, high = struct.unpack_from("<QQ", self.data, text.offset + at)
            opcode = low & 0xFFF
            if opcode not in sums:
                continue
            if at in spills:
                sums[opcode] += _WIDTHS[high >> 9 & 7]
            else:
                others += 1
        return sums[_STORE_LOCAL], sums[_LOAD_LOCAL], others

    def _constants(self, name: str) -> dict[int, int]:
        found = {}
        for section in self.sections:
            bank, _, owner = section.name.removeprefix(".nv.constant").partition(".")
            mine = section.name.startswith(".nv.constant") and owner in ("", name)
            if mine and bank.isdigit() and section.size:
                found[int(bank)] = section.size
        return found

    def _by_symbol(self, attribute: int) -> dict[int, int]:
        """Symbol -> value, of an attribute that the whole file's list has for each function."""
        found = {}
        for seen, _, payload in self._attributes(".nv.info"):
            if seen == attribute and len(payload) >= 8:
                symbol, value = struct.unpack_from("<II", payload)
                found[symbol] = value
        return found

    def _attributes(self, section: str) -> Iterator[tuple[int, int, bytes]]:
        """Number, value, and payload (where the value is its length)."""
        found = self.by_name.get(section)
        at, end = (found.offset, found.offset + found.size) if found is not None else (0, 0)
        while at + 4 <= end:
            form, attribute, value = struct.unpack_from("<BBH", self.data, at)
            at += 4
            payload = self.data[at : at + value] if form == _WITH_PAYLOAD else b""
            at += len(payload)
            yield attribute, value, payload

    def _sections(self) -> list[_Section]:
        (start,) = struct.unpack_from("<Q", self.data, 40)
        count, names = struct.unpack_from("<HH", self.data, 60)
        raw = [struct.unpack_from("<IIQQQQII", self.data, start + 64 * i) for i in range(count)]
        base = raw[names][4]
        return [_Section(self._text(base + r[0]), r[1], r[2], r[4], r[5], r[6], r[7]) for r in raw]

    def _symbols(self) -> list[tuple[str, int, int, int]]:
        """Name, info, other and section of each symbol."""
        table = next(s for s in self.sections if s.kind == _SYMBOLS)
        names = self.sections[table.link].offset
        found = []
        for at in range(table.offset, table.offset + table.size, 24):
            name, info, other, section = struct.unpack_from("<IBBH", self.data, at)
            found.append((self._text(names + name), info, other, section))
        return found

    def _text(self, at: int) -> str:
        return self.data[at : self.data.index(b"\0", at)].decode()
