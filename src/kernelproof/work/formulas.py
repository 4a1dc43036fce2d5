"""FLOPs of PyTorch's operators. docs/floors.md states the conventions to users.

A multiplication and an addition are one FLOP each, as is every elementary function (exp, sqrt,
tanh). Counted are floating-point arithmetic and matrix products of any dtype; copies, casts,
selections, comparisons with a truth value as result, sorting and integer arithmetic count nothing.
Reductions of n elements count n per step, not n - 1. The formulas are those of the textbook form.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

# FLOPs of (matrix products, everything else).
Count = tuple[float, float]
_Formula = Callable[[Any, Any, Any], Count]

_NAMES = {
    torch.float64: "fp64", torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16",
    torch.complex128: "fp64", torch.complex64: "fp32", torch.complex32: "fp16",
}  # fmt: skip


def dtype_name(dtype: torch.dtype) -> str:
    """Such as "fp32", "int8"; all 8-bit floats are "fp8", complex numbers are their parts."""
    text = str(dtype).removeprefix("torch.")
    return _NAMES.get(dtype) or ("fp8" if text.startswith("float8") else text)


def count(func: Any, args: Any, kwargs: Any, result: Any) -> Count | None:
    """(FLOPs of matrix products, other FLOPs) of one operator call; None: there is no formula.

    Args:
        func: an ATen operator overload, with its ``args``, ``kwargs`` and ``result``.
    """
    name = name_of(func)
    if name in _FREE:
        return 0.0, 0.0
    if (formula := _FORMULAS.get(name)) is not None:
        return formula(args, kwargs, result)
    if name in _STEPS or torch.Tag.pointwise in func.tags:
        return 0.0, _pointwise(name, args, kwargs, _first(result))
    # Without a tensor to work on there is nothing but new values.
    return None if _tensors(args) or _tensors(kwargs) else (0.0, 0.0)


def name_of(func: Any) -> str:
    """An operator's name without overload and without the underscore of its in-place form."""
    name: str = func.overloadpacket.__name__
    return name if name.startswith("__") else name.rstrip("_")


def operand_dtype(args: Any, kwargs: Any, result: Any) -> str:
    """The name of the dtype that the arithmetic of a call is in: that of its operands."""
    found = [*_tensors(args), *_tensors(kwargs), *_tensors(result)]
    floating = [t for t in found if t.is_floating_point() or t.is_complex()]
    chosen = floating or found
    return dtype_name(chosen[0].dtype) if chosen else "fp32"


def attention(q: Any, k: Any, v: Any, causal: bool) -> Count:
    """Scaled dot-product attention ``q (..., Sq, D)``, ``k (..., Sk, D)``, ``v (..., Sk, E)``:
    both products over the pairs that a causal mask leaves, with scale and softmax (6 a pair)."""
    queries, keys = q.shape[-2], k.shape[-2]
    pairs = sum(min(keys, t + 1) for t in range(queries)) if causal else queries * keys
    pairs *= math.prod(q.shape[:-2])
    return 2.0 * pairs * (q.shape[-1] + v.shape[-1]), 6.0 * pairs


def _tensors(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value
    if isinstance(items, (list, tuple)) or isinstance(value, dict):
        return [tensor for item in items for tensor in _tensors(item)]
    return []


def _first(result: Any) -> Any:
    found = _tensors(result)
    return found[0] if found else None


# Elementary steps per element of the output, where they are not one.
_STEPS = {
    **dict.fromkeys(("addcmul", "addcdiv", "leaky_relu", "clamp", "hardtanh", "hypot"), 2),
    **dict.fromkeys(("_prelu_kernel", "rrelu_with_noise"), 2),
    **dict.fromkeys(("sigmoid", "softplus", "elu", "lerp", "hardsigmoid", "logit"), 3),
    **dict.fromkeys(("silu", "glu", "log_sigmoid_forward", "hardswish", "hardshrink", "selu"), 4),
    "mish": 5,
}  # fmt: skip
_COMPLEX = {"mul": 6, "div": 11, "abs": 4, "reciprocal": 6, "exp": 4}


def _pointwise(name: str, args: Any, kwargs: Any, out: Any) -> float:
    if out is None or not (out.is_floating_point() or out.is_complex()):
        return 0.0
    steps = _STEPS.get(name, 1)
    if name == "gelu":
        # 0.5 x (1 + erf(x / sqrt 2)), or the form with tanh of a cubic.
        steps = 9 if kwargs.get("approximate") == "tanh" else 5
    if name in ("add", "sub", "rsub") and kwargs.get("alpha", 1) != 1:
        steps += 1
    if name in ("addcmul", "addcdiv") and kwargs.get("value", 1) != 1:
        steps += 1
    if any(t.is_complex() for t in [out, *_tensors(args)]):
        steps = _COMPLEX.get(name, 2 * steps)
    return float(steps * out.numel())


def _complex(tensor: Any) -> int:
    """Real products in one product: four for complex numbers, with the sums that go with them."""
    return 4 if tensor.is_complex() else 1


def _product(a: Any, out: Any) -> float:
    return float(2 * _complex(a) * out.numel() * a.shape[-1])


def _plain_product(args: Any, kwargs: Any, out: Any) -> Count:
    """mm, bmm, mv, dot: ``(..., n) x (n, ...)``."""
    return _product(args[0], _first(out)), 0.0


def _added_product(args: Any, kwargs: Any, out: Any) -> Count:
    """addmm and the like: ``beta * summand + alpha * product``; a factor of 1 costs nothing."""
    beta, alpha = kwargs.get("beta", 1), kwargs.get("alpha", 1)
    steps = 0 if beta == 0 else 1 + (beta != 1)
    made = _first(out)
    return _product(args[1], made), float((steps + (alpha != 1)) * made.numel())


def _summed_product(args: Any, kwargs: Any, out: Any) -> Count:
    """addbmm: the products of a batch, added up."""
    made = _first(out)
    return _product(args[1], made) * args[1].shape[0], float(made.numel())


def _linear(args: Any, kwargs: Any, out: Any) -> Count:
    bias = args[2] if len(args) > 2 else kwargs.get("bias")
    made = _first(out)
    return _product(args[0], made), float(made.numel()) if bias is not None else 0.0


def _scaled_product(args: Any, kwargs: Any, out: Any) -> Count:
    return _product(args[0], _first(out)), float(_first(out).numel())


def _outer(args: Any, kwargs: Any, out: Any) -> Count:
    return 0.0, 2.0 * _first(out).numel()


def _convolution(args: Any, kwargs: Any, out: Any) -> Count:
    """2 x kernel x input channels of a group for each output (each input where transposed), the
    direct form."""
    x, weight, bias = args[0], args[1], args[2] if len(args) > 2 else None
    transposed = bool(args[6]) if len(args) > 6 and isinstance(args[6], bool) else False
    made = _first(out)
    # A weight is (out, in / groups, *kernel), or (in, out / groups, *kernel) where transposed.
    points = x.numel() if transposed else made.numel()
    products = 2.0 * _complex(x) * points * math.prod(weight.shape[1:])
    return products, float(made.numel()) if bias is not None else 0.0


def _per_input(steps: float) -> _Formula:
    def formula(args: Any, kwargs: Any, out: Any) -> Count:
        x = _first(args)
        real = x.is_floating_point() or x.is_complex()
        return 0.0, float(steps * x.numel() * (2 if x.is_complex() else 1)) if real else 0.0

    return formula


def _per_output(steps: float) -> _Formula:
    def formula(args: Any, kwargs: Any, out: Any) -> Count:
        made = _first(out)
        return 0.0, float(steps * made.numel()) if made.is_floating_point() else 0.0

    return formula


def _affine(args: Any, positions: tuple[int, ...]) -> int:
    return sum(len(args) > at and args[at] is not None for at in positions)


def _layer_norm(args: Any, kwargs: Any, out: Any) -> Count:
    """Mean, difference, its square and their sum, the factor; weight and bias where given."""
    return 0.0, float((5 + _affine(args, (2, 3))) * args[0].numel())


def _group_norm(args: Any, kwargs: Any, out: Any) -> Count:
    return 0.0, float((5 + _affine(args, (1, 2))) * args[0].numel())


def _rms_norm(args: Any, kwargs: Any, out: Any) -> Count:
    """Square, sum, the factor; weight where given."""
    return 0.0, float((3 + _affine(args, (2,))) * args[0].numel())


def _batch_norm(args: Any, kwargs: Any, out: Any) -> Count:
    """One multiplication and one addition with stored statistics, five more to take them."""
    training = len(args) > 5 and args[5] is True
    return 0.0, float((7 if training else 2) * args[0].numel())


def _embedding_bag(args: Any, kwargs: Any, out: Any) -> Count:
    weighted = len(args) > 6 and args[6] is not None
    return 0.0, float((1 + weighted) * args[1].numel() * args[0].shape[1])


def _scattered(args: Any, kwargs: Any, out: Any) -> Count:
    """scatter_add, index_add and the like: one addition for each element that is brought."""
    source = next((a for a in args[3:] if isinstance(a, torch.Tensor)), None)
    return 0.0, float(source.numel()) if source is not None and _real(source) else 0.0


def _index_put(args: Any, kwargs: Any, out: Any) -> Count:
    adds = (len(args) > 3 and bool(args[3])) or bool(kwargs.get("accumulate"))
    indices = [i for i in args[1] if i is not None]
    return 0.0, float(max(args[2].numel(), indices[0].numel())) if adds and _real(args[2]) else 0.0


def _real(tensor: Any) -> bool:
    return bool(tensor.is_floating_point())


def _pooled(args: Any, kwargs: Any, out: Any) -> Count:
    made = _first(out)
    window = args[1] if isinstance(args[1], (list, tuple)) else [args[1]]
    dims = made.dim() - 2 if made.dim() > 2 else 1
    size = math.prod(window) if len(window) > 1 else window[0] ** dims
    return 0.0, float(size * made.numel())


def _fft(args: Any, kwargs: Any, out: Any) -> Count:
    """5 N log2 N for a complex transform of N points (Cooley and Tukey), half of it for a real
    one."""
    x, dims, made = args[0], args[1], _first(out)
    wide = x if x.numel() >= made.numel() else made
    points = math.prod(wide.shape[d] for d in dims)
    real = not (x.is_complex() and made.is_complex())
    return 0.0, (2.5 if real else 5.0) * wide.numel() * math.log2(max(2, points))


def _trilinear(args: Any, kwargs: Any, out: Any) -> Count:
    """Two multiplications and an addition for each combination of indices of three factors, which
    are given an axis of length 1 at each position that they lack."""
    shapes = []
    for factor, positions in zip(args[:3], args[3:6], strict=True):
        shape = list(factor.shape)
        for position in positions:
            shape.insert(position, 1)
        shapes.append(shape)
    return 0.0, 3.0 * math.prod(torch.broadcast_shapes(*shapes))


def _cdist(args: Any, kwargs: Any, out: Any) -> Count:
    return 0.0, 3.0 * _first(out).numel() * args[0].shape[-1]


# Gate arithmetic per hidden element and step, bias additions in it: relu, tanh, LSTM, GRU.
_GATES = {0: 4, 1: 4, 2: 27, 3: 21}


def _rnn_layer(args: Any, kwargs: Any, out: Any) -> Count:
    """mkldnn_rnn_layer: products of input and hidden state with their weights, then the gates."""
    steps, mode, hidden = args[0].shape[0] * args[0].shape[1], args[9], args[10]
    products = 2.0 * steps * (args[1].numel() + args[2].numel())
    return products, float(_GATES[mode] * steps * hidden)


def _rnn(args: Any, kwargs: Any, out: Any) -> Count:
    """_cudnn_rnn: input, weights, their number a layer, the weight buffer, hx, cx, mode, size."""
    steps, mode, hidden = args[0].shape[0] * args[0].shape[1], args[6], args[7]
    weights = [w for w in args[1] if w.dim() == 2]
    products = 2.0 * steps * sum(w.numel() for w in weights)
    return products, float(_GATES[mode] * steps * hidden * len(weights) / 2)


def _fused_attention(args: Any, kwargs: Any, out: Any) -> Count:
    return attention(args[0], args[1], args[2], False)


# Copies, casts, selections, orders, new values.
_NO_ARITHMETIC = """
unsafe_split unsafe_split_with_sizes block_diag diagonal_copy
_to_copy clone copy cat stack index index_select gather scatter embedding take roll flip where
masked_fill masked_select masked_scatter constant_pad_nd reflection_pad1d reflection_pad2d
reflection_pad3d replication_pad1d replication_pad2d replication_pad3d tril triu im2col fill
slice_scatter select_scatter diagonal_scatter as_strided_scatter complex pixel_shuffle
pixel_unshuffle channel_shuffle bincount histc multinomial bernoulli resize set
repeat_interleave _linalg_check_errors _local_scalar_dense item equal is_same_size sort topk
argsort argmax argmin searchsorted bucketize _unique2 unique_dim unique_consecutive nonzero
nonzero_static kthvalue median nanmedian mode isin any all count_nonzero zero lift_fresh lift
detach alias conj_physical resolve_conj resolve_neg view_as_real view_as_complex _conj _neg_view
split_with_sizes_copy unfold_copy upsample_nearest1d upsample_nearest2d upsample_nearest3d
_upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d index_fill
index_copy repeat tril_indices triu_indices normal uniform random exponential geometric cauchy
log_normal randperm native_channel_shuffle _assert_async _reshape_copy view_copy expand_copy
permute_copy dequantize _pack_padded_sequence _nested_tensor_from_mask one_hot real imag
sym_size sym_numel sym_stride sym_storage_offset zeros_like ones_like empty_like full_like
rand_like randn_like randint_like new_empty new_zeros new_ones new_full new_empty_strided
"""
_FREE = frozenset(_NO_ARITHMETIC.split())

_FORMULAS: dict[str, _Formula] = {
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "vdot", "_int_mm"), _plain_product),
    **dict.fromkeys(("addmm", "baddbmm", "addmv", "_addmm_activation"), _added_product),
    **dict.fromkeys(("_scaled_mm", "_scaled_mm_v2"), _scaled_product),
    "addbmm": _summed_product,
    **dict.fromkeys(("linear", "mkldnn_linear", "_linear"), _linear),
    "addr": _outer,
    **dict.fromkeys(("convolution", "_convolution", "convolution_overrideable"), _convolution),
    **dict.fromkeys(("cudnn_convolution", "mkldnn_convolution"), _convolution),
    **dict.fromkeys(("_scaled_dot_product_flash_attention_for_cpu",
                     "_scaled_dot_product_flash_attention",
                     "_scaled_dot_product_efficient_attention",
                     "_scaled_dot_product_cudnn_attention",
                     "_scaled_dot_product_fused_attention_overrideable"), _fused_attention),
    **dict.fromkeys(("sum", "nansum", "mean", "prod", "cumsum", "cumprod", "cummax", "cummin",
                     "amax", "amin", "aminmax", "max", "min", "trace", "_adaptive_avg_pool2d",
                     "_adaptive_avg_pool3d", "adaptive_max_pool2d", "adaptive_max_pool3d",
                     "segment_reduce"), _per_input(1)),
    "col2im": _per_input(1),
    **dict.fromkeys(("norm", "linalg_vector_norm"), _per_input(2)),
    **dict.fromkeys(("logcumsumexp", "mse_loss", "renorm"), _per_input(3)),
    # Difference, its size, the choice of two forms and the sum.
    **dict.fromkeys(("huber_loss", "smooth_l1_loss"), _per_input(5)),
    # Two logarithms, or the stable form from logits: maximum, product, abs, exp, log1p, two sums.
    **dict.fromkeys(("binary_cross_entropy", "binary_cross_entropy_with_logits"), _per_input(7)),
    **dict.fromkeys(("var", "std", "var_mean", "std_mean", "logsumexp"), _per_input(4)),
    **dict.fromkeys(("_softmax", "_log_softmax", "_safe_softmax"), _per_input(5)),
    # The negation and the sum of what is picked, one element of each row.
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"),
                    lambda args, kwargs, out: (0.0, 2.0 * args[1].numel())),
    "polar": _per_input(4),
    **dict.fromkeys(("native_dropout",), _per_output(1)),
    "native_layer_norm": _layer_norm,
    "native_group_norm": _group_norm,
    "_fused_rms_norm": _rms_norm,
    **dict.fromkeys(("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm",
                     "_native_batch_norm_legit_no_training", "_batch_norm_no_update",
                     "_batch_norm_with_update"), _batch_norm),
    **dict.fromkeys(("_embedding_bag", "_embedding_bag_forward_only"), _embedding_bag),
    **dict.fromkeys(("scatter_add", "index_add", "scatter_reduce", "index_reduce"), _scattered),
    "index_put": _index_put,
    "_index_put_impl": _index_put,
    "_unsafe_index_put": _index_put,
    **dict.fromkeys(("avg_pool1d", "avg_pool2d", "avg_pool3d", "max_pool2d_with_indices",
                     "max_pool3d_with_indices", "max_pool2d", "mkldnn_max_pool2d"), _pooled),
    "upsample_linear1d": _per_output(4),
    # A product and a sum for each corner; where the corners are counts nothing.
    **dict.fromkeys(("upsample_bilinear2d", "grid_sampler_2d"), _per_output(8)),
    **dict.fromkeys(("upsample_trilinear3d", "grid_sampler_3d"), _per_output(16)),
    "upsample_bicubic2d": _per_output(32),
    **dict.fromkeys(("_fft_c2c", "_fft_r2c", "_fft_c2r"), _fft),
    "_cdist_forward": _cdist,
    "_trilinear": _trilinear,
    "mkldnn_rnn_layer": _rnn_layer,
    "_cudnn_rnn": _rnn,
}  # fmt: skip
