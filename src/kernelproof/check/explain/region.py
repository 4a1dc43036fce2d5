"""Where the wrong elements are: a boolean mask put into words, folded to tiles.

Kernels fail in blocks: a grid that is one block short, a guard that is off by one at the edge of a
tile, a loop that takes every other lane. `describe` looks for such shapes on each axis, then on the
last two axes together, and says nothing where there is none.
"""

from __future__ import annotations

import dataclasses

import torch

# Block and tile edges that kernels commonly use.
TILES = (8, 16, 32, 64, 128)
_DENSE = 0.7  # share of a box that must be wrong before it is called wrong as a whole
_MANY = 8  # indices from which on "all but one" means something
_LISTED = 6  # indices that are listed one by one


@dataclasses.dataclass(frozen=True)
class Region:
    """``where``: such as "only at index 119, the last, of axis 1". ``look``: what to look at first,
    or "". ``weak``: worth saying only where nothing else stands out. ``dense``: whether
    nearly everything at that place is marked."""

    where: str
    look: str = ""
    weak: bool = False
    dense: bool = True


def describe(mask: torch.Tensor) -> Region | None:
    """The shape of the marked elements, or None where nothing stands out.

    Args:
        mask: boolean, any number of axes. None as well when nothing or everything is marked.
    """
    total, count = mask.numel(), int(mask.sum())
    if count in (0, total) or mask.dim() == 0:
        return None
    hits = [_hits(mask, axis) for axis in range(mask.dim())]
    box = 1
    for hit in hits:
        box *= len(hit)
    dense = count >= _DENSE * box
    plane = None if dense else _edges(mask) or _triangle(mask) or _tiled(mask)
    if plane is not None:
        return plane
    if count == 1:
        index = [hit[0] for hit in hits]
        return Region(f"only at element {index}", _corner(index, mask.shape))
    found = [
        (axis, region)
        for axis, hit in enumerate(hits)
        if (dense or not _by_chance(mask, axis, len(hit)))
        and (region := along(hit, mask.shape[axis], dense)) is not None
    ]
    found = [pair for pair in found if not pair[1].weak] or found[:1]
    if found:
        where = " and ".join(f"{region.where} of axis {axis}" for axis, region in found)
        amount = "" if dense else f" ({count} of the {box} elements there)"
        look = next((region.look for _, region in found if region.look), "")
        return Region(f"only at {where}{amount}", look, dense=dense)
    return _edges(mask) or _triangle(mask) or _tiled(mask) if dense else None


def _hits(mask: torch.Tensor, axis: int) -> list[int]:
    """Indices of ``axis`` at which anything is marked."""
    others = [d for d in range(mask.dim()) if d != axis]
    hit = mask.any(dim=others) if others else mask
    return [int(i) for i in hit.nonzero().flatten()]


def _by_chance(mask: torch.Tensor, axis: int, hits: int) -> bool:
    """Whether scattered elements could by chance all lie at so few indices of ``axis``."""
    lines = int(mask.any(dim=axis).sum())
    return (hits / mask.shape[axis]) ** lines > 0.01


def along(hit: list[int], n: int, dense: bool = True) -> Region | None:
    """The shape of the sorted indices ``hit`` of an axis of length ``n``.

    ``dense``: whether nearly all elements at those indices are marked; sets without a shape are
    listed only then.
    """
    count = len(hit)
    if count in (0, n):
        return None
    first, last = hit[0], hit[-1]
    if count == 1:
        return _single(first, n)
    if last - first + 1 == count:
        return _span(first, last, n)
    return _periodic(hit, n) or _listed(hit, n, dense)


def _single(index: int, n: int) -> Region:
    if index == n - 1:
        return Region(f"index {index}, the last,", "the upper bound of the loop or guard there")
    if index == 0:
        return Region("index 0, the first,", "the start of the loop, or what is set up before it")
    return Region(f"index {index} (of {n})", "what is particular about that index: its offset, "
                  "its block, its parameters")  # fmt: skip


def _span(first: int, last: int, n: int) -> Region:
    if last == n - 1:
        return _tail(first, n)
    if first == 0 and last == n - 2 and n >= _MANY:
        return Region(
            f"every index but the last (0..{last})",
            "a bound that is off by one: at the last index nothing is left to get wrong "
            "(a causal mask that shows one key too many looks like this)",
        )
    width = last - first + 1
    one = [t for t in TILES if width == t and first % t == 0]
    if one:
        return Region(
            f"index {first}..{last}, exactly tile {first // one[0]} of size {one[0]},",
            "what that block alone does: its offset, a block that never ran",
        )
    if first == 0:
        return Region(f"index 0..{last} (of {n})", "the first iterations, or what they start from")
    return Region(f"index {first}..{last} (of {n})", "the block or thread that owns this range")


def _tail(first: int, n: int) -> Region:
    """From ``first`` to the end of the axis."""
    if first == 1 and n >= _MANY:
        return Region(
            "every index but the first (1 on)",
            "what has no effect at the first index only: what is carried from step to step, an "
            "angle or offset of zero, a sum or softmax of a single term",
        )
    ragged = [t for t in TILES if n % t and first == n - n % t]
    whole = [t for t in TILES if n % t == 0 and first == n - t]
    blocks = [t for t in TILES if first % t == 0]
    span = f"index {first}..{n - 1}"
    if ragged:
        size = _either(ragged)
        look = "the guard of the last, partial tile (a missing `i < n`, or a grid rounded down)"
        if n - first >= 2 * TILES[0] and first >= 2 * TILES[0]:
            # A partial tile of 128 may as well be the third block of 64, where a carry is lost.
            look += ", or what is carried from block to block"
        return Region(f"{span}, exactly the ragged last tile of size {size},", look)
    if whole:
        return Region(f"{span}, exactly the last tile of size {_either(whole)},",
                      "the number of blocks, or the guard of the last one")  # fmt: skip
    if blocks:
        return Region(
            f"{span}, from position {first} to the end ({first} = {first // blocks[-1]} x "
            f"{blocks[-1]}, the start of a block),",
            "what is carried from one block to the next (state, running sum, history)",
        )
    return Region(
        f"{span}, from position {first} to the end,",
        "what is carried along this axis, or a length that is fixed in the code",
    )


def _either(sizes: list[int]) -> str:
    """Such as "16, 32 or 64"."""
    text = [str(size) for size in sizes]
    return text[0] if len(text) == 1 else f"{', '.join(text[:-1])} or {text[-1]}"


def _periodic(hit: list[int], n: int) -> Region | None:
    """Every k-th index, or the same part of every tile."""
    step = hit[1] - hit[0]
    if len(hit) >= 3 and hit == list(range(hit[0], n, step)) and hit[0] < step:
        if step == 2:
            return Region(
                f"alternate indices ({'odd' if hit[0] else 'even'} ones)",
                "pairs: vector loads of two, packed halves, lanes that are swapped or skipped",
            )
        return Region(
            f"every {step}-th index ({hit[0]}, {hit[1]}, ..)",
            f"what happens once in {step}: a lane, a vector element, the edge of a tile",
        )
    marked = set(hit)
    for tile in TILES:
        if n < 2 * tile:
            break
        part = sorted({i % tile for i in hit})
        whole = len(part) < tile and part[-1] - part[0] + 1 == len(part)
        if whole and marked == {i for i in range(n) if part[0] <= i % tile <= part[-1]}:
            return Region(
                f"{part[0]}..{part[-1]} of every {tile} indices",
                f"one part of each tile of {tile}: the lanes, warp or vector elements that own it",
            )
    return None


def _listed(hit: list[int], n: int, dense: bool) -> Region | None:
    missing = sorted(set(range(n)) - set(hit))
    if n >= 8 and len(missing) == 1:
        text = "what is particular about the right one"
        return Region(f"every index but {missing[0]}", text, weak=True)
    if dense and len(hit) <= n // 2:
        shown = ", ".join(map(str, hit[:_LISTED])) + (", .." if len(hit) > _LISTED else "")
        return Region(
            f"{len(hit)} of {n} indices ({shown})",
            "what these have in common in the inputs (empty, masked, ignored, large)",
        )
    return None


def _corner(index: list[int], shape: torch.Size) -> str:
    if all(i in (0, n - 1) for i, n in zip(index, shape, strict=True)):
        return "the first or last thread"
    return ""


def _flat_last_two(mask: torch.Tensor) -> torch.Tensor:
    """(rows, columns) of the last two axes: marked where any leading index is."""
    return mask.reshape(-1, *mask.shape[-2:]).any(dim=0)


def _edges(mask: torch.Tensor) -> Region | None:
    """The ragged tiles of both of the last two axes, an L along the far edges."""
    if mask.dim() < 2:
        return None
    plane = _flat_last_two(mask)
    n, m = plane.shape
    rows = torch.arange(n, device=mask.device).unsqueeze(1)
    columns = torch.arange(m, device=mask.device)
    for tile in TILES:
        if not (n % tile and m % tile and n > tile and m > tile):
            continue
        edge = (rows >= n - n % tile) | (columns >= m - m % tile)
        if bool((plane & ~edge).any()):
            continue
        if float(plane[edge].to(torch.float64).mean()) >= _DENSE:
            a, b = mask.dim() - 2, mask.dim() - 1
            return Region(
                f"only in the ragged last tiles of size {tile} of axes {a} and {b} "
                f"(index {n - n % tile} on and {m - m % tile} on)",
                "the guards of the partial tiles",
            )
    return None


def _triangle(mask: torch.Tensor) -> Region | None:
    """One side of a diagonal, or the diagonal itself, of any two axes."""
    for a in range(mask.dim()):
        for b in range(a + 1, mask.dim()):
            n, m = mask.shape[a], mask.shape[b]
            if min(n, m) < 4:
                continue
            others = [d for d in range(mask.dim()) if d not in (a, b)]
            plane = mask.any(dim=others) if others else mask
            for shift in dict.fromkeys((0, m - n)):
                found = _side(plane, shift)
                if found:
                    sign = f" {'+' if shift > 0 else '-'} {abs(shift)}" if shift else ""
                    return Region(
                        f"only {found} the diagonal of axes {a} and {b} "
                        f"(index j of axis {b} against i{sign} of axis {a})",
                        "the mask: its comparison (< or <=), its offset, its side",
                    )
    return None


def _side(plane: torch.Tensor, shift: int) -> str:
    """The word for the side of the diagonal j = i + shift on which ``plane`` is marked, or ""."""
    rows = torch.arange(plane.shape[0], device=plane.device).unsqueeze(1)
    away = torch.arange(plane.shape[1], device=plane.device) - rows - shift
    sides = (
        ("on", away == 0), ("one above", away == 1), ("one below", away == -1),
        ("above", away > 0), ("below", away < 0), ("on and above", away >= 0),
        ("on and below", away <= 0),
    )  # fmt: skip
    for word, side in sides:
        rest = side.numel() - int(side.sum())
        # A corner cut off is no triangle.
        if int(side.sum()) < 3 or rest < 0.2 * side.numel() or bool((plane & ~side).any()):
            continue
        if float(plane[side].to(torch.float64).mean()) >= _DENSE:
            return word
    return ""


def _tiled(mask: torch.Tensor) -> Region | None:
    """Whole tiles of the last two axes, some right and some wrong."""
    if mask.dim() < 2:
        return None
    plane = _flat_last_two(mask)
    for tile in reversed(TILES):
        if min(plane.shape) < 2 * tile:
            continue
        share = _shares(plane, tile)
        wrong, right = share >= 0.9, share == 0
        if bool((wrong | right).all()) and bool(wrong.any()) and bool(right.any()):
            first = [int(i) for i in wrong.nonzero()[0]]
            return Region(
                f"only in {int(wrong.sum())} of {wrong.numel()} whole tiles of {tile} x {tile} of "
                f"the last two axes (the first is tile {first})",
                "how blocks are mapped to tiles: swizzle, order, a tile that two blocks write",
            )
    return None


def _shares(plane: torch.Tensor, tile: int) -> torch.Tensor:
    """Share of marked elements in each tile, partial tiles by what they hold."""
    n, m = plane.shape
    pad = (0, -m % tile, 0, -n % tile)
    marked = torch.nn.functional.pad(plane.to(torch.float64), pad)
    present = torch.nn.functional.pad(torch.ones_like(plane, dtype=torch.float64), pad)

    def fold(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(x.shape[0] // tile, tile, x.shape[1] // tile, tile).sum(dim=(1, 3))

    return fold(marked) / fold(present)
