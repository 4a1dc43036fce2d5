"""What the wrong values are: how they relate to the expected ones, in words.

Every finder takes ``got`` and ``truth`` (float64, same shape, finite) and answers with a `Finding`
or None. They are meant for bugs far above rounding; a relation has to hold to `_CLOSE`.
"""

from __future__ import annotations

import dataclasses
import math

import torch

_CLOSE = 1e-2  # relative rms distance below which two tensors count as the same up to rounding
_SMALL = 1e-5  # relative errors below this are rounding in fp32, and no factor is seen in them
_ALMOST_ALL = 0.98  # share of the elements that must obey a relation
_LARGEST = 1 << 22  # size of a comparison beyond which slices are thinned out
_SLICES = 1024  # slices of one axis that are compared with each other
_SAMPLE = 2048  # elements of a slice that are compared
_SATURATED = {
    127.0: "int8", 128.0: "int8", 255.0: "uint8", 448.0: "fp8 e4m3", 57344.0: "fp8 e5m2",
    65504.0: "fp16", 240.0: "fp8 e4m3",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Finding:
    """``what``: such as "every element is zero". ``look``: what to look at first, or ""."""

    what: str
    look: str = ""


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Relative rms distance; inf where the norm of ``b`` is zero."""
    norm = float(b.norm())
    return float((a - b).norm()) / norm if norm > 0 else math.inf


def local(got: torch.Tensor, truth: torch.Tensor, shape: torch.Size) -> Finding | None:
    """A relation that holds element by element; for any selection of elements, flat or not.

    Args:
        shape: of the whole output, to name a factor after its lengths.
    """
    if truth.numel() < 2 or bool((truth == got).all()):
        return None
    if not bool((truth != 0).any()):
        return _unclamped(got, truth)
    if bool((got == 0).all()):
        return Finding("zero", "a loop that ends early, a store that is skipped, an accumulator "
                       "that was never added to")  # fmt: skip
    clamped = _unclamped(got, truth)
    return clamped or _constant(got, truth) or _scaled(got, truth, shape) or _offset(got, truth)


def _unclamped(got: torch.Tensor, truth: torch.Tensor) -> Finding | None:
    """Beyond a bound at which the expected values are held."""
    bound = float(truth.flatten()[0])
    if truth.numel() < 4 or not bool((truth == bound).all()):
        return None
    for below, word in ((True, "below"), (False, "above")):
        if bool(((got < bound) if below else (got > bound)).all()):
            return Finding(
                f"{word} {bound:.6g}, which is expected at all of them",
                "a clamp, ReLU or mask that is missing",
            )
    return None


def zeros(got: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Where zero stands for another value."""
    return (got == 0) & (truth != 0)


def _constant(got: torch.Tensor, truth: torch.Tensor) -> Finding | None:
    value = float(got.flatten()[0])
    if truth.numel() < 8 or not bool((got == value).all()):
        return None
    if float((truth - truth.mean()).norm()) < _CLOSE * float(truth.norm()):
        return None
    kind = _SATURATED.get(abs(value))
    look = f"saturation: {abs(value):g} is the limit of {kind}" if kind else (
        "an index that does not move, or a value that is broadcast"
    )  # fmt: skip
    return Finding(f"the constant {value:.6g}", look)


def _scaled(got: torch.Tensor, truth: torch.Tensor, shape: torch.Size) -> Finding | None:
    square = float(truth.square().sum())
    factor = float((got * truth).sum()) / square if square > 0 else 0.0
    if not factor or not math.isfinite(factor) or abs(factor - 1) <= _SMALL:
        return None
    spread = distance(got / factor, truth)
    if not spread < min(_CLOSE, 0.1 * abs(factor - 1)):
        return None
    if abs(factor + 1) < 1e-3:
        return Finding("the expected value with the sign flipped", "a minus that is missing or "
                       "one too many")  # fmt: skip
    return Finding(
        f"{factor:.6g} times the expected value{_like(factor, shape)}",
        "a scale that is missing, applied twice or taken from the wrong place",
    )


def _like(factor: float, shape: torch.Size) -> str:
    """What a factor is near to: a small number, a root, or something of the output's lengths."""
    names = {math.sqrt(2): "the root of 2", math.log2(math.e): "log2(e): exp2 for exp",
             math.log(2): "ln 2: exp for exp2"}  # fmt: skip
    for axis, n in enumerate(shape):
        if n > 3:
            known = {n: "{}", math.sqrt(n): "the root of {}", 1 - 1 / n: "({0} - 1) / {0}",
                     math.sqrt(1 - 1 / n): "the root of ({0} - 1) / {0}"}  # fmt: skip
            for value, name in known.items():
                names.setdefault(value, name.format(n) + f", {n} being the length of axis {axis}")
    for value, name in names.items():
        for near, text in ((value, name), (1 / value, f"1 over {name}")):
            if abs(factor / near - 1) < 1e-5:
                return f" ({text})"
    return ""


def _offset(got: torch.Tensor, truth: torch.Tensor) -> Finding | None:
    change = got - truth
    mean = float(change.mean())
    if mean and float((change - mean).abs().max()) < 1e-3 * abs(mean):
        sign = "+" if mean > 0 else "-"
        return Finding(
            f"the expected value {sign} {abs(mean):.6g} everywhere",
            "a constant that is added twice or not at all, or an index base",
        )
    return None


def by_axis(got: torch.Tensor, truth: torch.Tensor) -> Finding | None:
    """A factor or an offset that depends on some axes only: a scale or bias by the wrong index, a
    normalisation that is off row by row."""
    if truth.dim() < 2 or distance(got, truth) < _SMALL:
        return None
    axes = range(truth.dim())
    for kept in [[a] for a in axes] + [[b for b in axes if b != a] for a in reversed(axes)]:
        gone = [a for a in axes if a not in kept]
        if not kept or not gone or math.prod(truth.shape[a] for a in gone) < 4:
            continue
        found = _factor_of(got, truth, kept, gone) or _offset_of(got, truth, kept, gone)
        if found:
            return found
    return None


def _factor_of(
    got: torch.Tensor, truth: torch.Tensor, kept: list[int], gone: list[int]
) -> Finding | None:
    square = truth.square().sum(dim=gone, keepdim=True)
    factor = (got * truth).sum(dim=gone, keepdim=True) / torch.where(square > 0, square, 1.0)
    off = distance(got, truth)
    if not distance(factor * truth, got) < min(_CLOSE, 0.05 * off):
        return None
    seen = factor[square > 0]
    low, high = float(seen.min()), float(seen.max())
    if len(kept) == truth.dim() - 1:
        what = f"the expected ones times a factor that is the same along axis {gone[0]}"
        look = (
            f"what normalises or scales each row of axis {gone[0]}: a divisor over too many, too "
            "few or padded elements, a scale taken by another index"
        )
    else:
        what = f"the expected ones times a factor that depends on axis {kept[0]} only"
        look = f"the scale, weight or gate that belongs to axis {kept[0]}, and its index"
    return Finding(f"{what} ({low:.4g} to {high:.4g})", look)


def _offset_of(
    got: torch.Tensor, truth: torch.Tensor, kept: list[int], gone: list[int]
) -> Finding | None:
    change = got - truth
    shift = change.mean(dim=gone, keepdim=True)
    if not distance(shift.expand_as(change), change) < _CLOSE:
        return None
    if len(kept) == truth.dim() - 1:
        what = f"the expected ones plus an amount that is the same along axis {gone[0]}"
        look = f"what is added to whole rows of axis {gone[0]}: a mean, a carry, a maximum"
    else:
        what = f"the expected ones plus an amount that depends on axis {kept[0]} only"
        look = f"a bias of axis {kept[0]} that is missing, added twice or taken by another index"
    return Finding(what, look)


def transposed(got: torch.Tensor, truth: torch.Tensor) -> Finding | None:
    """Two axes swapped, in the indices or in the storage."""
    limit = _limit(got, truth)
    for a in range(truth.dim()):
        for b in range(a + 1, truth.dim()):
            n, m = truth.shape[a], truth.shape[b]
            if min(n, m) < 2:
                continue
            if n == m and distance(got.transpose(a, b), truth) < limit:
                return Finding(f"axes {a} and {b} are swapped", "the order of the indices in the "
                               "load or the store")  # fmt: skip
            stored = truth.transpose(a, b).reshape(truth.shape)
            if n != m and distance(got, stored) < limit:
                return Finding(
                    f"axes {a} and {b} are swapped in storage: the values lie as for the shape "
                    f"{tuple(truth.transpose(a, b).shape)}",
                    "the strides of the store, or a missing transpose before a reshape",
                )
    return None


def _limit(got: torch.Tensor, truth: torch.Tensor) -> float:
    """Distance below which a rearrangement explains ``got``: also far closer than as it stands."""
    return min(_CLOSE, 0.1 * distance(got, truth))


def shifted(got: torch.Tensor, truth: torch.Tensor) -> Finding | None:
    """Everything moved by one to four along an axis."""
    limit = _limit(got, truth)
    for axis in range(truth.dim()):
        n = truth.shape[axis]
        for step in (1, -1, 2, -2, 3, -3, 4, -4):
            if n < abs(step) + 3:
                continue
            length = n - abs(step)
            a = got.narrow(axis, max(step, 0), length)
            b = truth.narrow(axis, max(-step, 0), length)
            if distance(a, b) < limit:
                off = "off by one" if abs(step) == 1 else f"off by {abs(step)}"
                return Finding(
                    f"shifted along axis {axis}: index i holds what belongs at i{-step:+d}",
                    f"an index or loop bound of axis {axis} that is {off}",
                )
    return None


def moved(got: torch.Tensor, truth: torch.Tensor) -> Finding | None:
    """Slices of one axis that hold what belongs to other slices of it: permuted heads, a
    neighbouring row, an index that is clamped."""
    for axis in range(truth.dim()):
        n = truth.shape[axis]
        if not 2 <= n <= _SLICES or truth.numel() // n < 4:
            continue
        source = _sources(got, truth, axis)
        if source is not None:
            return _rearranged(source, axis)
    return None


def _sources(got: torch.Tensor, truth: torch.Tensor, axis: int) -> list[int] | None:
    """For each index of ``axis``, the index whose expected values it holds; None unless that
    explains all of them and differs somewhere."""
    a, b = _slices(got, axis), _slices(truth, axis)
    size = b.norm(dim=1)
    if not bool((size > 0).all()):
        return None
    apart = torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist") / size
    own = apart.diagonal()
    best, source = apart.min(dim=1)
    # A slice that is right stays where it is, also where slices resemble each other.
    here = torch.arange(len(source), device=source.device)
    source = torch.where(own < _CLOSE, here, source)
    other = source != here
    if not bool(other.any()) or bool((torch.where(other, best, own) >= _CLOSE).any()):
        return None
    # Slices that are alike anyway tell nothing.
    if bool((own[other] < 10 * best[other]).any()):
        return None
    return [int(i) for i in source]


def _slices(x: torch.Tensor, axis: int) -> torch.Tensor:
    """(n, elements): the slices of ``axis``, thinned out where they are large."""
    rows = x.movedim(axis, 0).reshape(x.shape[axis], -1)
    if rows.shape[1] > _SAMPLE and x.numel() * rows.shape[0] > _LARGEST:
        draw = torch.Generator().manual_seed(0)
        columns = torch.randperm(rows.shape[1], generator=draw)[:_SAMPLE].to(rows.device)
        rows = rows[:, columns]
    return rows


def _rearranged(source: list[int], axis: int) -> Finding:
    n = len(source)
    wrong = [i for i in range(n) if source[i] != i]
    shown = ", ".join(f"{i} holds {source[i]}" for i in wrong[:4]) + (", .." if wrong[4:] else "")
    permuted = sorted(source) == list(range(n))
    if (
        not permuted
        and len(wrong) <= max(2, n // 4)
        and all(abs(source[i] - i) == 1 for i in wrong)
    ):
        return Finding(
            f"a neighbour's values: of axis {axis}, index {shown}",
            "a clamped or off-by-one index at those places",
        )
    kind = "permuted" if permuted else "taken from other indices"
    return Finding(f"axis {axis} is {kind} ({_order(source) or 'index ' + shown})",
                   f"how the kernel maps blocks to indices of axis {axis} (order of heads, groups, "
                   "halves)")  # fmt: skip


def _order(source: list[int]) -> str:
    """The name of a well-known order, or ""."""
    n = len(source)
    if source == list(range(n))[::-1]:
        return "reversed"
    if source == [i ^ 1 for i in range(n)]:
        return "neighbours swapped in pairs"
    for k in range(1, n):
        if source == [(i + k) % n for i in range(n)]:
            return f"index i holds (i + {k}) mod {n}"
    for k in range(2, n):
        if n % k == 0:
            if source == [(i % k) * (n // k) + i // k for i in range(n)]:
                return f"interleaved: index i holds (i mod {k}) x {n // k} + i / {k}"
            if source == [i // k for i in range(n)]:
                return f"index i holds i / {k}"
            if source == [i % k for i in range(n)]:
                return f"index i holds i mod {k}"
    return ""


def dropped(got: torch.Tensor, truth: torch.Tensor) -> Finding | None:
    """Some elements zero at random, the others scaled up to make good for them: dropout."""
    live = truth != 0
    zero = live & (got == 0)
    rest = live & ~zero
    if not bool(zero.any()) or not bool(rest.any()):
        return None
    share = float(zero.sum()) / float(live.sum())
    ratio = got[rest] / truth[rest]
    factor = float(ratio.median())
    same = float(((ratio - factor).abs() < 1e-3 * abs(factor)).to(torch.float64).mean())
    if same > _ALMOST_ALL and factor > 1 and abs(share - (1 - 1 / factor)) < 0.1:
        return Finding(
            f"{share:.0%} of the elements are zero and the others {factor:.4g} times too large",
            "dropout that is active though the model is in evaluation mode",
        )
    return None


def mask_moved(got: torch.Tensor, truth: torch.Tensor) -> Finding | None:
    """Zeros up to a diagonal of the last two axes, at another place than expected."""
    if truth.dim() < 2:
        return None
    want, have = _reach(truth), _reach(got)
    if want is None or have is None or want == have:
        return None
    a, b = truth.dim() - 2, truth.dim() - 1
    side = "shows too much" if have > want else "hides too much"
    return Finding(
        f"row i of axis {a} reaches index i{have:+d} of axis {b} and should reach i{want:+d}: "
        f"the mask {side}",
        "the offset and the comparison of the mask (columns - rows, < or <=)",
    )


def _reach(x: torch.Tensor) -> int | None:
    """How far right of the diagonal the elements of a row are not zero; None where that is not the
    same in nearly all rows or where nothing is cut off."""
    plane = (x.reshape(-1, *x.shape[-2:]) != 0).any(dim=0)
    n, m = plane.shape
    index = torch.arange(m, device=x.device)
    last = torch.where(plane, index, -1).amax(dim=1)
    cut = (last >= 0) & (last < m - 1)
    if int(cut.sum()) < max(2, n // 4):
        return None
    away = (last - torch.arange(n, device=x.device))[cut]
    middle = int(away.median())
    return middle if float((away == middle).to(torch.float64).mean()) > 0.9 else None


def large_only(got: torch.Tensor, truth: torch.Tensor, wrong: torch.Tensor) -> Finding | None:
    """All errors at the elements of largest magnitude, and nearly all of those wrong."""
    count = int(wrong.sum())
    if count < 3 or count > wrong.numel() // 2:
        return None
    size = truth.abs()
    smallest_wrong, largest_right = float(size[wrong].min()), float(size[~wrong].max())
    inside = float((size[~wrong] < smallest_wrong).to(torch.float64).mean())
    if inside < 0.995 or largest_right > 1.05 * smallest_wrong or smallest_wrong <= 0:
        return None
    return Finding(
        f"only elements above {smallest_wrong:.4g} in magnitude are wrong, {count} of "
        f"{wrong.numel()}",
        "overflow or saturation: a clamp, a conversion to a narrower type, an exponent",
    )
