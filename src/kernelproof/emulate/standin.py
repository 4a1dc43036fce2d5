"""A CUDA device that is not there: candidates run unchanged on CPU tensors, launches are emulated.

Inside `standing_in` torch answers as if the CPU tensors were on a GPU of compute capability 8.0,
and `kernelproof.cuda.Kernel` and Triton's kernels hand their launches to the emulator. Memory from
`torch.empty` and its like is filled with a pattern by which reads of unwritten elements are known.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from kernelproof import cuda, launching
from kernelproof.build import inline, stable
from kernelproof.cuda_launch import triple
from kernelproof.emulate.api import Loaded, Result, Sizes, load
from kernelproof.emulate.frontend import HOPPER, target_of
from kernelproof.emulate.host.session import Session
from kernelproof.emulate.host.taking import take_files, take_inline, take_sources
from kernelproof.emulate.image import Buffer
from kernelproof.emulate.parts import Parts
from kernelproof.emulate.tensor_maps import argument
from kernelproof.emulate.triton_jit import taking_triton
from kernelproof.tensor_map import TensorMap

# Of an A100, the first GPU of this capability, and of an H200: CUDA C++ guide, table of compute
# capabilities.
_PROPERTIES = types.SimpleNamespace(
    name="emulated sm_80", major=8, minor=0, multi_processor_count=108, warp_size=32,
    shared_memory_per_block=48 * 1024, shared_memory_per_block_optin=163 * 1024,
    shared_memory_per_multiprocessor=164 * 1024, max_threads_per_multi_processor=2048,
    regs_per_multiprocessor=65536, total_memory=40 << 30, L2_cache_size=40 << 20,
)  # fmt: skip
_HOPPER = types.SimpleNamespace(
    name="emulated sm_90", major=9, minor=0, multi_processor_count=132, warp_size=32,
    shared_memory_per_block=48 * 1024, shared_memory_per_block_optin=227 * 1024,
    shared_memory_per_multiprocessor=228 * 1024, max_threads_per_multi_processor=2048,
    regs_per_multiprocessor=65536, total_memory=141 << 30, L2_cache_size=50 << 20,
)  # fmt: skip
# What builds of torch for the CPU lack.
_BUILTIN: dict[str, Any] = {"_cuda_getCurrentRawStream": lambda device: 0}
# A NaN in fp32, fp16 and bf16 that no arithmetic makes.
_UNSET = np.frombuffer(b"\xe5\xff\xb1\xff", np.uint8)
_EMPTY = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
# What is on the CPU unless a device is named.
_MADE = (
    "empty", "empty_strided", "zeros", "ones", "full", "tensor", "arange", "linspace", "eye",
    "rand", "randn", "randint", "randperm", "from_numpy",
)  # fmt: skip


class Recorder:
    """Takes launches and keeps what they showed. ``form``: of the Triton kernels that it gets.

    Args:
        hopper: stand for a GPU of compute capability 9.0 instead of 8.0.
        apart: what is made without naming a device is on the CPU, and no kernel may be given it.
    """

    properties = _PROPERTIES
    form = "ptx"

    def __init__(self, hopper: bool = False, apart: bool = False) -> None:
        self.apart = apart
        if hopper:
            self.properties = _HOPPER
        self.results: list[Result] = []
        self._loaded: dict[tuple[str, str, tuple[str, ...]], Loaded] = {}
        self.parts = Parts()
        self._empty: dict[int, Any] = {}
        # Made on the CPU although there is a GPU: no kernel can reach them.
        self._host: dict[int, Any] = {}

    @functools.cached_property
    def host(self) -> Session:
        """For launches that C++ code makes."""
        return Session(self.keep, written, self._buffer)

    @property
    def launches_from_host(self) -> bool:
        """Whether C++ code has been built that may launch kernels."""
        return "host" in self.__dict__ and bool(self.host.units)

    def keep(self, result: Result) -> None:
        self.results.append(result)

    def prepare(self, language: str, path: Path) -> None:
        """Make ready for the import of the candidate at ``path``. It meets a GPU of sm_90 where its
        sources have instructions that only these know."""
        own = [path, *path.parent.glob("*.cu"), *path.parent.glob("*.cuh")]
        if any(target_of(f.read_text()) == HOPPER for f in own if f.is_file()):
            self.properties = _HOPPER
        if language == "cuda-inline":
            inline.take_cuda = functools.partial(take_inline, self.host)
            inline.take_files = functools.partial(take_files, self.host)
        elif language == "cuda-stable":
            stable.take_cuda = functools.partial(take_sources, self.host)

    def launch(
        self, source: str | Path, name: str, options: Sequence[str], args: Sequence[Any],
        grid: Sizes, block: Sizes, shared: int, cluster: Any, opt_in: bool = True,
    ) -> None:  # fmt: skip
        """Run one launch.

        Raises:
            CandidateCrash: with the shared memory that the kernel declares, it asks for too much.
            CompileError, UnsupportedError: as `load` and `Loaded.launch`.
        """
        key = (str(source), name, tuple(options))
        if key not in self._loaded:
            self._loaded[key] = load(source, name, options)
        kernel = self._loaded[key]
        static = kernel.program().static_shared
        launching.check(name, triple(grid), triple(block), shared, opt_in, static)
        self._reached(args)
        given = [self._buffer(arg) for arg in args]
        self._keep_of(kernel.launch(grid, block, given, shared=shared, cluster=cluster), args)

    def launch_triton(
        self, ptx: str, name: str, args: dict[str, Any], grid: tuple[int, ...], block: int,
        shared: int,
    ) -> None:  # fmt: skip
        """Run one launch of a kernel that Triton has compiled."""
        key = (ptx, name, ())
        if key not in self._loaded:
            kernel = load(ptx, name)
            kernel.parameters = list(args)
            self._loaded[key] = kernel
        kernel = self._loaded[key]
        self._reached(list(args.values()))
        given = [self._buffer(arg) for arg in args.values()]
        # The last parameters are scratch memory that few kernels ask for.
        given += [None] * (len(kernel.program().params) - len(given))
        self._keep_of(kernel.launch(grid, block, given, shared=shared), list(args.values()))

    def _keep_of(self, result: Result, args: Sequence[Any]) -> None:
        self.results.append(result)
        given = [arg.tensor if isinstance(arg, TensorMap) else arg for arg in args]
        self.parts.wrote(result.wrote, given)

    def launched(self) -> int:
        """How many launches there were since they were taken."""
        return len(self.results)

    def note_made(self, name: str, args: Any, kwargs: Any, out: Any, launched: bool) -> None:
        """What a function of torch gave; see `Parts.made`."""
        self.parts.made(name, args, kwargs, out, launched)

    def untouched(self, leaves: Sequence[torch.Tensor]) -> list[int]:
        """Indices of the outputs that kernels were launched for and had no part in; none where C++
        code launches, whose tensors are not all seen."""
        if not self.results or self.launches_from_host:
            return []
        return self.parts.apart(leaves)

    def taken(self) -> list[Result]:
        """The results so far, which are forgotten."""
        results, self.results = self.results, []
        self.parts.clear()
        self._empty.clear()
        self._host.clear()
        return results

    def note_host(self, tensor: torch.Tensor) -> None:
        """A tensor that was made without a GPU's name."""
        storage = tensor.untyped_storage()
        if self.apart and storage.nbytes():
            self._host[storage.data_ptr()] = storage

    def moved(self, module: torch.nn.Module) -> None:
        """Weights and buffers of ``module`` are where it is."""
        for tensor in (*module.parameters(), *module.buffers()):
            self._host.pop(tensor.untyped_storage().data_ptr(), None)

    def is_host(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._host

    def _reached(self, args: Sequence[Any]) -> None:
        """Raises TypeError where a kernel is given what is not on the GPU, as on one."""
        for number, arg in enumerate(args):
            tensor = arg.tensor if isinstance(arg, TensorMap) else arg
            if isinstance(tensor, torch.Tensor) and self.is_host(tensor):
                raise cuda.on_the_host(number)

    def note_empty(self, tensor: torch.Tensor) -> None:
        """New memory without values."""
        storage = tensor.untyped_storage()
        if storage.nbytes():
            data = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
            data[:] = np.resize(_UNSET, len(data))
            self._empty[storage.data_ptr()] = storage

    def _buffer(self, arg: Any) -> Any:
        if isinstance(arg, TensorMap):
            return argument(arg._replace(tensor=self._buffer(arg.tensor)))
        if not isinstance(arg, torch.Tensor):
            return arg
        storage = arg.untyped_storage()
        if storage.data_ptr() not in self._empty or storage.nbytes() == 0:
            return arg
        data = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
        return Buffer(arg, initialised=False, written=written(data))


def written(data: Any) -> Any:
    """Per byte, whether it differs from what new memory is filled with."""
    whole = len(data) // 4 * 4
    written = np.ones(len(data), bool)
    written[:whole] = (data[:whole].view(np.uint32) != _UNSET.view(np.uint32)[0]).repeat(4)
    return written


class _Device(TorchFunctionMode):
    """Calls that ask for a CUDA device get the CPU."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = [v for v in (*args, *(kwargs or {}).values()) if _may_be_a_gpu(v)]
        kwargs = {key: _on_cpu(value) for key, value in (kwargs or {}).items()}
        name = getattr(func, "__name__", "")
        if name == "cuda" and args and isinstance(args[0], torch.Tensor):
            return args[0].clone() if self.recorder.is_host(args[0]) else args[0]
        if name == "__get__" and getattr(func, "__self__", None) is torch.Tensor.is_cuda:
            return True
        if name == "to":
            args = tuple(_on_cpu(arg) for arg in args)
            if named and self.recorder.is_host(args[0]):
                kwargs["copy"] = True
        operator = isinstance(func, (torch._ops.OpOverload, torch._ops.OpOverloadPacket))
        if operator and self.recorder.launches_from_host:
            with self.recorder.host.inside(args, kwargs):
                return func(*args, **kwargs)
        before = self.recorder.launched()
        out = func(*args, **kwargs)
        self.recorder.note_made(name, args, kwargs, out, self.recorder.launched() > before)
        if name in _EMPTY and isinstance(out, torch.Tensor) and out.device.type == "cpu":
            self.recorder.note_empty(out)
        pinned = bool(kwargs.get("pin_memory"))
        if name in _MADE and not (named or pinned) and isinstance(out, torch.Tensor):
            self.recorder.note_host(out)
        return out


def _on_cpu(value: Any) -> Any:
    if not _is_cuda(value):
        return value
    return torch.device("cpu") if isinstance(value, torch.device) else "cpu"


def _may_be_a_gpu(value: Any) -> bool:
    """Whether ``value`` says where to put a tensor, and not that it be the CPU: what `x.device` of
    an input gives says so here too, and is the GPU for the candidate."""
    return _is_cuda(value) or isinstance(value, torch.device)


def _is_cuda(value: Any) -> bool:
    if isinstance(value, torch.device):
        return value.type == "cuda"
    return isinstance(value, str) and value.split(":")[0] == "cuda"


class _NoDevice:
    """torch.cuda.device, torch.cuda.stream and streams, which have nothing to do here."""

    cuda_stream = 0
    device = torch.device("cpu")

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def synchronize(self) -> None:
        return

    def wait_stream(self, stream: Any) -> None:
        return

    def __enter__(self) -> None:
        return

    def __exit__(self, *_: object) -> None:
        return


@contextlib.contextmanager
def standing_in(recorder: Any) -> Iterator[None]:
    """Torch and `Kernel` behave as if there were a GPU: that of the recorder's ``properties``."""
    properties = recorder.properties
    capability = (properties.major, properties.minor)
    answers: dict[str, Any] = {
        "is_available": lambda: True, "current_device": lambda: 0, "device_count": lambda: 1,
        "get_device_properties": lambda device=None: properties,
        "get_device_capability": lambda device=None: capability,
        "get_device_name": lambda device=None: properties.name,
        "is_current_stream_capturing": lambda: False,
        "synchronize": lambda device=None: None, "device": _NoDevice, "stream": _NoDevice,
        "Stream": _NoDevice, "default_stream": _NoDevice, "current_stream": _NoDevice,
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, answer))
        for name, answer in _BUILTIN.items():
            stack.enter_context(mock.patch.object(torch._C, name, answer, create=True))
        stack.enter_context(cuda.taking_launches(recorder.launch))
        stack.enter_context(taking_triton(recorder.launch_triton, capability, recorder.form))
        stack.enter_context(_Device(recorder))
        yield
