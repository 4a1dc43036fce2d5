"""What a multiprocessor holds, and how many of them a GPU has.

Sources: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability" (threads,
blocks, registers, shared memory), and NVIDIA's ``cuda_occupancy.h`` of CUDA 13.0 (granularity of
allocation, subdivisions, barriers; its answers for 3,000 launches are in tests/inspect). Numbers of
multiprocessors: the architecture's whitepaper or the data sheet named in the row.
"""

from __future__ import annotations

import dataclasses
import re

from kernelproof.errors import UsageError, meant

WARP = 32
SHARED_DEFAULT = 48 * 1024  # bytes that a block gets without opting in, on every row below
SHARED_SYSTEM = 1024  # bytes of each block's share that the system keeps, from sm_80 on
SHARED_GRANULARITY = 128  # bytes, from sm_80 on
REGISTER_GRANULARITY = 256  # registers that a warp is given at a time
SUBDIVISIONS = 4  # of a multiprocessor, each with its own registers and warp slots


@dataclasses.dataclass(frozen=True)
class Capability:
    """Limits of one compute capability. ``shared`` and ``shared_block``: bytes of shared memory of
    a multiprocessor and, opted in, of a block. ``barriers``: named barriers of a multiprocessor,
    None where they never limit (before sm_90)."""

    arch: int
    threads: int
    blocks: int
    shared: int
    shared_block: int
    barriers: int | None
    registers: int = 65536
    registers_block: int = 65536
    threads_block: int = 1024

    @property
    def warps(self) -> int:
        return self.threads // WARP


@dataclasses.dataclass(frozen=True)
class Device:
    """A GPU by its name. ``target``: what compilers call it."""

    name: str
    title: str
    capability: Capability
    multiprocessors: int
    source: str

    @property
    def target(self) -> str:
        """Such as "sm_90a": the "a" targets add the instructions of that very architecture."""
        arch = self.capability.arch
        return f"sm_{arch}" + ("a" if arch // 10 in (9, 10, 12) else "")


_CAPABILITIES = {
    c.arch: c
    for c in (
        Capability(80, 2048, 32, 164 << 10, 163 << 10, None),
        Capability(86, 1536, 16, 100 << 10, 99 << 10, None),
        Capability(89, 1536, 24, 100 << 10, 99 << 10, None),
        Capability(90, 2048, 32, 228 << 10, 227 << 10, 64),
        Capability(100, 2048, 32, 228 << 10, 227 << 10, 64),
        Capability(120, 1536, 24, 100 << 10, 99 << 10, 24),
    )
}

_DEVICES = {
    name: Device(name, title, _CAPABILITIES[arch], count, source)
    for name, title, arch, count, source in (
        ("a100", "NVIDIA A100", 80, 108, "Ampere architecture whitepaper, 2020"),
        ("a40", "NVIDIA A40", 86, 84, "A40 data sheet: 10,752 CUDA cores of 128 each"),
        ("rtx3090", "GeForce RTX 3090", 86, 82, "GA102 architecture whitepaper, 2020"),
        ("l4", "NVIDIA L4", 89, 58, "Ada architecture whitepaper, L4: 7,424 cores of 128 each"),
        ("l40s", "NVIDIA L40S", 89, 142, "L40S data sheet: 18,176 CUDA cores of 128 each"),
        ("rtx4090", "GeForce RTX 4090", 89, 128, "Ada architecture whitepaper, 2022"),
        ("h100", "NVIDIA H100 SXM", 90, 132, "Hopper architecture whitepaper, 2022"),
        ("h100pcie", "NVIDIA H100 PCIe", 90, 114, "Hopper architecture whitepaper, 2022"),
        ("h200", "NVIDIA H200", 90, 132, "Hopper architecture whitepaper, 2022: the GPU of H100"),
        ("b200", "NVIDIA B200", 100, 148, "as the driver reports it: two dies of 74 each"),
        ("rtx5090", "GeForce RTX 5090", 120, 170, "Blackwell RTX architecture whitepaper, 2025"),
    )
}


def names() -> tuple[str, ...]:
    """The GPUs that are known by name."""
    return tuple(_DEVICES)


def capabilities() -> tuple[Capability, ...]:
    return tuple(_CAPABILITIES.values())


def find(name: str) -> Device:
    """The GPU ``name``; an architecture such as "sm_90" gives its first row.

    Raises UsageError that lists what there is.
    """
    key = re.sub(r"[\s_-]|nvidia|geforce", "", name.lower())
    if key in _DEVICES:
        return _DEVICES[key]
    arch = re.fullmatch(r"(?:sm|compute)?(\d+)[af]?", key)
    if arch is not None:
        for device in _DEVICES.values():
            if device.capability.arch == int(arch[1]):
                return device
    known = sorted({f"sm_{c}" for c in _CAPABILITIES})
    raise UsageError(
        f"no GPU {name!r}{meant(name, _DEVICES)}; there are {', '.join(_DEVICES)}, and for any of "
        f"their architecture {', '.join(known)}"
    )


def present(title: str, arch: int, multiprocessors: int) -> Device:
    """The GPU of this machine, by what its driver says.

    Raises UsageError for an architecture that is not in the table.
    """
    if arch not in _CAPABILITIES:
        raise UsageError(
            f"{title} is sm_{arch}, whose limits are not known here; name another GPU with --gpu: "
            f"{', '.join(_DEVICES)}"
        )
    source = "the driver of this machine"
    return Device(f"sm_{arch}", title, _CAPABILITIES[arch], multiprocessors, source)
