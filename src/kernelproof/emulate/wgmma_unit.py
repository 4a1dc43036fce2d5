"""wgmma (ISA 9.7.15): products of a warpgroup whose operands lie in shared memory.

A product is computed when it is issued; its reads of shared memory, and its use of registers, go on
until the warpgroup has waited for its group. Layouts follow the ISA's figures of the matrix
fragments and 9.7.15.5.1 (descriptors).
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from kernelproof.emulate import eights
from kernelproof.emulate import numeric as N
from kernelproof.emulate.active import Active, choose, scatter
from kernelproof.emulate.matrix_unit import MatrixUnit
from kernelproof.emulate.memory.access import Access
from kernelproof.emulate.tensor_sums import summed
from kernelproof.emulate.tensor_unit import TensorUnit, swizzled
from kernelproof.emulate.wgmma_flow import BYTES, Product

Array = Any
_SPAN = np.array([16, 128, 64, 32])  # bytes of a row of the pattern, by the two highest bits
_REGISTERS = 65536  # of a multiprocessor (CUDA C++ guide, technical specifications)


@dataclasses.dataclass
class Running:
    """One wgmma of one warpgroup under way, with the units of shared memory that it reads."""

    product: Product
    units: Array


def chunk_addresses(descriptors: Array, rows: int, k: int, transposed: bool) -> Array:
    """Addresses of the 16-byte pieces of an operand: (warpgroups, rows, 2), along K; transposed
    (16-bit elements only): (warpgroups, rows / 8, k), along M or N."""
    d = descriptors.astype(np.int64).reshape(-1, 1, 1)
    start, leading, stride = (((d >> shift) & 0x3FFF) << 4 for shift in (0, 16, 32))
    base, span = (d >> 49) & 7, _SPAN[(descriptors >> np.uint64(62)).astype(int)].reshape(d.shape)
    plain = span == 16
    if not transposed:
        r, c = np.arange(rows)[:, None], np.arange(2)
        offset = r // 8 * stride + r % 8 * span + c * np.where(plain, leading, 16)
    else:
        i, q = np.arange(rows // 8)[:, None], np.arange(k)
        wide = span // 16
        patterned = i % wide * 16 + i // wide * leading + q % 8 * span + q // 8 * stride
        offset = np.where(plain, i * stride + q % 8 * 16 + q // 8 * leading, patterned)
    return swizzled(start + offset, span, base) & 0x3FFFF


@functools.cache
def _cells(n: int) -> tuple[Array, Array]:
    """Row and column of each accumulator register of each thread: (128, n / 2)."""
    t, i = np.arange(128)[:, None], np.arange(n // 2)
    return t // 32 * 16 + t % 32 // 4 + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * (t % 4) + i % 2


def numbers(raw: Array, ty: str) -> Array:
    """Elements of rows of bytes, as float64."""
    if ty == "f16":
        return raw.view(np.float16).astype(np.float64)
    if ty == "bf16":
        return N.from_bf16(raw.view(np.uint16)).astype(np.float64)
    if ty == "tf32":
        return N.to_tf32(raw.view(np.float32), "rz").astype(np.float64)
    if ty in ("e4m3", "e5m2"):
        return eights.values(ty)[raw]
    return raw.view(np.int8 if ty == "s8" else np.uint8).astype(np.float64)


class WgmmaUnit(TensorUnit, MatrixUnit):
    """``running``: by warpgroup of the batch, products not committed; ``committed``: groups, the
    oldest first."""

    def begin_wgmma(self) -> None:
        self.running: dict[int, list[Running]] = {}
        self.committed: dict[int, list[list[Running]]] = {}
        self.moment = 0
        self.fenced_at: dict[int, int] = {}
        self.accessed: dict[int, tuple[int, dict[int, int]]] = {}
        self.register_limits: dict[int, int] = {}

    def _groups(self, operation: int, active: Active) -> Array | None:
        """The warpgroups, each by its first thread; None, reported, where one is not whole."""
        threads = active.threads
        inside = threads % self.per_block
        firsts = threads - inside % 128
        keys, counts = np.unique(firsts, return_counts=True)
        if (counts == 128).all():
            return keys
        self.report.add(
            "absent lanes", operation,
            f"{self.report.opcode(operation)} by {int(counts.min())} of the 128 threads of a "
            f"warpgroup; {self.who(self.first + threads[0])}",
        )  # fmt: skip
        return None

    # ---- the product

    def wgmma(
        self, p: Product, source: Access, d: tuple[Any, ...], a: Any, b: Any, scale: Any,
        A: Active, guard: Any,
    ) -> tuple[Array, ...]:  # fmt: skip
        """The accumulators after d = a b + d (or a b where ``scale`` is false). ``a``: registers,
        or a descriptor like ``b``."""
        positions = A.positions(guard)
        active = A.at(positions)
        old = [A.spread(x) for x in d]
        keys = self._groups(p.operation, active) if active.count else None
        if keys is None:
            return tuple(old)
        g = len(keys)
        units: list[Array] = []
        if isinstance(a, tuple):
            left = self._fragment([active.spread(choose(x, positions)) for x in a], p, g)
        else:
            left = self._operand(p, source, a, 64, p.types[1], p.a_transposed, keys, active,
                                 positions, units)  # fmt: skip
        right = self._operand(p, source, b, p.n, p.types[2], p.b_transposed, keys, active,
                              positions, units)  # fmt: skip
        if p.negate:
            left = -left
        rows, columns = _cells(p.n)
        carried = self._carried([choose(x, positions) for x in old], p.types[0], g)
        keeps = active.spread(choose(scale, positions)).reshape(g, 128, 1)
        matrix = np.zeros((g, 64, p.n))
        matrix[:, rows, columns] = np.where(keeps, carried, 0.0)
        kind = p.types[0]
        right = right.transpose(0, 2, 1)
        if kind == "s32":
            matrix += np.matmul(left, right)
        else:
            matrix = summed(left, right, matrix, p.types[1:], kind)
        cells = matrix[:, rows, columns]  # (g, 128, n / 2)
        flat = np.ascontiguousarray(cells.transpose(2, 0, 1)).reshape(len(columns[0]), -1)
        if kind == "s32":
            out = list(flat.astype(np.int64).astype(np.uint64).astype(np.uint32).view(np.int32))
        elif kind == "f32":
            out = list(flat.astype(np.float32))
        else:
            half = flat.astype(np.float16).view(np.uint16).astype(np.uint32)
            out = list(half[0::2] | half[1::2] << np.uint32(16))
        for n, key in enumerate(keys.tolist()):
            own = [u[n] for u in units if len(u) == g]
            self.running.setdefault(key, []).append(Running(p, np.concatenate(own or [[]])))
        self.stored = True
        if positions is None:
            return tuple(out)
        return tuple(scatter(x, positions, A.count) for x in out)

    def _operand(
        self, p: Product, source: Access, descriptor: Any, rows: int, ty: str, transposed: bool,
        keys: Array, active: Active, positions: Any, units: list[Array],
    ) -> Array:  # fmt: skip
        """(warpgroups, rows, k) from shared memory; the units that are read go to ``units``."""
        each = active.spread(choose(descriptor, positions)).astype(np.uint64).reshape(-1, 128)
        if (each != each[:, :1]).any():
            self.report.add(
                "absent lanes", p.operation,
                "the threads of a warpgroup give different descriptors of shared memory; "
                f"{self.who(self.first + keys[0])}",
            )  # fmt: skip
        address = chunk_addresses(each[:, 0], rows, p.k, transposed)
        data, used = self.read_async(source, np.repeat(keys, address[0].size), address.reshape(-1))
        units.append(used.reshape(len(keys), -1) if len(used) % len(keys) == 0 else used[None])
        found = numbers(data, ty)
        if transposed:
            return found.reshape(len(keys), rows // 8, p.k, 8).transpose(0, 1, 3, 2).reshape(
                len(keys), rows, p.k
            )  # fmt: skip
        return found.reshape(len(keys), rows, p.k)

    def _fragment(self, registers: list[Array], p: Product, g: int) -> Array:
        """A from registers: those of a warp are 16 rows, as for mma."""
        each = 4 // BYTES[p.types[1]]
        out = np.zeros((g, 64, p.k))
        t = np.arange(128)
        for n, register in enumerate(registers):
            raw = np.ascontiguousarray(register).view(np.uint8).reshape(-1, 4)
            row = t // 32 * 16 + t % 32 // 4 + 8 * (n % 2)
            column = n // 2 * 4 * each + t % 4 * each
            values = numbers(raw, p.types[1]).reshape(g, 128, each)
            out[:, row[:, None], column[:, None] + np.arange(each)] = values
        return out

    def _carried(self, registers: list[Array], ty: str, g: int) -> Array:
        """(warpgroups, 128, n / 2)"""
        if ty == "f16":
            words = np.stack(registers).view(np.uint32)
            halves = np.stack((words & 0xFFFF, words >> 16), 1).astype(np.uint16)
            flat = halves.view(np.float16).reshape(2 * len(registers), -1)
        else:
            flat = np.stack(registers)
        return flat.astype(np.float64).reshape(len(flat), g, 128).transpose(1, 2, 0)

    # ---- groups

    def wgmma_commit(self, operation: int, A: Active, guard: Any) -> None:
        for key in self._present(operation, A, guard):
            self.committed.setdefault(key, []).append(self.running.pop(key, []))

    def wgmma_wait(self, operation: int, keep: int, A: Active, guard: Any) -> None:
        """Complete all but the last ``keep`` groups."""
        for key in self._present(operation, A, guard):
            groups = self.committed.get(key, [])
            for one in (one for group in groups[: len(groups) - keep] for one in group):
                self.over(self.shared, one.units.astype(np.int64), one.product.operation, key)
            self.committed[key] = groups[max(len(groups) - keep, 0) :]
        self.order.tick()

    def wgmma_fence(self, operation: int, A: Active, guard: Any) -> None:
        self.moment += 1
        for key in self._present(operation, A, guard):
            self.fenced_at[key] = self.moment

    def _present(self, operation: int, A: Active, guard: Any) -> list[int]:
        active = A.at(A.positions(guard))
        keys = self._groups(operation, active) if active.count else None
        return [] if keys is None else keys.tolist()

    # ---- registers: what wgmma_flow found suspect, looked at where it runs

    def register_used(
        self, operation: int, numbers_: tuple[int, ...], how: str, A: Active, guard: Any
    ) -> None:
        """A register that one of these products uses may be touched; is one under way?"""
        active = A.at(A.positions(guard))
        if not active.count or not (self.running or self.committed):
            return
        for key in np.unique(active.threads - active.threads % self.per_block % 128).tolist():
            groups = [*self.committed.get(key, []), self.running.get(key, [])]
            for one in (one for group in groups for one in group):
                if one.product.number in numbers_:
                    self.report.add(
                        "wgmma in flight", operation,
                        f"{how} of the wgmma at {self.report.line(one.product.operation)} "
                        "before wgmma.wait_group has waited for its group; "
                        f"{self.who(self.first + active.threads[0])}",
                        other=one.product.operation,
                    )  # fmt: skip
                    return

    def register_touched(self, operation: int, number: int, A: Active, guard: Any) -> None:
        """An ordinary access to a register that a wgmma may use next."""
        self.moment += 1
        active = A.at(A.positions(guard))
        keys = np.unique(active.threads - active.threads % self.per_block % 128)
        _, when = self.accessed.setdefault(number, (operation, {}))
        when.update(dict.fromkeys(keys.tolist(), self.moment))

    def fence_needed(
        self, operation: int, accesses: tuple[int, ...], first: bool, A: Active, guard: Any
    ) -> None:
        """A wgmma is issued on registers that these accesses touch; was a fence in between?"""
        active = A.at(A.positions(guard))
        if not active.count:
            return
        key = int(active.threads[0] - active.threads[0] % self.per_block % 128)
        fenced = self.fenced_at.get(key, 0)
        if first and not fenced:
            self.report.add(
                "missing wgmma.fence", operation,
                "no wgmma.fence comes before the first wgmma.mma_async; "
                f"{self.who(self.first + key)}",
            )  # fmt: skip
            return
        for number in accesses:
            source, when = self.accessed.get(number, (-1, {}))
            if when.get(key, -1) > fenced:
                self.report.add(
                    "missing wgmma.fence", operation,
                    f"a register of this wgmma is accessed at {self.report.line(source)}, with no "
                    f"wgmma.fence in between; {self.who(self.first + key)}",
                    other=source,
                )  # fmt: skip

    # ---- setmaxnreg

    def set_registers(self, operation: int, count: int, A: Active, guard: Any) -> None:
        """Checks only: the number, and that a block's warpgroups can all have what they ask for."""
        who = self.who(self.first + A.threads[0])
        if count % 8 or not 24 <= count <= 256:
            self.report.add(
                "register count", operation,
                f"setmaxnreg to {count} registers; it takes multiples of 8 from 24 to 256; {who}",
            )  # fmt: skip
        for key in self._present(operation, A, guard):
            self.register_limits[key] = count
        most = min(_REGISTERS // self.per_block // 8 * 8, 255 // 8 * 8 + 8) * self.per_block
        for block in np.unique(A.threads // self.per_block).tolist():
            first = block * self.per_block
            given = {k: v for k, v in self.register_limits.items() if k // self.per_block == block}
            groups = range(first, first + self.per_block, 128)
            if set(groups) <= given.keys() and 128 * sum(given.values()) > most:
                self.report.add(
                    "register count", operation,
                    f"the warpgroups ask for {128 * sum(given.values())} registers together, more "
                    f"than the {most} that a block of {self.per_block} threads is launched with at "
                    f"most: one waits for ever; {who}",
                )  # fmt: skip
