"""Matrix products by cuBLASLt, whose algorithm is named instead of guessed.

PyTorch's products take the first algorithm that the library's heuristic proposes. On an H200
another of its proposals is up to 20 % faster (attempts.md). Values of enumerations are those of
cublasLt.h.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from kernelproof.errors import UnsupportedError

_TYPES = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 14}
_COMPUTE_FP32, _COMPUTE_TF32 = 68, 77  # CUBLAS_COMPUTE_32F and _32F_FAST_TF32
_TRANSPOSE_A = 3  # CUBLASLT_MATMUL_DESC_TRANSA
_BATCH_COUNT, _BATCH_STRIDE = 5, 6  # CUBLASLT_MATRIX_LAYOUT_*
_WORKSPACE, _REDUCTIONS, _ALIGNMENT_A = 1, 3, 5  # CUBLASLT_MATMUL_PREF_*
# CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE: parts of a split sum are added in float32, in one order.
_IN_FLOAT32 = 2
# Bytes of each CUBLASLT_ALGO_CONFIG_*: id, tile, split-K, reduction, swizzle, custom, stages, inner
# shape, cluster shape.
_CONFIG_SIZES = (4, 4, 4, 4, 4, 4, 4, 2, 2)
# As PyTorch grants on Hopper.
WORKSPACE_BYTES = 32 << 20
# Proposals that are looked through for an algorithm of the table.
_PROPOSALS = 32


class _Proposal(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("status", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class Form(NamedTuple):
    """``batches`` products (tokens, depth) @ (depth, columns) of the same tokens; strides in
    elements. ``along_depth``: the weight lies contiguously along its depth. ``alignment``: bytes,
    of every operand."""

    dtype: torch.dtype
    tokens: int
    columns: int
    depth: int
    token_stride: int
    weight_stride: int
    along_depth: bool
    out_stride: int
    batches: int = 1
    out_batch: int = 0
    tf32: bool = False
    alignment: int = 16


@functools.cache
def _library() -> Any:
    major = (torch.version.cuda or "0").split(".")[0]
    try:
        return ctypes.CDLL(f"libcublasLt.so.{major}")
    except OSError as error:
        raise UnsupportedError(
            f"libcublasLt.so.{major} of this PyTorch cannot be loaded", str(error)
        ) from None


@functools.cache
def _handle(device: int) -> ctypes.c_void_p:
    made = ctypes.c_void_p()
    with torch.cuda.device(device):
        _done(_library().cublasLtCreate(ctypes.byref(made)), "cublasLtCreate")
    return made


def available() -> bool:
    """Whether the library can be loaded."""
    try:
        _library()
    except UnsupportedError:
        return False
    return True


def _done(status: int, name: str) -> None:
    if status:
        raise RuntimeError(f"{name} failed with status {status} (cublasStatus_t)")


def _set(function: str, of: Any, attribute: int, value: Any) -> None:
    status = getattr(_library(), function)(
        of, ctypes.c_int(attribute), ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value))
    )
    _done(status, function)


class Product:
    """A `Form` on one device, by the proposal whose configuration is ``wanted``, else the first."""

    def __init__(self, form: Form, device: int, wanted: tuple[int, ...] | None = None) -> None:
        self.form, self.device = form, device
        self._lock = threading.Lock()
        self._weight_batch = 0
        library = _library()
        kind = ctypes.c_int(_TYPES[form.dtype])
        compute = _COMPUTE_TF32 if form.tf32 else _COMPUTE_FP32
        self._description = ctypes.c_void_p()
        _done(
            library.cublasLtMatmulDescCreate(
                ctypes.byref(self._description), ctypes.c_int(compute), ctypes.c_int(0)
            ),
            "cublasLtMatmulDescCreate",
        )
        # The library's matrices lie along their columns: it forms out^T = weight^T tokens^T.
        if form.along_depth:
            _set("cublasLtMatmulDescSetAttribute", self._description, _TRANSPOSE_A, ctypes.c_int(1))
        weight = (form.depth, form.columns) if form.along_depth else (form.columns, form.depth)
        self._weight = self._layout(kind, *weight, form.weight_stride)
        self._tokens = self._layout(kind, form.depth, form.tokens, form.token_stride)
        self._out = self._layout(kind, form.columns, form.tokens, form.out_stride)
        if form.batches > 1:
            for layout, stride in (
                (self._weight, 0),
                (self._tokens, 0),
                (self._out, form.out_batch),
            ):
                count = ctypes.c_int32(form.batches)
                _set("cublasLtMatrixLayoutSetAttribute", layout, _BATCH_COUNT, count)
                step = ctypes.c_int64(stride)
                _set("cublasLtMatrixLayoutSetAttribute", layout, _BATCH_STRIDE, step)
            self._set_weight_batch(form.weight_stride * max(form.columns, form.depth))
        self._one, self._zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
        self.proposals = self._proposals()
        configurations = [configuration(p) for p in self.proposals]
        self.choose(configurations.index(wanted) if wanted in configurations else 0)

    def _layout(self, kind: Any, rows: int, columns: int, stride: int) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        status = _library().cublasLtMatrixLayoutCreate(
            ctypes.byref(made), kind, ctypes.c_uint64(rows), ctypes.c_uint64(columns),
            ctypes.c_int64(stride),
        )  # fmt: skip
        _done(status, "cublasLtMatrixLayoutCreate")
        return made

    def _set_weight_batch(self, stride: int) -> None:
        if stride != self._weight_batch:
            step = ctypes.c_int64(stride)
            _set("cublasLtMatrixLayoutSetAttribute", self._weight, _BATCH_STRIDE, step)
            self._weight_batch = stride

    def _proposals(self) -> list[Any]:
        library = _library()
        preference = ctypes.c_void_p()
        _done(library.cublasLtMatmulPreferenceCreate(ctypes.byref(preference)), "PreferenceCreate")
        name = "cublasLtMatmulPreferenceSetAttribute"
        _set(name, preference, _WORKSPACE, ctypes.c_uint64(WORKSPACE_BYTES))
        _set(name, preference, _REDUCTIONS, ctypes.c_uint32(_IN_FLOAT32))
        for operand in range(4):
            _set(name, preference, _ALIGNMENT_A + operand, ctypes.c_uint32(self.form.alignment))
        found = (_Proposal * _PROPOSALS)()
        count = ctypes.c_int()
        with torch.cuda.device(self.device):
            status = library.cublasLtMatmulAlgoGetHeuristic(
                _handle(self.device), self._description, self._weight, self._tokens, self._out,
                self._out, preference, _PROPOSALS, found, ctypes.byref(count),
            )  # fmt: skip
        library.cublasLtMatmulPreferenceDestroy(preference)
        if status or not count.value:
            raise UnsupportedError(f"cuBLASLt has no algorithm for {self.form} (status {status})")
        return [found[i] for i in range(count.value) if found[i].status == 0]

    def choose(self, number: int) -> None:
        """Takes proposal ``number`` from now on."""
        chosen = self.proposals[number]
        self.number, self.workspace = number, int(chosen.workspace)
        # What does not change from call to call, as numbers: conversions cost host time.
        self._before = (_handle(self.device).value, self._description.value, _address(self._one))
        self._algorithm = _address(chosen.algorithm)

    def __call__(
        self, tokens: int, weight: int, out: int, workspace: int, stream: int, weight_batch: int = 0
    ) -> None:
        """Addresses; ``workspace`` of ``self.workspace`` bytes; ``weight_batch``: elements from one
        weight to the next."""
        with self._lock:
            if self.form.batches > 1:
                self._set_weight_batch(weight_batch)
            layout = self._out.value
            status = _matmul()(
                *self._before, weight, self._weight.value, tokens, self._tokens.value,
                _address(self._zero), out, layout, out, layout, self._algorithm, workspace,
                self.workspace, stream,
            )  # fmt: skip
        _done(status, "cublasLtMatmul")


_address = ctypes.addressof


@functools.cache
def _matmul() -> Any:
    function = _library().cublasLtMatmul
    pointer = ctypes.c_void_p
    function.argtypes = [*[pointer] * 14, ctypes.c_size_t, pointer]
    function.restype = ctypes.c_int
    return function


def configuration(proposal: Any) -> tuple[int, ...]:
    """What tells an algorithm from others: the values of `_CONFIG_SIZES` in turn."""
    return tuple(_configuration(proposal))


def _configuration(proposal: Any) -> Iterator[int]:
    for attribute, size in enumerate(_CONFIG_SIZES):
        value = ctypes.c_uint64(0)
        written = ctypes.c_size_t()
        status = _library().cublasLtMatmulAlgoConfigGetAttribute(
            ctypes.byref(proposal.algorithm), ctypes.c_int(attribute), ctypes.byref(value),
            ctypes.c_size_t(size), ctypes.byref(written),
        )  # fmt: skip
        yield 0 if status else int(value.value)
