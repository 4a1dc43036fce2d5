"""Other sizes for a problem that names its sizes as module-level constants, as KernelBench does.

``get_inputs`` of such a file takes no arguments and reads constants like ``batch_size``. They are
replaced right after the statement that sets them, so that constants derived from them follow.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from typing import Any

_SMALLEST = 2
# A file with many constants is tried at no more sizes than this.
_VARIATIONS = 16

# A size: a whole number, or a shape.
Size = int | tuple[int, ...]


def with_sizes(source: str, sizes: Mapping[str, Size]) -> ast.Module:
    """The parsed ``source`` in which each constant of ``sizes`` has its new value.

    Raises KeyError with the name of a constant that the source does not set at module level.
    """
    tree = ast.parse(source)
    body: list[ast.stmt] = []
    found = set()
    for statement in tree.body:
        body.append(statement)
        for name in _bound(statement) & set(sizes):
            found.add(name)
            forced = ast.parse(f"{name} = {sizes[name]!r}").body[0]
            body.append(ast.copy_location(forced, statement))
    missing = set(sizes) - found
    if missing:
        raise KeyError(sorted(missing)[0])
    tree.body = body
    return ast.fix_missing_locations(tree)


def size_constants(source: str, values: Mapping[str, Any]) -> dict[str, Size]:
    """The constants that ``get_inputs`` reads and that are whole numbers or shapes, with their
    values. Of a constant that is made from others, as ``input_shape = (num_classes,)``, these: by
    itself it would no longer agree with what else they give.

    Args:
        values: the module's namespace.
    """
    found = _sizes_behind(source, values, "get_inputs")
    return {name: values[name] for name in sorted(found)}


def _sizes_behind(source: str, values: Mapping[str, Any], function: str) -> set[str]:
    """The sizes that ``function`` reads, or from which those that it reads are made, without such
    as are made from others."""
    tree = ast.parse(source)
    made_from = _made_from(tree, values)
    found: set[str] = set()
    waiting = _names_read(tree, function) & set(made_from)
    while waiting:
        found |= waiting
        waiting = {other for name in waiting for other in made_from[name]} - found
    return {name for name in found if not made_from[name]}


def _made_from(tree: ast.Module, values: Mapping[str, Any]) -> dict[str, set[str]]:
    """Each size that the module sets, and the sizes set before that it is made from."""
    made_from: dict[str, set[str]] = {}
    for statement in tree.body:
        sizes = {name for name in _bound(statement) if _is_size(values.get(name))}
        if sizes:
            read = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name)}
            others = (read & set(made_from)) - sizes
            made_from |= dict.fromkeys(sizes, others)
    return made_from


def shrink(
    source: str,
    values: Mapping[str, Any],
    fits: Callable[[dict[str, Size]], bool],
    runs: Callable[[dict[str, Size]], bool],
) -> dict[str, Size]:
    """Halve size constants until ``fits``, keeping only steps after which the reference ``runs``.

    Constants that only the inputs use (a batch, a length) go first; those that also shape the
    weights follow; where none can go alone, they are halved together. Returns the new values, which
    may still not fit; empty when nothing had to change.
    """
    constants = size_constants(source, values)
    shared = _sizes_behind(source, values, "get_init_inputs")
    sizes: dict[str, Size] = {}
    for group in (
        [name for name in constants if name not in shared],
        [name for name in constants if name in shared],
    ):
        stuck: set[str] = set()
        while not fits(sizes) and len(stuck) < len(group):
            current = {n: sizes.get(n, constants[n]) for n in group if n not in stuck}
            largest = max(current, key=lambda n: _magnitude(current[n]))
            attempt = sizes | {largest: _halved(current[largest])}
            if attempt[largest] != current[largest] and runs(attempt):
                sizes = attempt
            else:
                stuck.add(largest)
    for together in ([name for name in constants if name not in shared], list(constants)):
        while together and not fits(sizes):
            current = {n: sizes.get(n, constants[n]) for n in together}
            halved = {n: _halved(size) for n, size in current.items()}
            if halved == current or not runs(sizes | halved):
                break
            sizes = sizes | halved
    return sizes


def _is_size(value: Any) -> bool:
    if type(value) is tuple:
        return bool(value) and all(type(item) is int and item > 0 for item in value)
    return type(value) is int and value >= _SMALLEST


def _magnitude(size: Size) -> int:
    return max(size) if isinstance(size, tuple) else size


def _halved(size: Size) -> Size:
    """Half of a number, or of a shape's largest number, but not below the smallest."""
    if isinstance(size, int):
        return max(_SMALLEST, size // 2) if size > _SMALLEST else size
    at = size.index(max(size))
    half = max(_SMALLEST, size[at] // 2) if size[at] > _SMALLEST else size[at]
    return (*size[:at], half, *size[at + 1 :])


def variations(
    source: str, values: Mapping[str, Any], runs: Callable[[dict[str, Size]], bool]
) -> list[dict[str, Size]]:
    """Other values for the size constants, one constant at a time and then all, at which the
    reference ``runs``: one (a batch or a sequence of one), and an odd number below the present one,
    which is no multiple of a tile.
    """
    constants = size_constants(source, values)
    odd: dict[str, Size] = {name: _odd(value) for name, value in constants.items()}
    trials = [{name: value} for name in constants for value in (_one(constants[name]), odd[name])]
    if len(constants) > 1:
        trials.append(odd)
    found: list[dict[str, Size]] = []
    for trial in trials[:_VARIATIONS]:
        if trial not in found and runs(trial):
            found.append(trial)
    return found


def grown(
    source: str, values: Mapping[str, Any], extent: Callable[[dict[str, Size]], tuple[int, int]],
    elements: int,
) -> dict[str, Size]:  # fmt: skip
    """One size constant with a larger value, at which the largest tensor has more than
    ``elements`` elements: one that only the inputs use if it can be, and the one that takes the
    least bytes. Empty where there is none.

    Args:
        extent: elements of the largest tensor and bytes of all, at given sizes; (0, 0) where the
            reference does not run.
    """
    now = max(1, extent({})[0])
    shared = _sizes_behind(source, values, "get_init_inputs")
    found: list[tuple[bool, int, dict[str, Size]]] = []
    for name, value in size_constants(source, values).items():
        if isinstance(value, int):
            trial: dict[str, Size] = {name: value * (elements // now + 1)}
            largest, size = extent(trial)
            if largest > elements:
                found.append((name in shared, size, trial))
    return min(found, key=lambda one: one[:2], default=(False, 0, {}))[2]


def _one(size: Size) -> Size:
    return 1 if isinstance(size, int) else (1,) * len(size)


def _odd(size: Size) -> Size:
    return _odd_below(size) if isinstance(size, int) else tuple(map(_odd_below, size))


def _odd_below(value: int) -> int:
    """An odd number from half of ``value`` to ``value``, one past a multiple of 32 where it can."""
    return value // 2 // 32 * 32 + 33 if value > 66 else max(1, value - 1 - value % 2)


def _bound(statement: ast.stmt) -> set[str]:
    """Names that a module-level assignment sets."""
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        targets = [statement.target]
    return {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}


def _names_read(tree: ast.Module, function: str) -> set[str]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    return set()


def tensor_bytes(value: Any) -> int:
    """Bytes of all tensors in a nest of lists and dicts; works on meta tensors."""
    from torch import Tensor
    from torch.utils._pytree import tree_leaves

    return sum(
        math.prod(t.shape) * t.element_size() for t in tree_leaves(value) if isinstance(t, Tensor)
    )
