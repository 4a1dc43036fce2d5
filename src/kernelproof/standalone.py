"""The part of a reproducer script that is the same in all of them.

`kernelproof.reproducer` copies what stands below the line into the script, so it may import nothing
of kernelproof, and its names begin with ``repro_`` to keep clear of the problem's own.
"""
# ---- copied from here ----
# How this script judges, in plain PyTorch. The reference is run once on the inputs as they are, and
# a few times with every input and weight moved by one unit in the last place. By how far it then
# differs from itself, an honest computation may differ too; a candidate that is more than
# ``limit`` times farther away, in any row or over all, is wrong. So is one that is still as far off
# at the element that was recorded, or whose output is bit for bit the one that was found wrong: an
# error below the rounding noise shows in its structure only, which this script does not measure.

import contextlib
import copy
import ctypes
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

REPRO_DRAWS = 8  # runs of the reference with inputs moved
REPRO_SOURCES: dict[str, Any] = globals().get("REPRO_SOURCES", {})


def repro_flatten(value: Any, name: str = "output") -> list[tuple[str, Any]]:
    """The leaves of an output with names such as ``output[0]``."""
    if isinstance(value, (list, tuple)):
        return [x for i, item in enumerate(value) for x in repro_flatten(item, f"{name}[{i}]")]
    if isinstance(value, dict):
        return [x for k, item in value.items() for x in repro_flatten(item, f"{name}[{k!r}]")]
    return [(name, value)]


def repro_import(path: Path, number: int) -> Any:
    """The candidate as a fresh module that finds what lies beside it."""

    class Beside(importlib.abc.MetaPathFinder):
        def find_spec(self, name: str, where: Any, target: Any = None) -> Any:
            if where is not None:
                return None
            return importlib.machinery.PathFinder.find_spec(name, [str(path.parent)])

    sys.meta_path.append(Beside())
    spec = importlib.util.spec_from_file_location(f"candidate_{number}", path)
    assert spec is not None and spec.loader is not None, f"{path} is not a Python file"
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def repro_find(given: str) -> Path:
    """The candidate's file: as given, beside this script, or where Python finds packages."""
    for folder in (Path(), Path(__file__).parent, *map(Path, sys.path)):
        if (folder / given).is_file():
            return (folder / given).resolve()
    raise SystemExit(f"no file {given}: give the candidate's path as an argument")


def repro_copy(value: Any, device: str) -> Any:
    """A deep copy on ``device`` in the same layout."""

    def move(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return copy.deepcopy(leaf)
        if leaf.layout is not torch.strided or not leaf.numel():
            return leaf.to(device, copy=True)
        # The memory with what lies between the elements, so that strides and offset stay.
        last = sum((n - 1) * step for n, step in zip(leaf.shape, leaf.stride(), strict=True))
        offset = leaf.storage_offset()
        memory = leaf.detach().as_strided((offset + last + 1,), (1,), 0).to(device, copy=True)
        return memory.as_strided(leaf.shape, leaf.stride(), offset)

    return tree_map(move, value)


def repro_same(a: Any, b: Any) -> bool:
    """Whether two nests of tensors are bitwise equal, NaN equal to NaN."""
    for x, y in zip(tree_leaves(a), tree_leaves(b), strict=True):
        if isinstance(x, torch.Tensor) and not bool(((x == y) | ((x != x) & (y != y))).all()):
            return False
    return True


@contextlib.contextmanager
def repro_filled(on: bool) -> Iterator[None]:
    """New memory is filled with NaN, so that what a kernel does not write shows."""
    torch.use_deterministic_algorithms(on, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = on  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def repro_storages(value: Any) -> set[int]:
    tensors = [t for t in tree_leaves(value) if isinstance(t, torch.Tensor) and t.numel()]
    return {t.untyped_storage().data_ptr() for t in tensors}


def repro_module(name: str) -> dict[str, Any]:
    """The namespace of one of the sources that this script carries, run once."""
    if isinstance(REPRO_SOURCES[name], str):
        namespace: dict[str, Any] = {"__name__": name}
        exec(REPRO_SOURCES[name], namespace)
        REPRO_SOURCES[name] = namespace
    return REPRO_SOURCES[name]  # type: ignore[no-any-return]


def repro_as_kept(own: Any, given: Any) -> Any:
    """A weight as the candidate keeps it, which may be the other way round; None where it does not
    fit."""
    if torch.nn.parameter.is_lazy(own):
        return given
    if given.dim() == 2 and own.shape == given.mT.shape:
        drawn = own.detach().cpu()
        if drawn.equal(given.mT) and not drawn.equal(given):
            return given.mT
    return given if own.shape == given.shape else None


def repro_fingerprint(value: Any) -> str:
    """A hash of the bits of all tensors."""
    digest = hashlib.sha256()
    for _, leaf in repro_flatten(value):
        if isinstance(leaf, torch.Tensor):
            t = leaf.detach().cpu().contiguous()
            digest.update(ctypes.string_at(t.data_ptr(), t.numel() * t.element_size()))
    return digest.hexdigest()[:32]


class Repro:
    """One candidate beside the reference.

    Args:
        problem: namespace with Model, get_inputs and perhaps get_init_inputs.
        facts: namespace of the ``REPRO_`` constants.
    """

    def __init__(self, problem: Any, facts: Any) -> None:
        self.problem, self.facts, self.device = problem, facts, facts["REPRO_DEVICE"]
        self.key = ""
        self.previous: Any = []
        self.model: Any = None
        self.candidate: Any = None

    def construct(self, source: Any, sizes: dict[str, Any], weights: int | None) -> None:
        """Reference and candidate, with the same weights, for ``sizes``; ``weights``: the seed of
        other ones than the constructor's."""
        args, kwargs = self.init_args(sizes)
        if self.key == repr((args, kwargs, weights)):
            return
        self.key, seed = repr((args, kwargs, weights)), self.facts["REPRO_CONSTRUCT_SEED"]
        torch.manual_seed(seed)
        model = self.problem["Model"](*copy.deepcopy(args), **copy.deepcopy(kwargs))
        self.model = model.to(self.device).train(self.facts["REPRO_TRAINING"])
        if weights is not None:
            state = {k: v.cpu() for k, v in model.state_dict().items()}
            self.model.load_state_dict(repro_module("families")["weights"](state, weights))
        torch.manual_seed(seed)
        candidate = source.ModelNew(*args, **kwargs)
        self.take_weights(candidate, {k: v.cpu() for k, v in self.model.state_dict().items()})
        self.candidate = candidate.to(self.device).train(self.facts["REPRO_TRAINING"])

    def init_args(self, sizes: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        make = self.problem.get("get_init_inputs")
        if make is None:
            return [], {}
        parameters = inspect.signature(make).parameters.values()
        anything = any(p.kind is p.VAR_KEYWORD for p in parameters)
        known = {p.name for p in parameters}
        made = make(**{k: v for k, v in sizes.items() if anything or k in known})
        if isinstance(made, dict):
            return [], made
        pair = len(made) == 2 and isinstance(made[0], (list, tuple)) and isinstance(made[1], dict)
        return (list(made[0]), made[1]) if pair else (list(made), {})

    @staticmethod
    def take_weights(candidate: Any, state: dict[str, Any]) -> None:
        """By name, else by order and shape, else as the seed made them."""
        with contextlib.suppress(RuntimeError):
            candidate.load_state_dict(state, strict=True)
            return
        mine, given = list(candidate.state_dict().values()), list(state.values())
        if len(mine) == len(given):
            pairs = zip(mine, given, strict=True)
            placed = [(own, repro_as_kept(own, other)) for own, other in pairs]
            if all(other is not None for _, other in placed):
                with torch.no_grad():
                    for own, other in placed:
                        if torch.nn.parameter.is_lazy(own):
                            own.materialize(other.shape)
                        own.copy_(other)

    def inputs(self, sizes: dict[str, Any], seed: int, variant: tuple[str, int, str]) -> list[Any]:
        """As the problem draws them, changed into a family of values and a layout."""
        torch.manual_seed(seed)
        inputs = list(self.problem["get_inputs"](**sizes))
        family, version, layout = variant
        if family not in ("", "weights"):
            inputs = list(repro_module("families")["varied"](family, inputs, seed))[version]
        return repro_module("layouts")["relaid"](layout, inputs) if layout else inputs

    def call(self, source: Any, call: tuple[str, dict[str, Any], int, int, Any]) -> list[str]:
        """Run one call as it was made in the check; what is wrong with it, as lines of text."""
        _, sizes, seed, repeats, variant = call
        inputs = self.inputs(sizes, seed, variant)
        self.construct(source, sizes, seed if variant[0] == "weights" else None)
        self.odd_may_differ = variant[0] == "NaN and infinity"
        given = repro_copy(inputs, self.device)
        want = self.reference(self.model, given, seed)
        may_change = not repro_same(inputs, repro_copy(given, "cpu"))
        may_view = bool(repro_storages(given) & repro_storages(want))
        noise = [self.moved(inputs, seed, draw) for draw in range(REPRO_DRAWS)]
        faults: list[str] = []
        for index in range(repeats):
            given = repro_copy(inputs, self.device)
            torch.manual_seed(seed)
            with torch.no_grad(), repro_filled(index == 0):
                got = self.candidate(*given)
                if self.device != "cpu":
                    torch.cuda.synchronize()
            faults += self.compare(got, want, noise)
            known = self.facts["REPRO_FINGERPRINT"]
            if index == 0 and self.as_recorded and known and repro_fingerprint(got) == known:
                faults += [*self.recorded_line(got), "all is bit for bit what was found wrong"]
            if not may_change and not repro_same(inputs, repro_copy(given, "cpu")):
                faults.append("an input was changed by the call")
            if not may_view and repro_storages(got) & repro_storages(given):
                faults.append("an output shares memory with an input")
            if repro_storages(got) & repro_storages(self.previous):
                faults.append("an output shares memory with the output of an earlier call")
            self.previous = got
        return list(dict.fromkeys(faults))

    @staticmethod
    def reference(model: Any, given: list[Any], seed: int) -> Any:
        torch.manual_seed(seed)
        with torch.no_grad():
            return model(*given)

    def moved(self, inputs: list[Any], seed: int, number: int) -> Any:
        """The reference with every floating input and weight one unit in the last place away."""
        draw = torch.Generator().manual_seed(seed + number)

        def nudge(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point():
                return leaf
            sign = torch.randint(0, 2, leaf.shape, generator=draw).to(leaf.device) * 2 - 1
            wide = leaf.to(torch.float64) * (1 + sign * torch.finfo(leaf.dtype).eps)
            return wide.to(leaf.dtype)

        model = copy.deepcopy(self.model)
        model.load_state_dict({k: nudge(v) for k, v in model.state_dict().items()})
        return self.reference(model, tree_map(nudge, repro_copy(inputs, self.device)), seed)

    def compare(self, got: Any, want: Any, noise: list[Any]) -> list[str]:
        have, expected = repro_flatten(got), repro_flatten(want)
        if [name for name, _ in have] != [name for name, _ in expected]:
            names = [", ".join(name for name, _ in leaves) for leaves in (have, expected)]
            return [f"returns {names[0]}, expected {names[1]}"]
        moved = [[leaf for _, leaf in repro_flatten(value)] for value in noise]
        faults = []
        for i, ((name, a), (_, b)) in enumerate(zip(have, expected, strict=True)):
            if not isinstance(b, torch.Tensor):
                faults += [] if type(a) is type(b) and (a == b or isinstance(b, float)) else [
                    f"{name} is {a!r:.80}, expected {b!r:.80}"
                ]  # fmt: skip
            elif type(a) is not torch.Tensor:
                faults.append(f"{name} is a {type(a).__name__}, expected exactly torch.Tensor")
            elif (a.shape, a.dtype) != (b.shape, b.dtype):
                faults.append(
                    f"{name} is {a.dtype} {tuple(a.shape)}, expected {b.dtype} {tuple(b.shape)}"
                )
            elif b.numel():
                a, b, others = self.as_real(a), self.as_real(b), [self.as_real(m[i]) for m in moved]
                faults += self.values(name, a, b, others)
        return faults

    @staticmethod
    def as_real(x: torch.Tensor) -> torch.Tensor:
        x = x.detach().cpu()
        return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x

    def values(
        self, name: str, got: torch.Tensor, want: torch.Tensor, moved: list[torch.Tensor]
    ) -> list[str]:
        """Judge one tensor; names the worst element of the worst row."""
        if not want.is_floating_point():
            # Where rounding decides between near ties, a move by one ulp turns the answer as well.
            open_ = torch.stack([m != want for m in moved]).any(dim=0)
            off = (got != want) & ~open_
            first = int(off.flatten().int().argmax())
            return [self.line(name, got, want, first)] if bool(off.any()) else []
        wide, truth = got.double(), want.double()
        odd = ~torch.isfinite(truth)
        bad = ~torch.isfinite(wide) & ~odd
        if not self.odd_may_differ:
            bad |= odd & (wide != truth) & ~wide.isnan()
        if bool(bad.any()):
            return [self.line(name, got, want, int(bad.flatten().int().argmax()))]
        width = want.shape[-1] if want.dim() else 1
        rows = [torch.where(odd, 0.0, x).reshape(-1, width) for x in (wide - truth, truth)]
        error, size = (r.square().mean(dim=1).sqrt() for r in rows)
        changes = [torch.nan_to_num(m.double() - truth).reshape(-1, width) for m in moved]
        own = torch.stack([c.square().mean(dim=1) for c in changes]).mean(dim=0).sqrt()
        typical = float(torch.where(size > 0, own / size.clamp(min=1e-300), 0.0).square().mean())
        floor = size * float(torch.finfo(want.dtype).eps) / 2
        allowed = torch.stack((own, floor, math.sqrt(typical) * size)).amax(dim=0)
        ratio = torch.where(error > 0, error / allowed.clamp(min=1e-300), 0.0)
        whole = float(error.square().mean() / allowed.square().mean().clamp(min=1e-300)) ** 0.5
        faults = []
        if not (float(ratio.max()) <= self.facts["REPRO_LIMIT"] and
                whole <= self.facts["REPRO_LIMIT"]):  # fmt: skip
            row = int(ratio.argmax())
            faults.append(self.line(name, got, want, row * width + int(rows[0][row].abs().argmax()))
                          + f"; the error of that row is {float(ratio[row]):.3g} times that of an "
                          "honest computation")  # fmt: skip
        return faults + self.recorded(name, got)

    def recorded_line(self, got: Any) -> list[str]:
        """The recorded element and its value now."""
        leaf = dict(repro_flatten(got)).get(self.facts["REPRO_OUTPUT"])
        if not isinstance(leaf, torch.Tensor) or leaf.is_complex():
            return []
        index, expected = self.facts["REPRO_WORST"], self.facts["REPRO_EXPECTED"]
        now = float(leaf[index])
        return [f"{self.facts['REPRO_OUTPUT']}{list(index)} is {now:.9g}, expected {expected:.9g}"]

    def recorded(self, name: str, got: torch.Tensor) -> list[str]:
        """Whether the element that was recorded as the worst is still off by half as much."""
        index, was, expected = (
            self.facts["REPRO_WORST"], self.facts["REPRO_GOT"], self.facts["REPRO_EXPECTED"]
        )  # fmt: skip
        if self.facts["REPRO_OUTPUT"] != name or not self.as_recorded or len(index) != got.dim():
            return []
        now = float(got[index])
        if not math.isfinite(was):
            off = not math.isfinite(now)
        else:
            off = not abs(now - expected) <= 0.5 * abs(was - expected)
        if not off:
            return []
        return [
            f"{name}{list(index)} is {now:.9g}, expected {expected:.9g}: the element recorded as "
            f"the worst, then {was:.9g} (error {abs(now - expected):.3g})"
        ]

    as_recorded = True
    odd_may_differ = False

    @staticmethod
    def line(name: str, got: torch.Tensor, want: torch.Tensor, flat: int) -> str:
        index = [int(i) for i in torch.unravel_index(torch.tensor(flat), want.shape)]
        a, b = float(got.flatten()[flat]), float(want.flatten()[flat])
        return f"{name}{index} is {a:.9g}, the reference has {b:.9g} (error {abs(a - b):.3g})"


def repro_main(problem: dict[str, Any], facts: dict[str, Any], arguments: list[str]) -> int:
    """0 when the candidate is right, 1 when not; prints what is wrong."""
    small = "--smallest" in arguments
    given = [a for a in arguments if not a.startswith("-")] or [facts["REPRO_CANDIDATE"]]
    path, calls = repro_find(given[0]), facts["REPRO_CALLS"]
    if small and facts["REPRO_SMALLEST"] is None:
        raise SystemExit("no smaller failing case was found")
    attempts = [("", [calls[-1]])]
    if small:
        attempts = [("", [("smallest", facts["REPRO_SMALLEST"], *calls[-1][2:])])]
    elif len(calls) > 1:
        text = f"only after {len(calls) - 1} earlier calls, so something is kept between calls:"
        attempts.append((text, calls))
    for number, (remark, series) in enumerate(attempts):
        run, source = Repro(problem, facts), repro_import(path, number)
        for index, call in enumerate(series):
            run.as_recorded = not small and index == len(series) - 1
            faults = run.call(source, call)
            if faults:
                print(f"WRONG: {path.name}, case {call[0]}, sizes {call[1]}, seed {call[2]}")
                print("\n".join(f"  {text}" for text in ([remark] if remark else []) + faults))
                return 1
    print(f"right: {path.name}")
    return 0
