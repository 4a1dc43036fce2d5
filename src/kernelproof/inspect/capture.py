"""Inside a worker: which kernels a candidate compiles, and how it launches them, without a GPU.

The candidate is imported, constructed and called as for a check, on CPU tensors that torch says are
on the named GPU. Launches are noted and not carried out, so a candidate whose launches depend on
values that a kernel computes may go another way than on a GPU.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import functools
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from kernelproof.cuda import Kernel
from kernelproof.errors import CandidateError
from kernelproof.inspect import compile as compiling
from kernelproof.inspect import devices

# Largest cubin that is sent, bytes; it goes as text.
_MOST = 64 << 20


class Capture:
    """Takes the place of the emulator's recorder: notes launches and sources."""

    form = "cubin"

    def __init__(self, device: devices.Device) -> None:
        self.device = device
        self.kernels: dict[tuple[str, str, tuple[str, ...]], Kernel] = {}
        self.triton: dict[tuple[str, int], bytes] = {}
        self.sources: list[tuple[str, list[str], list[str]]] = []
        self.launches: dict[Any, dict[Any, int]] = {}
        self.stopped = ""

    def launch(
        self, source: Any, name: str, options: Sequence[str], args: Sequence[Any], grid: Any,
        block: Any, shared: int, cluster: Any, opt_in: bool,
    ) -> None:  # fmt: skip
        key = (str(source), name, tuple(options))
        if key not in self.kernels:
            self.kernels[key] = Kernel(source, name, options)
        self._note(key, grid, block, shared, cluster, args)

    def launch_triton(
        self, code: bytes, name: str, args: dict[str, Any], grid: Any, block: int, shared: int
    ) -> None:
        key = (name, hash(code))
        self.triton[key] = code
        self._note(key, grid, block, shared, None, list(args.values()))

    def _note(
        self, key: Any, grid: Any, block: Any, shared: int, cluster: Any, args: Sequence[Any]
    ) -> None:
        dtypes = dict.fromkeys(
            str(a.dtype).removeprefix("torch.") for a in args if hasattr(a, "dtype")
        )
        sizes = _three(grid), _three(block), int(shared), _three(cluster) if cluster else None
        seen = self.launches.setdefault(key, {})
        shape = (*sizes, tuple(dtypes))
        seen[shape] = seen.get(shape, 0) + 1

    def taken(self) -> list[Any]:
        """No results: nothing was run."""
        return []

    def launched(self) -> int:
        """None: nothing was run."""
        return 0

    def note_made(self, name: str, args: Any, kwargs: Any, out: Any, launched: bool) -> None:
        """What a function of torch gave, of which no kernel's numbers are part."""

    def untouched(self, leaves: Any) -> list[int]:
        """No outputs are judged."""
        return []

    def note_empty(self, tensor: Any) -> None:
        """New memory, which nobody reads here."""

    def note_host(self, tensor: Any) -> None:
        """A tensor on the CPU, which nobody reads either."""

    def is_host(self, tensor: Any) -> bool:
        return False

    def moved(self, module: Any) -> None:
        """Weights, which stay where they are."""

    @property
    def properties(self) -> Any:
        """What torch tells about the GPU."""
        c = self.device.capability
        return types.SimpleNamespace(
            name=self.device.title, major=c.arch // 10, minor=c.arch % 10, warp_size=devices.WARP,
            multi_processor_count=self.device.multiprocessors,
            shared_memory_per_block=devices.SHARED_DEFAULT,
            shared_memory_per_block_optin=c.shared_block,
            shared_memory_per_multiprocessor=c.shared,
            max_threads_per_multi_processor=c.threads, regs_per_multiprocessor=c.registers,
            total_memory=64 << 30, L2_cache_size=32 << 20,
        )  # fmt: skip

    def captured(self) -> dict[str, Any]:
        """Compile what was seen; plain values for the parent."""
        target = self.device.target
        found = []
        for key, kernel in self.kernels.items():
            # What was made and not launched is for other inputs than these.
            if self.launches and key not in self.launches:
                continue
            made, symbol = compiling.with_nvrtc(kernel, target)
            found.append(self._one(made, [symbol], kernel.name, self.launches.get(key), True))
        for triton_key, code in self.triton.items():
            launches = self.launches.get(triton_key)
            made = compiling.Compiled(code, _triton_version(), "")
            found.append(self._one(made, [triton_key[0]], triton_key[0], launches, True))
        for kind, sources, options in self.sources:
            compiled = (
                [compiling.inline(sources, target, options)] if kind == "inline" else
                [compiling.nvcc(Path(s), target, options) for s in sources]
            )  # fmt: skip
            found += [self._one(made, [], "", None, None) for made in compiled]
        return {"modules": found, "stopped": self.stopped}

    def _one(
        self, made: compiling.Compiled, symbols: list[str], name: str, launches: Any,
        opted_in: bool | None,
    ) -> dict[str, Any]:  # fmt: skip
        return {
            "cubin": base64.b64encode(made.cubin[:_MOST]).decode(),
            "compiler": made.compiler,
            "said": made.said,
            "symbols": symbols,
            "name": name,
            "launches": [[list(shape), count] for shape, count in (launches or {}).items()],
            "opted_in": opted_in,
        }


def capture(host: Any, request: dict[str, Any], payload: Any) -> dict[str, Any]:
    """Answer a request of the parent. ``payload``: what to construct the module with and the
    inputs of one call, or None to import only."""
    from kernelproof.build import prepare
    from kernelproof.emulate.standin import standing_in
    from kernelproof.importing import import_file

    device = dataclasses.replace(
        devices.find(request["gpu"]), multiprocessors=int(request["multiprocessors"])
    )
    host.recorder = seen = Capture(device)
    prepare(request["language"])
    with _noting(seen):
        if payload is None:
            host.path = request["path"]
            with standing_in(seen):
                import_file(Path(request["path"]), "candidate")
        else:
            constructed, inputs, seed = payload
            host.load(request, constructed)
            try:
                host.call({"repeats": 1, "poison": False}, (inputs, seed))
            except _Captured as stop:
                seen.stopped = str(stop)
            except CandidateError:
                raise
            except Exception as error:
                if not (seen.launches or seen.sources):
                    raise
                seen.stopped = f"{type(error).__name__}: {error}"
    return seen.captured()


class _Captured(Exception):
    """A function was called whose launches are made in C++ and cannot be seen here."""


class _Functions:
    """Stands for an extension that was not built."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, function: str) -> Any:
        if function.startswith("__"):
            raise AttributeError(function)

        def called(*_: Any, **__: Any) -> Any:
            raise _Captured(
                f"{self._name}.{function} launches its kernels in C++, which takes a GPU to see"
            )

        return called


@contextlib.contextmanager
def _noting(seen: Capture) -> Iterator[None]:
    """Inside, kernels and extensions that are made are noted."""
    import torch.utils.cpp_extension as extension

    import kernelproof.build as building

    made = Kernel.__init__
    inline = extension.load_inline

    @functools.wraps(made)
    def noted(self: Kernel, source: Any, name: str, options: Sequence[str] = ()) -> None:
        made(self, source, name, options)
        where = self.path if self.path is not None else self.source
        seen.kernels.setdefault((str(where), name, self.options), self)

    @functools.wraps(inline)
    def load_inline(name: str, cpp_sources: Any = "", *args: Any, **kwargs: Any) -> Any:
        cuda = kwargs.get("cuda_sources") or (args[0] if args else None)
        texts = [cuda] if isinstance(cuda, str) else list(cuda or [])
        if any(text.strip() for text in texts):
            seen.sources.append(("inline", texts, list(kwargs.get("extra_cuda_cflags") or [])))
        return _Functions(name)

    def torch_op(namespace: str, sources: Any, **how: Any) -> Any:
        files = [str(s) for s in sources if str(s).endswith(".cu")]
        flags = [*_stable_flags(), *how.get("cuda_flags", ())]
        seen.sources.append(("files", files, flags))
        return _Functions(namespace)

    with (
        mock.patch.object(Kernel, "__init__", noted),
        mock.patch.object(extension, "load_inline", load_inline),
        mock.patch.object(building, "torch_op", torch_op),
    ):
        yield


def _stable_flags() -> list[str]:
    import torch
    from torch.utils.cpp_extension import include_paths

    from kernelproof.build.stable import target_version

    includes = [f"-I{path}" for path in include_paths()]
    return ["-O3", "-DUSE_CUDA", target_version(torch.__version__), *includes]


def _triton_version() -> str:
    import triton

    return f"Triton {triton.__version__}"


def _three(sizes: Any) -> tuple[int, ...]:
    given = (sizes,) if isinstance(sizes, int) else tuple(int(n) for n in sizes)
    return (*given, 1, 1, 1)[:3]
