"""ldmatrix, mma.sync and wmma.

Layouts of fragments follow the PTX ISA reference, 9.7.14.5 (mma) and 9.7.14.5.15 (ldmatrix).
Products are summed into fp32 and fp16 as `tensor_sums` says, and into integers exactly.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from kernelproof.emulate import numeric as N
from kernelproof.emulate.active import Active, choose, scatter
from kernelproof.emulate.mbarriers import MBarrierUnit
from kernelproof.emulate.memory.access import Access
from kernelproof.emulate.tensor_sums import summed
from kernelproof.emulate.warp_unit import WarpUnit

Array = Any

_LANE = np.arange(32)
_GROUP, _IN_GROUP = _LANE // 4, _LANE % 4
_FULL = np.uint32(0xFFFFFFFF)


def _elements(register: Array, ty: str) -> Array:
    """The elements of one 32-bit (or f64) register per lane, as float64 or int64: (..., n)."""
    if ty == "f64":
        return register[..., None]
    raw = np.ascontiguousarray(register)[..., None].view(np.uint32)
    if ty == "f16":
        return raw.view(np.float16).astype(np.float64)
    if ty == "bf16":
        return N.from_bf16(raw.view(np.uint16)).astype(np.float64)
    if ty == "tf32":
        return N.to_tf32(raw.view(np.float32), "rz").astype(np.float64)
    return raw.view(np.int8 if ty == "s8" else np.uint8).astype(np.int64)


class MatrixUnit(MBarrierUnit, WarpUnit):
    def _warps(self, operation: int, A: Active, guard: Any) -> tuple[Any, Any]:
        return self._begin(operation, _FULL, A, guard)

    # ---- ldmatrix, stmatrix

    def _rows(self, warps: Any, address: Any, positions: Any, count: int) -> Any:
        """Row addresses of ``count`` matrices and the threads that give them: the first
        8 * count lanes."""
        rows = warps.rows(warps.active.spread(choose(address, positions)))[:, : 8 * count]
        threads = (warps.warps[:, None] * 32 + np.arange(8 * count)).reshape(-1)
        return rows.reshape(-1), Active(threads, threads)

    def load_matrix(
        self, m: Access, address: Any, count: int, trans: bool, A: Active, guard: Any
    ) -> tuple[Array, ...]:
        positions, warps = self._warps(m.operation, A, guard)
        if warps.active.count == 0:
            return tuple(np.zeros(A.count, np.uint32) for _ in range(count))
        where, threads = self._rows(warps, address, positions, count)
        space, where, index = self._locate(m, where, threads)
        keep = self.usable(m, space, where, threads)
        if keep is not None:
            part = threads.at(keep)
            if len(keep):
                self.reads(m, space, where[keep], index[keep], part)
            inside = np.zeros(len(index), bool)
            inside[keep] = True
            index = np.where(inside, index, 0)
        else:
            self.reads(m, space, where, index, threads)
        data = space.data[index[:, None] + np.arange(16)].view(np.uint16)
        data = data.reshape(len(warps.warps), count, 8, 8)
        if trans:
            data = data.transpose(0, 1, 3, 2)
        registers = np.ascontiguousarray(data).view(np.uint32).reshape(-1, count, 32)
        return tuple(scatter(warps.flat(registers[:, n]), positions, A.count) for n in range(count))

    def store_matrix(
        self, m: Access, address: Any, values: tuple[Any, ...], trans: bool, A: Active, guard: Any
    ) -> None:
        positions, warps = self._warps(m.operation, A, guard)
        if warps.active.count == 0:
            return
        count = len(values)
        rows = [warps.rows(choose(v, positions)).astype(np.uint32) for v in values]
        data = np.ascontiguousarray(np.stack(rows, 1)).view(np.uint16).reshape(-1, count, 8, 8)
        if trans:
            data = data.transpose(0, 1, 3, 2)
        lines = np.ascontiguousarray(data).reshape(-1, 8).view(np.uint8)
        where, threads = self._rows(warps, address, positions, count)
        space, where, index = self._locate(m, where, threads)
        keep = self.usable(m, space, where, threads)
        if keep is not None:
            where, index, lines, threads = where[keep], index[keep], lines[keep], threads.at(keep)
        if len(index):
            self._store_lines(m, space, where, index, lines, threads)

    def _store_lines(
        self, m: Access, space: Any, where: Array, index: Array, lines: Array, threads: Active
    ) -> None:
        at = index[:, None] + np.arange(lines.shape[1])

        def put() -> None:
            space.data[at] = lines

        def same() -> Array:
            return (space.data[at] == lines).all(axis=1)

        self.writes(m, space, where, index, threads, put, same)

    # ---- mma

    def matrix_multiply(
        self, operation: int, k: int, types: tuple[str, ...], a: Any, b: Any, c: Any, A: Active,
        guard: Any,
    ) -> tuple[Array, ...]:  # fmt: skip
        """d = a b + c for m16n8k<k> (f64: m8n8k4). With g = lane / 4 and t = lane % 4, register i
        of a holds row g + 8 (i % 2), of b column g; c and d hold columns 2t and 2t + 1."""
        positions, warps = self._warps(operation, A, guard)
        dt, at, bt, ct = types
        if warps.active.count == 0:
            kind = {"f16": np.uint32, "f32": np.float32, "s32": np.int32, "f64": np.float64}[dt]
            count = {"f16": 2, "f64": 2}.get(dt, 4)
            return tuple(np.zeros(A.count, kind) for _ in range(count))
        rows = [[warps.rows(choose(r, positions)) for r in regs] for regs in (a, b, c)]
        nw = len(warps.warps)
        height = 8 if dt == "f64" else 16
        kind = np.int64 if dt == "s32" else np.float64
        left, right = np.zeros((nw, height, k), kind), np.zeros((nw, k, 8), kind)
        for n, register in enumerate(rows[0]):
            x = _elements(register, at)
            e = x.shape[-1]
            row = _GROUP + 8 * (n % 2 if height == 16 else 0)
            step = n // 2 if height == 16 else n
            column = step * 4 * e + _IN_GROUP * e
            left[:, row[:, None], column[:, None] + np.arange(e)] = x
        for n, register in enumerate(rows[1]):
            x = _elements(register, bt)
            e = x.shape[-1]
            depth = n * 4 * e + _IN_GROUP * e
            right[:, depth[:, None] + np.arange(e), _GROUP[:, None]] = x
        carried = np.zeros((nw, height, 8), kind)
        places = [(_GROUP + 8 * (n // 2), 2 * _IN_GROUP + n % 2) for n in range(height // 4)]
        for (row, column), register in zip(places, self._accumulator(rows[2], ct), strict=True):
            carried[:, row, column] = register
        if dt in ("f32", "f16"):
            product = summed(left, right, carried, (at, bt), dt)
        else:
            product = left @ right + carried
        out = [product[:, row, column] for row, column in places]
        results = self._rounded(out, dt)
        return tuple(scatter(warps.flat(r), positions, A.count) for r in results)

    def _accumulator(self, registers: list[Array], ty: str) -> list[Array]:
        if ty != "f16":
            return [r.astype(np.int64 if ty == "s32" else np.float64) for r in registers]
        pairs = [_elements(r, "f16") for r in registers]
        return [pair[..., n] for pair in pairs for n in range(2)]

    def _rounded(self, cells: list[Array], ty: str) -> list[Array]:
        if ty == "s32":
            return [cell.astype(np.uint64).astype(np.uint32).view(np.int32) for cell in cells]
        if ty != "f16":
            return [cell.astype(np.float32 if ty == "f32" else np.float64) for cell in cells]
        halves = [cell.astype(np.float16).view(np.uint16).astype(np.uint32) for cell in cells]
        return [halves[n] | (halves[n + 1] << np.uint32(16)) for n in range(0, len(halves), 2)]

    # ---- wmma: element (r, c) of a fragment lies in slot i of lane l by number i * 32 + l

    def load_fragment(
        self, m: Access, address: Any, shape: tuple[int, int], by_row: bool, stride: Any,
        registers: int, A: Active, guard: Any,
    ) -> tuple[Array, ...]:  # fmt: skip
        """A tile of ``shape``; ``stride`` in elements between its rows (or columns)."""
        positions, warps = self._warps(m.operation, A, guard)
        nw = len(warps.warps)
        size = np.dtype(m.dtype).itemsize
        per_register = 4 // size
        if nw == 0:
            kind = np.dtype(m.dtype) if size == 4 else np.dtype(np.uint32)
            return tuple(np.zeros(A.count, kind) for _ in range(registers))
        slots = shape[0] * shape[1] // 32
        base = self._fragment_addresses(warps, address, positions, shape, by_row, stride, size)
        values = []
        for n in range(slots):
            part = self.load(m, base[:, n].reshape(-1), warps.active, None)[0]
            values.append(part.reshape(nw, 32))
        if size < 4:
            packed = np.ascontiguousarray(np.stack(values, -1))
            whole = packed.reshape(nw, 32, slots // per_register, per_register)
            words = np.ascontiguousarray(whole).view(np.uint32)[..., 0]
            values = [words[..., n] for n in range(words.shape[-1])]
        # Hardware keeps f16 operands twice; the copies stay unused here.
        filled = [values[n % len(values)] for n in range(registers)]
        return tuple(scatter(warps.flat(v), positions, A.count) for v in filled)

    def _fragment_addresses(
        self, warps: Any, address: Any, positions: Any, shape: tuple[int, int], by_row: bool,
        stride: Any, size: int,
    ) -> Array:  # fmt: skip
        rows, columns = shape
        number = np.arange(rows * columns).reshape(-1, 32)
        r, c = number // columns, number % columns
        steps = warps.rows(warps.active.spread(choose(stride, positions))).astype(np.int64)[:, :1]
        base = warps.rows(warps.active.spread(choose(address, positions)))[:, :1]
        line, inner = (r, c) if by_row else (c, r)
        return base[:, None] + (line * steps[:, None] + inner) * size

    def store_fragment(
        self, m: Access, address: Any, shape: tuple[int, int], by_row: bool, stride: Any,
        values: tuple[Any, ...], A: Active, guard: Any,
    ) -> None:  # fmt: skip
        positions, warps = self._warps(m.operation, A, guard)
        if len(warps.warps) == 0:
            return
        size = np.dtype(m.dtype).itemsize
        base = self._fragment_addresses(warps, address, positions, shape, by_row, stride, size)
        slots = self._slots([warps.rows(choose(v, positions)) for v in values], m.dtype)
        for n, slot in enumerate(slots[: base.shape[1]]):
            flat = np.ascontiguousarray(slot).reshape(-1)
            self.store(m, base[:, n].reshape(-1), (flat,), warps.active, None)

    def _slots(self, registers: list[Array], dtype: str) -> list[Array]:
        size = np.dtype(dtype).itemsize
        if size == 4:
            return registers
        kind = np.uint16 if size == 2 else np.uint8
        parts = [np.ascontiguousarray(r)[..., None].view(np.uint32).view(kind) for r in registers]
        return [part[..., n] for part in parts for n in range(part.shape[-1])]

    def warp_multiply(
        self, operation: int, shape: str, types: tuple[str, ...], a: Any, b: Any, c: Any,
        A: Active, guard: Any,
    ) -> tuple[Array, ...]:  # fmt: skip
        positions, warps = self._warps(operation, A, guard)
        m, n, k = map(int, re.findall(r"\d+", shape))
        dt, at, bt, ct = types
        kind = np.int64 if dt == "s32" else np.float64
        nw = len(warps.warps)

        def tile(registers: Any, ty: str, rows: int, columns: int) -> Array:
            parts = [_elements(warps.rows(choose(r, positions)), ty) for r in registers]
            slots = [part[..., e] for part in parts for e in range(part.shape[-1])]
            count = rows * columns // 32
            return np.stack(slots[:count], 1).reshape(nw, rows, columns).astype(kind)

        if nw == 0:
            zero = {"f16": np.uint32, "f32": np.float32, "s32": np.int32}[dt]
            return tuple(np.zeros(A.count, zero) for _ in range(4 if dt == "f16" else m * n // 32))
        if ct == "f16":
            carried = tile(c, "f16", m, n)
        else:
            rows = [warps.rows(choose(r, positions)) for r in c]
            carried = np.stack(rows, 1).reshape(nw, m, n).astype(kind)
        left, right = tile(a, at, m, k), tile(b, bt, k, n)
        sums = dt in ("f32", "f16")
        product = summed(left, right, carried, (at, bt), dt) if sums else left @ right + carried
        out = product.reshape(nw, -1, 32)
        cells = self._rounded([out[:, s] for s in range(out.shape[1])], dt)
        return tuple(scatter(warps.flat(x), positions, A.count) for x in cells)
