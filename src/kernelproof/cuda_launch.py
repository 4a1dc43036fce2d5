"""Launches of loaded CUDA kernels through the driver: arguments as bytes, and configurations."""

from __future__ import annotations

import ctypes
import functools
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from kernelproof import launching

_INVALID_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT: this thread has none yet


class Loaded:
    """A kernel on one device: what a launch needs, looked up once."""

    def __init__(self, kernel: Any, device: int, name: str) -> None:
        import cuda.bindings.driver as driver
        import torch

        self.name = name
        self.driver = driver
        self.current_stream = torch._C._cuda_getCurrentRawStream
        self.current_device = torch._C._cuda_getDevice
        self.kernel = kernel
        self.start = _cu_launch_kernel_ex()
        self.function = int(kernel.handle)
        self.device = device
        self.layout = [(int(info.offset), int(info.size)) for info in kernel.arguments_info]
        self.packers: dict[tuple[type, ...], Packer] = {}
        # Addresses of configurations, and what they are the addresses of.
        self.configs: dict[tuple[Any, ...], int] = {}
        self.kept: list[Any] = []
        self.count_shared(_static_shared(name, kernel, device))
        # The arguments as they lie in the driver's parameter buffer, and the addresses of each.
        length = max((offset + size for offset, size in self.layout), default=1)
        self.memory = ctypes.create_string_buffer(length)
        base = ctypes.addressof(self.memory)
        self.addresses = (ctypes.c_void_p * (len(self.layout) + 1))(
            *(base + offset for offset, _ in self.layout)
        )
        self.parameters = ctypes.addressof(self.addresses)
        self.lock = threading.Lock()

    def count_shared(self, static: int) -> None:
        """``static``: bytes of shared memory that the kernel declares with a size."""
        self.static = static
        # Bytes of dynamic shared memory; both kinds count for what a block gets without opting in.
        self.allowed = launching.without_opt_in(static)

    def launch(self, args: Sequence[Any], how: tuple[Any, ...]) -> None:
        """``how``: grid, block, shared, cluster, programmatic, cooperative, opt_in."""
        kinds = tuple(map(type, args))
        packer = self.packers.get(kinds)
        if packer is None:
            packer = self.packers[kinds] = Packer(args, self.layout)
        key = (*how, self.current_stream(self.device))
        config = self.configs.get(key)
        if config is None:
            config = self.configs[key] = self.config(how, key[-1])
        with self.lock:  # the memory of the arguments is one for all threads
            packer.pack(self.memory, args)
            status = self.start(config, self.function, self.parameters, None)
        if status:
            self.failed(status)

    def failed(self, status: int) -> NoReturn:
        result = self.driver.CUresult(status)
        raise RuntimeError(f"CUDA error at the launch of {self.name}: {result!r}")

    def config(self, how: tuple[Any, ...], stream: int) -> int:
        """Address of the driver's form of ``how``, as of `launch`, on a stream."""
        grid, block, shared, cluster, programmatic, cooperative, opt_in = how
        blocks, threads = triple(grid), triple(block)
        launching.check(self.name, blocks, threads, shared, opt_in, self.static)
        if shared > self.allowed:  # never less than an earlier configuration was granted
            _allow_shared(self.name, self.kernel, shared, self.static, self.device)
            self.allowed = shared
        attributes = []
        kinds = self.driver.CUlaunchAttributeID

        def attribute(kind: Any) -> Any:
            made = self.driver.CUlaunchAttribute()
            made.id = kind
            attributes.append(made)
            return made.value

        if cluster is not None:
            sizes = triple(cluster)
            if any(g % c for g, c in zip(blocks, sizes, strict=True)):
                raise ValueError(f"grid {blocks} is not a multiple of the cluster {sizes}")
            value = attribute(kinds.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION).clusterDim
            value.x, value.y, value.z = sizes
        if programmatic:
            value = attribute(kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
            value.programmaticStreamSerializationAllowed = 1
        if cooperative:
            attribute(kinds.CU_LAUNCH_ATTRIBUTE_COOPERATIVE).cooperative = 1
        config = self.driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = blocks
        config.blockDimX, config.blockDimY, config.blockDimZ = threads
        config.sharedMemBytes = shared
        config.hStream = self.driver.CUstream(stream)
        config.attrs, config.numAttrs = attributes, len(attributes)
        self.kept.append(config)
        return int(config.getPtr())


@functools.cache
def _cu_launch_kernel_ex() -> Any:
    """``cuLaunchKernelEx`` of the driver, which torch has loaded. Called like this it takes half of
    the host time that the bindings take."""
    function = ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx
    function.argtypes = [ctypes.c_void_p] * 4
    function.restype = ctypes.c_int
    return function


def bound(loaded: Loaded, args: Sequence[Any], how: tuple[Any, ...]) -> Callable[..., None]:
    """Launches of one kernel that differ in their tensors' addresses only.

    Everything else lies ready: for calls that take longer on the host than on the GPU. The function
    launches on the current stream of the device. It takes ``data_ptr()`` of each tensor among the
    arguments and ``encoded()`` of each tensor map, in their order.

    Args:
        loaded: the kernel on its device.
        args: the arguments of one launch.
        how: as of `Loaded.launch`.
    """
    # What does not change lies as in the driver's parameter buffer, the rest by itself.
    fixed = ctypes.create_string_buffer(len(loaded.memory))
    Packer(args, loaded.layout).pack(fixed, args)
    changing = [i for i, arg in enumerate(args) if changes(arg)]
    letters = ("Q" if hasattr(args[i], "data_ptr") else f"{loaded.layout[i][1]}s" for i in changing)
    form = struct.Struct("<" + "".join(letters))
    memory = ctypes.create_string_buffer(form.size)
    at = ctypes.addressof(memory)
    places = [ctypes.addressof(fixed) + offset for offset, _ in loaded.layout]
    for i in changing:
        places[i], at = at, at + loaded.layout[i][1]
    addresses = (ctypes.c_void_p * (len(places) + 1))(*places)
    kept = fixed, memory, addresses
    parameters = ctypes.addressof(addresses)
    configs: dict[int, int] = {}  # by stream
    # Names of this function are found faster than attributes.
    device, function, start, pack = loaded.device, loaded.function, loaded.start, form.pack_into
    current_device, current_stream = loaded.current_device, loaded.current_stream
    lock = threading.Lock()

    def launch(*values: int | bytes) -> None:
        if current_device() != device:
            import torch

            with torch.cuda.device(device):
                launch(*values)
            return
        stream = current_stream(device)
        config = configs.get(stream)
        if config is None:
            config = configs[stream] = loaded.config(how, stream)
        with lock:  # the memory of the arguments is one for all threads
            pack(kept[1], 0, *values)
            status = start(config, function, parameters, None)
            if status == _INVALID_CONTEXT:
                bind_context(device)
                status = start(config, function, parameters, None)
        if status:
            loaded.failed(status)

    return launch


def bind_context(device: int) -> None:
    """Give this thread the primary context of ``device``, where it has none: the CUDA runtime, and
    so torch, does so at its first call in a thread, and the first thing that a thread of autograd
    does may be a launch through the driver."""
    import cuda.bindings.driver as driver

    def call(result: tuple[Any, ...]) -> Any:
        if int(result[0]):
            raise RuntimeError(f"no context on cuda:{device} for this thread: {result[0]!r}")
        return result[1] if len(result) > 1 else None

    if not int(call(driver.cuCtxGetCurrent())):
        call(driver.cuCtxSetCurrent(call(driver.cuDevicePrimaryCtxRetain(device))))


def changes(arg: Any) -> bool:
    """Whether an argument has an address: a tensor or a tensor map."""
    return hasattr(arg, "data_ptr") or hasattr(arg, "encoded")


class Packer:
    """Puts arguments of given Python types where a kernel's parameters lie.

    Args:
        args: an example of each.
        layout: offset and size in bytes of each parameter.

    Raises:
        TypeError: their number is wrong, or one of them is no argument for its parameter.
    """

    def __init__(self, args: Sequence[Any], layout: Sequence[tuple[int, int]]) -> None:
        if len(args) != len(layout):
            raise TypeError(f"the kernel takes {len(layout)} arguments, {len(args)} given")
        form, at = "<", 0
        # Where the value itself is not what is packed.
        self.converted: list[tuple[int, Callable[[Any], Any]]] = []
        for number, (arg, (offset, size)) in enumerate(zip(args, layout, strict=True)):
            letter, convert = _packed_as(arg, number, size)
            form += f"{offset - at}x{letter}"
            at = offset + size
            if convert is not None:
                self.converted.append((number, convert))
        self.form = struct.Struct(form)

    def pack(self, memory: Any, args: Sequence[Any]) -> None:
        values = list(args)
        for number, convert in self.converted:
            values[number] = convert(values[number])
        self.form.pack_into(memory, 0, *values)


def _packed_as(arg: Any, number: int, size: int) -> tuple[str, Callable[[Any], Any] | None]:
    """The letter of `struct` for an argument, and what makes its value; None for the value."""
    # What is packed has the size of its parameter, or all behind it would lie at wrong places.
    if arg is None and size == 8:
        return "Q", lambda _: 0
    if isinstance(arg, int):
        letters = {1: "?" if isinstance(arg, bool) else "b", 2: "h", 4: "i", 8: "q"}
        if size in letters:
            return letters[size], None
    if isinstance(arg, float):
        letters = {2: "e", 4: "f", 8: "d"}
        if size in letters:
            return letters[size], None
    if hasattr(arg, "data_ptr") and size == 8:
        return "Q", type(arg).data_ptr
    if hasattr(arg, "encoded"):  # a TensorMap
        return f"{size}s", lambda value: _exactly(value.encoded(), number, size)
    if hasattr(arg, "tobytes"):  # a scalar of numpy
        return f"{size}s", lambda value: _exactly(value.tobytes(), number, size)
    if isinstance(arg, bytes):
        return f"{size}s", lambda value: _exactly(value, number, size)
    raise TypeError(f"argument {number} is {arg!r}, and the kernel's parameter has {size} bytes")


def _exactly(value: bytes, number: int, size: int) -> bytes:
    if len(value) != size:
        raise TypeError(f"argument {number} has {len(value)} bytes, the kernel's parameter {size}")
    return value


def triple(value: int | tuple[int, ...]) -> tuple[int, ...]:
    sizes = (value,) if isinstance(value, int) else tuple(value)
    return sizes + (1,) * (3 - len(sizes))


def _static_shared(name: str, kernel: Any, device: int) -> int:
    """Bytes of shared memory that a kernel declares with a size."""
    import cuda.bindings.driver as driver

    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
    status, found = driver.cuKernelGetAttribute(attribute, kernel.handle, device)
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"CUDA does not tell the shared memory of {name}: {status!r}")
    return int(found)


def _allow_shared(name: str, kernel: Any, nbytes: int, static: int, device: int) -> None:
    """Opt in to ``nbytes`` of dynamic shared memory per block, with which it has over 48 KiB."""
    import cuda.bindings.driver as driver

    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    status = driver.cuKernelSetAttribute(attribute, nbytes, kernel.handle, device)[0]
    if status != driver.CUresult.CUDA_SUCCESS:
        launching.refuse(
            name,
            f"{launching.asked(nbytes, static)}, more than this GPU grants one that opts in "
            f"({status})",
        )
