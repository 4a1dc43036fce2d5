"""The error that plain serial accumulation makes, as random noise on the oracle's sums.

The plainest honest kernel adds the n terms of a sum one after another in fp32. Each addition rounds
its partial sum S_k, so the sum's error has the variance u^2/3 * sum_k S_k^2 (rounding errors as
independent and uniform: Higham and Mary, "A new approach to probabilistic rounding error analysis",
SIAM J. Sci. Comput. 41, 2019). Partial sums grow linearly where terms agree in sign and like a
random walk where they do not; in both cases sum_k S_k^2 is near n/2 * (S_n^2 + sum_i x_i^2), hence

    standard deviation = u * sqrt(n / 6 * (S_n^2 + sum_i x_i^2)).

Where many terms are equal, so are their roundings, which point the same way: the error then grows
with n instead of its root.

PyTorch adds in many lanes or by halves, whose error hardly grows with n, so that a reference's own
error says nothing about this. Here every operation that adds gets noise of that size, which the
operations after it carry on to the outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# What takes (generator, operation, arguments, keywords, result) to the result with noise.
_Rule = Callable[["Serial", Any, Any, Any, Any], Any]


class Serial:
    """Noise of serial sums in a precision.

    Args:
        unit: unit roundoff of the accumulator.
        seed: of the noise.
        equal: whether many terms are equal.
        positive: only sums whose terms agree in sign, as those of softmax and of norms.
    """

    def __init__(self, unit: float, seed: int, equal: bool = False, positive: bool = False) -> None:
        self.unit = unit
        self.equal = equal
        self.rules = _POSITIVE if positive else _RULES
        self.draw = torch.Generator().manual_seed(seed)

    def disturb(self, func: Any, args: Any, kwargs: Any, result: Any) -> Any:
        """``result`` of ``func`` with the noise of its sums; others as they are."""
        rule = self.rules.get(func.overloadpacket.__name__)
        return result if rule is None else rule(self, func, args, kwargs, result)

    def noisy(self, result: torch.Tensor, terms: Any, squares: Any) -> torch.Tensor:
        """``result`` as sums of ``terms`` numbers whose squares add up to ``squares`` (both numbers
        or tensors)."""
        if not result.is_floating_point() or result.numel() == 0:
            return result
        size = (result.square() + squares) * terms / 6 * (terms if self.equal else 1)
        # Signs instead of normal numbers: then one draw already has the right size, also where one
        # sum moves a whole row.
        sign = torch.randint(0, 2, result.shape, generator=self.draw).to(result.device) * 2 - 1
        made: torch.Tensor = result + self.unit * size.sqrt() * sign
        return made


def _fewer(x: torch.Tensor, result: torch.Tensor) -> float:
    return x.numel() / max(1, result.numel())


def _sum(noise: Serial, func: Any, args: Any, kwargs: Any, result: Any) -> Any:
    x = args[0]
    if not isinstance(x, torch.Tensor) or not x.is_floating_point():
        return result
    n = _fewer(x, result)
    squares = func(x.square(), *args[1:], **kwargs)
    if "mean" in func.overloadpacket.__name__ or "avg" in func.overloadpacket.__name__:
        squares = squares / n  # of x / n: a mean is a sum of n such
    return noise.noisy(result, n, squares)


def _positive(noise: Serial, func: Any, args: Any, kwargs: Any, result: Any) -> Any:
    """Sums of squares or exponentials: their terms agree in sign."""
    x = args[0]
    if isinstance(result, (tuple, list)):
        return type(result)(_positive(noise, func, args, kwargs, r) for r in result)
    if not isinstance(x, torch.Tensor) or not isinstance(result, torch.Tensor):
        return result
    return noise.noisy(result, _fewer(x, result), 0.0)


def _cumsum(noise: Serial, func: Any, args: Any, kwargs: Any, result: Any) -> Any:
    x, dim = args[0], args[1]
    if x.dim() == 0 or not x.is_floating_point():
        return result
    count = torch.arange(1, x.shape[dim] + 1, dtype=torch.float64, device=result.device)
    shape = [1] * x.dim()
    shape[dim] = -1
    return noise.noisy(result, count.view(shape), x.square().cumsum(dim))


def _product(noise: Serial, func: Any, args: Any, kwargs: Any, result: Any) -> Any:
    """mm, bmm, mv, dot, and with a summand in front addmm, baddbmm, addmv; linear, convolution."""
    squared = [a.square() if isinstance(a, torch.Tensor) and a.is_floating_point() else a
               for a in args]  # fmt: skip
    name = func.overloadpacket.__name__
    if name == "convolution":
        n = args[1][0].numel() if args[1].shape[0] else 1
    else:
        n = args[1 if name.startswith(("add", "badd")) else 0].shape[-1]
    scale = {key: value**2 for key, value in kwargs.items() if key in ("alpha", "beta")}
    return noise.noisy(result, n, func(*squared, **{**kwargs, **scale}))


def _softmax(noise: Serial, func: Any, args: Any, kwargs: Any, result: Any) -> Any:
    """The sum of exponentials divides every element of its slice."""
    x, dim = args[0], args[1]
    n = x.shape[dim] if x.dim() else 1
    shape = list(x.shape)
    if shape:
        shape[dim] = 1
    one = torch.ones(shape, dtype=torch.float64, device=result.device)
    factor = noise.noisy(one, n, 0.0)
    return result - factor.log() if "log" in func.overloadpacket.__name__ else result / factor


def _normalised(noise: Serial, func: Any, args: Any, kwargs: Any, result: Any) -> Any:
    """Layer and group norm: (y, mean, rstd) over equal parts of the input. The mean's error moves
    y by its size over the deviation."""
    y, mean, rstd = result
    if not mean.numel() or not isinstance(mean, torch.Tensor):
        return result
    n = _fewer(y, mean)
    shift = float((mean.square() * rstd.square()).mean()) if mean.dim() else 0.0
    return (
        noise.noisy(y, n, shift + 1.0 / n),
        noise.noisy(mean, n, 1 / (rstd.square() * n)),
        noise.noisy(rstd, n, 0.0),
    )


def _attention(noise: Serial, func: Any, args: Any, kwargs: Any, result: Any) -> Any:
    """Weighted means of the rows of v, each over n keys."""
    first, rest = (result[0], result[1:]) if isinstance(result, tuple) else (result, None)
    n = args[1].shape[-2]
    made = noise.noisy(first, n, args[2].square().mean() / max(1, n))
    return made if rest is None else (made, *rest)


_RULES: dict[str, _Rule] = {
    **dict.fromkeys(("sum", "mean", "nansum", "avg_pool1d", "avg_pool2d", "avg_pool3d",
                     "_adaptive_avg_pool2d", "_adaptive_avg_pool3d"), _sum),
    **dict.fromkeys(("var", "std", "var_mean", "std_mean", "norm", "linalg_vector_norm",
                     "logsumexp", "nll_loss_forward", "nll_loss2d_forward", "_embedding_bag",
                     "_embedding_bag_forward_only"), _positive),
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "addmm", "baddbmm", "addmv", "linear",
                     "convolution"), _product),
    **dict.fromkeys(("_softmax", "_log_softmax"), _softmax),
    **dict.fromkeys(("native_layer_norm", "native_group_norm"), _normalised),
    **dict.fromkeys(("_scaled_dot_product_flash_attention_for_cpu",
                     "_scaled_dot_product_flash_attention",
                     "_scaled_dot_product_efficient_attention",
                     "_scaled_dot_product_cudnn_attention",
                     "_scaled_dot_product_attention_math"), _attention),
    "cumsum": _cumsum,
}  # fmt: skip
_POSITIVE = {name: rule for name, rule in _RULES.items() if rule in (_positive, _softmax)}
