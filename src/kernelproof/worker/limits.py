"""What a candidate's process may use, and how that is put on it.

`confine` says what a candidate needs; `Confinement.apply` runs in the worker before any of the
candidate's code. Each protection stands alone: where the machine lacks one, the others are still
put on, and the words that `apply` returns say so.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import importlib.util
import os
import resource
import shutil
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kernelproof.home import BUILDS_VARIABLE, home
from kernelproof.worker import landlock

if TYPE_CHECKING:
    from kernelproof.types import Candidate

NOT_PROTECTED = "not protected"
_FILE_BYTES = 8 << 30  # the largest file that a candidate may write
_MEMORY_SHARE = 0.8  # of what is available when the worker starts
_NEWNET = 0x40000000
_CAPSET_VERSION = 0x20080522
# Reading and writing files by root's rights (CAP_DAC_OVERRIDE, _DAC_READ_SEARCH, _FOWNER) stays:
# a container's root needs it for its own files, and Landlock bounds it.
_KEPT_CAPABILITIES = 1 << 1 | 1 << 2 | 1 << 3
_SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/opt", "/nix", "/gnu", "/proc",
    "/sys", "/run/nvidia-persistenced", "/var/lib/nvidia", "/run/opengl-driver",
)  # fmt: skip
_DEVICES = (
    "null", "zero", "full", "random", "urandom", "tty", "nvidia*", "nvidia-caps/*", "dri/*", "kfd",
    "dxg", "nvmap", "nvhost*", "nvgpu/*/*",
)  # fmt: skip
# Variables that point compilers and their caches at folders; the candidate gets its own.
_CACHES = {
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "torch_extensions",
    "CUDA_CACHE_PATH": "cuda",
    "CCACHE_DIR": "ccache",
}
_BESIDE = {".py", ".cu", ".cuh", ".cpp", ".cc", ".c", ".h", ".hpp", ".inc", ".so", ".json"}


@dataclasses.dataclass(frozen=True)
class Confinement:
    """Limits of one worker, as plain values.

    ``reads``: what the candidate may read beside the system and the Python installation; of a
    folder ending in ``/*`` only the sources in it. ``hides``: what it may not read even where it
    lies in one of these. ``uses``: what it may read although it lies in a hidden folder.
    ``writes``: folders, of which the first takes its builds. ``memory``: bytes, of the worker and
    all that it starts. ``processes``: how many it may start. ``gpu``: whether the driver's memory
    mappings must fit, so that only use is limited and not address space. ``without``: protections
    to leave out ("files", "network", "rights"), as on a machine that does not have them.
    """

    reads: tuple[str, ...]
    hides: tuple[str, ...]
    writes: tuple[str, ...]
    memory: int
    processes: int
    gpu: bool
    uses: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    def apply(self, temporary: Path) -> list[str]:
        """Put the limits on this process, whose own folder is ``temporary``.

        Returns one line a protection: "files: ...", "network: ...", and so on, those that are not
        there with the words "not protected".
        """
        _environment(temporary, Path(self.writes[0]))
        lines = [self._resources()]
        for name, put in (
            ("network", _network),
            ("rights", _capabilities),
            ("files", lambda: self._files(temporary)),
        ):
            lines.append(f"{name}: {NOT_PROTECTED}" if name in self.without else put())
        return [line for line in lines if line]

    def _resources(self) -> str:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _lower(resource.RLIMIT_FSIZE, _FILE_BYTES)
        if not self.gpu:
            # Counts private memory, touched or not; a GPU driver reserves more than there is.
            _lower(resource.RLIMIT_DATA, _data_bytes() + self.memory)
        return (
            f"resources: {self.memory / 1e9:.1f} GB of memory, {self.processes} processes, "
            f"files of {_FILE_BYTES / 1e9:.1f} GB"
        )

    def _files(self, temporary: Path) -> str:
        try:
            rules = landlock.Ruleset()
        except OSError as error:
            with contextlib.suppress(OSError):
                landlock.no_new_privileges()
            return f"files: {NOT_PROTECTED} (no Landlock in this kernel: {error.strerror})"
        hidden = [Path(path) for path in self.hides]
        readable = [Path(p).resolve() for p in (*_SYSTEM, *_python_paths(), *_tool_paths())]
        for name in self.reads:
            readable += _expanded(name, rules)
        for path in dict.fromkeys(readable):
            rules.allow_except(path, landlock.READ, hidden)
        for name in self.uses:
            rules.allow(Path(name).resolve(), landlock.READ)
        for name in (*self.writes, str(temporary), "/dev/shm"):
            rules.allow(Path(name).resolve(), landlock.WRITE)
        # CUDA names its threads by writing to task/<thread>/comm, else it does not start.
        rules.allow(Path(f"/proc/{os.getpid()}/task"), landlock.WRITE)
        for pattern in _DEVICES:
            for device in Path("/dev").glob(pattern):
                rules.allow(device, landlock.DEVICE)
        rules.restrict()
        also = (", TCP" if rules.tcp else "") + (", signals" if rules.signals else "")
        return f"files: Landlock (version {rules.version}{also})"


def confine(
    candidate: Candidate | None, hides: Sequence[str], gpu: bool, memory: int | None = None
) -> Confinement:
    """The confinement of ``candidate``, or of none, to see what there is on this machine.

    Args:
        hides: files that it may not read, such as the problem.
        gpu: whether it runs on one.
        memory: bytes; a share of what is available by default.
    """
    data = home().resolve()
    # By content: no candidate meets what another has left behind.
    own = data / "candidates" / (candidate.digest if candidate is not None else "none")
    shared = data / "builds"
    for folder in (own, shared):
        folder.mkdir(parents=True, exist_ok=True)
    cores = len(os.sched_getaffinity(0))
    hidden = [Path(path).resolve() for path in hides]
    # Python keeps a compiled copy of what it has imported.
    hidden += [Path(importlib.util.cache_from_source(str(p))) for p in hidden if p.suffix == ".py"]
    reads: tuple[str, ...] = ()
    if candidate is not None:
        place = candidate.folder
        reads = (place if Path(place).name == candidate.name else f"{place}/*",)
    return Confinement(
        reads=reads,
        hides=(*map(str, hidden), str(data)),
        writes=(str(own),),
        uses=(str(shared),),
        memory=memory if memory is not None else int(_MEMORY_SHARE * available_memory()),
        processes=64 + 8 * cores,
        gpu=gpu,
    )


def available_memory() -> int:
    """Bytes that this process could still take: the machine's, or less in a container."""
    free = 1 << 62
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
    for limit, used in _cgroup_files():
        with contextlib.suppress(OSError, ValueError):
            # "max" where there is no limit: not a number.
            free = min(free, max(0, int(limit.read_text()) - int(used.read_text())))
    return free


def _cgroup_files() -> list[tuple[Path, Path]]:
    root = Path("/sys/fs/cgroup")
    found = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, where = line.split(":", 2)
            for at in (where.lstrip("/"), ""):
                if not controllers:
                    folder = root / at
                    found.append((folder / "memory.max", folder / "memory.current"))
                elif controllers == "memory":
                    folder = root / "memory" / at
                    names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
                    found.append((folder / names[0], folder / names[1]))
    return found


def _lower(which: int, value: int) -> None:
    """Set a soft and hard limit, unless it is lower already."""
    _, hard = resource.getrlimit(which)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(which, (value, value))


def _data_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    return 0


def _environment(temporary: Path, caches: Path) -> None:
    import tempfile

    for name in ("TMPDIR", "TEMP", "TMP"):
        os.environ[name] = str(temporary)
    tempfile.tempdir = None
    for name, folder in _CACHES.items():
        (caches / folder).mkdir(exist_ok=True)
        os.environ[name] = str(caches / folder)
    os.environ["KERNELPROOF_HOME"] = str(home().resolve())
    os.environ[BUILDS_VARIABLE] = str(caches / "builds")


def _network() -> str:
    """A network namespace of its own has not even the loopback device up."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEWNET) == 0:
        return "network: none (namespace)"
    if landlock.version() >= 4:
        return "network: no TCP (Landlock); other protocols are open"
    return f"network: {NOT_PROTECTED} (no right to make a network namespace, Landlock before 4)"


def _capabilities() -> str:
    """Root keeps the rights of files only, and can then not attach to processes that have more."""
    if os.geteuid() != 0:
        return ""
    libc = ctypes.CDLL(None, use_errno=True)
    header = struct.pack("=Ii", _CAPSET_VERSION, 0)
    with contextlib.suppress(OSError):
        text = Path("/proc/self/status").read_text()
        held = int(text.split("CapPrm:", 1)[1].split()[0], 16) & _KEPT_CAPABILITIES
        data = struct.pack("=6I", held, held, 0, 0, 0, 0)
        if libc.capset(header, data) == 0:
            return "rights: root's dropped, but those of files"
    return f"rights: {NOT_PROTECTED} (the candidate runs as root)"


def _python_paths() -> list[str]:
    """Where Python, its packages and this package lie."""
    found = [str(Path(__file__).parents[1]), sys.prefix, sys.base_prefix, sys.exec_prefix]
    found += [sys.pycache_prefix] if sys.pycache_prefix else []
    found += [str(Path(sys.executable).resolve().parents[1]), *filter(None, sys.path)]
    return _not_personal(found)


def _tool_paths() -> list[str]:
    """Installations of compilers and of CUDA outside the system's folders."""
    found = []
    for name in ("g++", "c++", "clang++", "gcc", "nvcc", "ninja"):
        tool = shutil.which(name)
        if tool is not None:
            found += [str(Path(tool).parent), str(Path(tool).resolve().parents[1])]
    for variable in ("CUDA_HOME", "CUDA_PATH", "LD_LIBRARY_PATH"):
        found += [p for p in os.environ.get(variable, "").split(":") if p]
    return _not_personal(found)


def _not_personal(paths: list[str]) -> list[str]:
    """Without the current folder, a home, and what is above: their standing on some search path is
    no reason to open everything in them."""
    closed = {Path.home(), *Path.home().parents}
    with contextlib.suppress(FileNotFoundError):
        # It may have been removed since this process was started.
        closed |= {Path.cwd(), *Path.cwd().parents}
    return [path for path in paths if Path(path).resolve() not in closed]


def _expanded(name: str, rules: landlock.Ruleset) -> list[Path]:
    """A folder, or with ``/*`` the sources in it; the folder itself can then be listed."""
    if not name.endswith("/*"):
        return [Path(name).resolve()]
    folder = Path(name[:-2]).resolve()
    rules.allow(folder, landlock.LIST)
    found = [p for p in folder.iterdir() if p.suffix in _BESIDE and p.is_file()]
    found += [p.parent for p in folder.glob("*/__init__.py")]
    return found
