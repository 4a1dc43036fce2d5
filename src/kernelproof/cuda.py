"""CUDA kernels from source in a tenth of a second: NVRTC through cuda-core, no nvcc needed.

    from kernelproof.cuda import Kernel

    add = Kernel('extern "C" __global__ void add(const float* x, float* y, int n) {...}', "add")
    add(x, y, n, grid=(n + 255) // 256, block=256)

Compiling needs only wheels (``pip install 'kernelproof[cuda]'``), no GPU; launching needs one.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelproof import launching
from kernelproof.build.cache import cached, content_key
from kernelproof.cuda_launch import Loaded, bind_context, bound, triple
from kernelproof.errors import CompileError, UnsupportedError

_MISSING = "compiling CUDA source needs cuda-core and NVRTC: pip install 'kernelproof[cuda]'"


class Kernel:
    """One `__global__` function of a CUDA C++ source.

    Args:
        source: CUDA C++ text, or the path of a `.cu` file. Includes are searched in the file's
            folder and in the CUDA header wheels.
        name: the function. A template instance is written as C++ names it, for example
            ``"scale<float, 4>"``; a plain function may be ``extern "C"`` or not.
        options: further NVRTC options, such as ``("-DTILE=64", "--use_fast_math")``.

    A call launches on the current stream of the device of the first tensor argument. Arguments:
    tensors pass their data pointer, ``None`` a null pointer; Python ints and floats take the size
    that the kernel's parameter has (int32 or int64, float32 or float64); a structure by value is
    given as its bytes; a `kernelproof.tensor_map.TensorMap` as a ``const __grid_constant__
    CUtensorMap``.
    """

    def __init__(self, source: str | Path, name: str, options: Sequence[str] = ()) -> None:
        path = Path(source) if isinstance(source, Path) or _looks_like_path(source) else None
        if path is not None and not path.is_file():
            raise CompileError(f"CUDA source {path} does not exist")
        self.path = path
        self.source = path.read_text() if path is not None else str(source)
        self.name = name
        self.options = tuple(options)
        self._loaded: dict[int, Loaded] = {}

    def compile(self, arch: str | None = None) -> bytes:
        """The cubin for ``arch`` (such as ``"sm_90a"``; the present GPU's by default).

        Raises:
            CompileError: with NVRTC's own lines, naming the user's file.
            UnsupportedError: cuda-core or NVRTC is missing, or no ``arch`` given and no GPU.
        """
        return self._compile(arch or present_arch())[0]

    def compile_verbose(self, arch: str) -> tuple[bytes, str, str]:
        """The cubin for ``arch``, the symbol of the function in it, and what the assembler said of
        its registers and spills. Errors as `compile`."""
        nvrtc = nvrtc_bindings()
        log: list[str] = []
        options = [*self._options(arch), "--ptxas-options=-v"]
        code, mangled = run_nvrtc(nvrtc, self.source, self._file, [self.name], options, log=log)
        return code, mangled[0], "\n".join(log)

    def __call__(
        self,
        *args: Any,
        grid: int | tuple[int, ...],
        block: int | tuple[int, ...],
        shared: int = 0,
        cluster: int | tuple[int, ...] | None = None,
        programmatic: bool = False,
        cooperative: bool = False,
        opt_in: bool = True,
    ) -> None:
        """Launch.

        Args:
            grid, block: in blocks and in threads; with ``cluster``, the grid still counts blocks.
            shared: dynamic shared memory in bytes; where it and the memory that the kernel declares
                are more than 48 KiB, the opt-in is made here.
            cluster: blocks per cluster (sm_90 and later).
            programmatic: programmatic dependent launch; the kernel must wait with
                ``griddepcontrol.wait`` before it touches memory.
            cooperative: all blocks run at the same time, so that they may wait for one another.
            opt_in: False refuses dynamic shared memory that makes more than 48 KiB with what the
                kernel declares, as `<<<...>>>` does where nobody has set the attribute.

        Raises:
            CandidateCrash: the launch asks for more threads or shared memory than a block can have.
            RuntimeError: CUDA refuses the launch, or an earlier kernel has failed.
        """
        if _taker is not None:
            launching.check(self.name, triple(grid), triple(block), shared, opt_in)
            source = self.path if self.path is not None else self.source
            _taker(source, self.name, self.options, args, grid, block, shared, cluster, opt_in)
            return
        device = _device_of(args)
        with _made_current(device):
            if device not in _contexts.devices:
                bind_context(device)
                _contexts.devices |= {device}
            loaded = self._loaded.get(device)
            if loaded is None:
                loaded = self._loaded[device] = self._load(device)
            loaded.launch(args, (grid, block, shared, cluster, programmatic, cooperative, opt_in))

    def again(self, device: int, args: Sequence[Any], how: tuple[Any, ...]) -> None:
        """A call in less host time, for launches whose form is known.

        Args:
            device: index of the CUDA device of ``args``.
            how: grid, block, shared, cluster, programmatic, cooperative and opt_in.
        """
        loaded = self._loaded.get(device)
        ready = _taker is None and device in _contexts.devices
        if loaded is None or not ready or loaded.current_device() != device:
            grid, block, *rest = how
            names = ("shared", "cluster", "programmatic", "cooperative", "opt_in")
            self(*args, grid=grid, block=block, **dict(zip(names, rest, strict=True)))
        else:
            loaded.launch(args, how)

    def bound(
        self, device: int, args: Sequence[Any], how: tuple[Any, ...]
    ) -> Callable[..., None] | None:
        """Further launches that differ from this one in addresses only; None where launches are
        taken (`taking_launches`). Arguments as of `again`."""
        if _taker is not None:
            return None
        loaded = self._loaded.get(device)
        if loaded is None:
            loaded = self._loaded[device] = self._load(device)
        return bound(loaded, args, how)

    def _load(self, device: int) -> Loaded:
        core = _core()
        code, mangled = self._compile(present_arch(device))
        module = core.ObjectCode.from_cubin(code)
        return Loaded(module.get_kernel(mangled), device, self.name)

    def _compile(self, arch: str) -> tuple[bytes, str]:
        """The cubin and the mangled name of the function; from the cache where possible."""
        nvrtc = nvrtc_bindings()
        headers = sorted(h for folder in self._include for h in folder.glob("*.cuh"))
        options = self._options(arch)
        key = content_key(
            "nvrtc", nvrtc.nvrtcVersion(), arch, self.name, self.options, self.source,
            *(part for path in headers for part in (path.name, path.read_bytes())),
        )  # fmt: skip

        def fill(folder: Path) -> None:
            code, mangled = run_nvrtc(nvrtc, self.source, self._file, [self.name], options)
            (folder / "kernel.cubin").write_bytes(code)
            (folder / "name").write_text(mangled[0])

        folder, _ = cached(key, fill)
        return (folder / "kernel.cubin").read_bytes(), (folder / "name").read_text()

    @property
    def _file(self) -> str:
        return str(self.path) if self.path is not None else "source.cu"

    @property
    def _include(self) -> list[Path]:
        return [self.path.parent] if self.path is not None else []

    def _options(self, arch: str) -> list[str]:
        folders = (*self._include, *header_folders())
        options = [f"--gpu-architecture={arch}", "--std=c++17", "--generate-line-info"]
        return [*options, *self.options, *(f"-I{folder}" for folder in folders)]


# What takes launches instead of a GPU, if anything does.
_taker: Callable[..., None] | None = None


@contextlib.contextmanager
def taking_launches(taker: Callable[..., None]) -> Iterator[None]:
    """Inside, every launch calls ``taker(source, name, options, args, grid, block, shared,
    cluster, opt_in)`` and does nothing else; ``source`` is a path or the text."""
    global _taker
    before, _taker = _taker, taker
    try:
        yield
    finally:
        _taker = before


def launches_are_taken() -> bool:
    """Whether `taking_launches` is in force."""
    return _taker is not None


def present_arch(device: int | None = None) -> str:
    """The NVRTC target of the present GPU, such as ``"sm_90a"``.

    Raises UnsupportedError where torch sees no CUDA device.
    """
    import torch

    if not torch.cuda.is_available():
        raise UnsupportedError(
            "this CUDA kernel needs an NVIDIA GPU, and torch sees none on this machine; "
            "`kernelproof doctor` tells what is missing"
        )
    major, minor = torch.cuda.get_device_capability(device)
    # The "a" targets add instructions (wgmma, setmaxnreg) and run on that very architecture only.
    return f"sm_{major}{minor}" + ("a" if major in (9, 10, 12) else "")


@functools.cache
def nvrtc_bindings() -> Any:
    """The bindings of NVRTC. Raises UnsupportedError where they or the library are missing."""
    try:
        import cuda.bindings.nvrtc as nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        # The library is looked for at the first call; its absence is a RuntimeError.
        raise UnsupportedError(_MISSING, str(error)) from None
    return nvrtc


def _core() -> Any:
    try:
        import cuda.core as core
    except ImportError as error:
        raise UnsupportedError(_MISSING, str(error)) from None
    return core


def run_nvrtc(
    nvrtc: Any,
    source: str,
    file: str,
    names: Sequence[str],
    options: Sequence[str],
    output: str = "CUBIN",
    headers: Mapping[str, str] | None = None,
    log: list[str] | None = None,
) -> tuple[bytes, list[str]]:
    """Compile; returns the CUBIN or PTX and the mangled names of ``names``.

    ``headers``: text of headers by the name under which they are included. ``log`` takes what the
    compiler says.
    Raises CompileError with the log.
    """

    def call(result: tuple[Any, ...]) -> Any:
        if result[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(f"NVRTC: {nvrtc.nvrtcGetErrorString(result[0])[1].decode()}")
        return result[1] if len(result) == 2 else None

    texts = [text.encode() for text in (headers or {}).values()]
    titles = [title.encode() for title in headers or {}]
    program = call(
        nvrtc.nvrtcCreateProgram(source.encode(), file.encode(), len(texts), texts, titles)
    )
    for name in names:
        call(nvrtc.nvrtcAddNameExpression(program, name.encode()))
    flags = [option.encode() for option in options]
    status = nvrtc.nvrtcCompileProgram(program, len(flags), flags)[0]
    failed = status != nvrtc.nvrtcResult.NVRTC_SUCCESS
    if failed or log is not None:
        said = b" " * call(nvrtc.nvrtcGetProgramLogSize(program))
        call(nvrtc.nvrtcGetProgramLog(program, said))
        text = said.decode(errors="replace").rstrip("\0").strip()
        if log is not None:
            log.append(text)
    if failed:
        why = _missing_kernel(source, text) or "does not compile"
        raise CompileError(f"{Path(file).name} {why} (NVRTC, {options[0]})", text)
    mangled = [call(nvrtc.nvrtcGetLoweredName(program, name.encode())).decode() for name in names]
    code = b" " * call(getattr(nvrtc, f"nvrtcGet{output}Size")(program))
    call(getattr(nvrtc, f"nvrtcGet{output}")(program, code))
    return code, mangled


def _missing_kernel(source: str, said: str) -> str:
    """Words where a kernel was asked for that ``source`` does not have, of which the compiler's log
    speaks as of an identifier in a file of its own; else empty."""
    errors = [line for line in said.splitlines() if "): error:" in line]
    asked = re.search(r'identifier "([^"]+)" is undefined', errors[0]) if errors else None
    if asked is None or not all(line.startswith("__nv_name_map") for line in errors):
        return ""
    plain = re.sub(r"__launch_bounds__\s*\([^)]*\)", "", source)
    known = sorted(set(re.findall(r"__global__[^(;{}]*?(\w+)\s*\(", plain)))
    return f"has no kernel {asked[1]!r}; it has {', '.join(known) or 'none'}"


@functools.lru_cache(maxsize=1)
def header_folders() -> tuple[str, ...]:
    """CUDA headers for NVRTC: of the wheels first, else of an installed toolkit."""
    import importlib.util

    found: list[Path] = []
    spec = importlib.util.find_spec("nvidia")
    for root in list(spec.submodule_search_locations or []) if spec is not None else []:
        found += [path.parent for path in Path(root).glob("*/include/cuda_fp16.h")]
        found += [path.parent for path in Path(root).glob("*/include/crt/host_defines.h")]
    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"
    if not found and toolkit.is_dir():
        found.append(toolkit)
    for folder in list(found):
        if (folder / "cccl").is_dir():
            found.append(folder / "cccl")
    return tuple(dict.fromkeys(str(path) for path in found))


def _looks_like_path(source: str | Path) -> bool:
    return isinstance(source, Path) or ("\n" not in source and source.endswith((".cu", ".cuh")))


def _device_of(args: Sequence[Any]) -> int:
    import torch

    devices = [(n, a.device) for n, a in enumerate(args) if isinstance(a, torch.Tensor)]
    for number, device in devices:
        if device.type != "cuda":
            present_arch()  # says so where there is no GPU at all
            raise on_the_host(number, str(device))
    return int(devices[0][1].index if devices else torch.cuda.current_device())


def on_the_host(number: int, device: str = "cpu") -> TypeError:
    """Of an argument that the kernel cannot reach. `torch.zeros(n)` is such, without a device."""
    return TypeError(
        f"argument {number} of the kernel is a tensor on {device}: make it on the inputs' device, "
        "such as x.new_empty(...) or torch.empty(..., device=x.device)"
    )


def _made_current(device: int) -> contextlib.AbstractContextManager[Any]:
    """A launch wants the device of its stream to be the current one."""
    import torch

    if torch._C._cuda_getDevice() == device:
        return _AS_IS
    return torch.cuda.device(device)


_AS_IS = contextlib.nullcontext()


class _Contexts(threading.local):
    """Devices whose context this thread has been given, or had."""

    devices: frozenset[int] = frozenset()


_contexts = _Contexts()
