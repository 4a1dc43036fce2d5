"""The reference side of one case: working-precision output, truth, conditioning, precisions."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from kernelproof import spare
from kernelproof.check.accumulation import Serial
from kernelproof.check.oracle import Float64Mode, Rounding, float64, lift, round_to
from kernelproof.check.replay import Form, Replays
from kernelproof.check.values import equal, flatten, floats, has_storage, nbytes, storage, to_device
from kernelproof.errors import ProblemError
from kernelproof.seeding import seed_all
from kernelproof.strides import copy_like, overlaps
from kernelproof.timeline import span

# On a GPU an oracle of so many operations on so few bytes of inputs is mostly launches: a loop over
# the steps of a recurrence took four times as long there as on the CPU.
_MANY_OPERATIONS = 200
_FEW_BYTES = 1 << 20
# Inputs from so many bytes on are kept on the GPU between runs, if they take no more than this
# share of its memory: each way there takes longer than the run.
_LARGE_BYTES = 64 << 20
_SHARE = 16
# Name of the precision that a working dtype has by itself.
_OWN_NAME = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


class ReferenceModel:
    """``Model`` for one set of constructor arguments, in working precision and in float64.

    Args:
        factory: the class ``Model``.
        args, kwargs: its constructor's arguments.
        seed: drawn before each construction, so that both copies and the candidate start alike.
        device: where both run.
        training: both are in training mode; see `types.Problem`.
    """

    def __init__(
        self, factory: Callable[..., Any], args: list[Any], kwargs: dict[str, Any],
        seed: int, device: str, training: bool = False,
    ) -> None:  # fmt: skip
        self.device = device
        # Where the oracle's answers are, and where it runs: on the CPU where that is quicker.
        self.oracle = device
        self._place = device
        self._on_device: float | None = None  # seconds there, where the CPU is being tried
        self._twin: Any = None
        # Large inputs on the GPU, and the list that they are a copy of.
        self._moved: tuple[Any, Any] = (None, None)
        self.model = construct(factory, args, kwargs, seed, device, training)
        self.exact = construct(factory, args, kwargs, seed, device, training)
        self.exact.load_state_dict(self.model.state_dict())
        with contextlib.suppress(RuntimeError):
            self.exact.double()
        self.notes: list[str] = []
        # Whether its own outputs have elements in one place, as `expand` makes them.
        self.overlapping = False
        self.draws = False
        # Of the working precision on a GPU, once the oracle has told that there is much to launch.
        self._replays: Replays | None = None

    @property
    def replaying(self) -> bool:
        """Whether there are graphs of it, or may be soon."""
        return self._replays is not None

    def state(self) -> dict[str, torch.Tensor]:
        """Weights and buffers, on the CPU."""
        return state_of(self.model)

    def run(self, inputs: list[Any], seed: int) -> tuple[Any, list[int], bool]:
        """Output in the working precision, the indices of inputs that the reference changed, and
        whether its output shares memory with an input."""
        kept, graph = self._copied(inputs, self.device), self._graph(inputs)
        if graph is not None and graph.trusted:
            output = graph.replay(kept)
            if output is not None:
                return output, [], False
        return self._eagerly(inputs, kept, seed, graph)

    def _graph(self, inputs: list[Any]) -> Form | None:
        return self._replays.of(inputs) if self._replays is not None and _few(inputs) else None

    @span("reference")
    def _eagerly(
        self, inputs: list[Any], kept: list[Any], seed: int, graph: Form | None
    ) -> tuple[Any, list[int], bool]:
        given = self._copied(inputs, self.device)
        seed_all(seed)
        drawn = torch.default_generator.get_state()
        with torch.no_grad():
            output = self.model(*given)
        self.draws = not torch.equal(drawn, torch.default_generator.get_state())
        changed = [i for i, (a, b) in enumerate(zip(kept, given, strict=True)) if not equal(a, b)]
        storages = {storage(t) for t in tree_leaves(given) if isinstance(t, torch.Tensor)}
        views = any(storage(t) in storages for _, t in flatten(output) if has_storage(t))
        leaves = [leaf for _, leaf in flatten(output) if isinstance(leaf, torch.Tensor)]
        self.overlapping = bool(overlaps(leaves))
        if graph is not None:
            graph.ran(kept, output, fit=not (changed or views))
        return output, changed, views

    def _copied(self, inputs: list[Any], place: str) -> Any:
        """A copy of ``inputs`` on ``place``. Large ones go to a GPU once, and are copied there."""
        kept = self._kept(inputs, place)
        return to_device(inputs if kept is None else kept, place)

    def _kept(self, inputs: list[Any], place: str) -> Any:
        """``inputs`` on the GPU ``place``, not to be changed; None where none are kept there."""
        size = nbytes(inputs)
        if place == "cpu" or size < _LARGE_BYTES or size > _room(place):
            return None
        if self._moved[0] is not inputs:
            self._moved = inputs, to_device(inputs, place)
        return self._moved[1]

    def forget(self) -> None:
        """Give up the inputs that are kept on the GPU."""
        self._moved = None, None

    def _lifted(self, inputs: list[Any]) -> Any:
        """A copy of ``inputs`` in float64 where the oracle runs."""
        kept = self._kept(inputs, self._place)
        if kept is None:
            return lift(to_device(inputs, self._place))

        return tree_map(self._own, kept)

    def _own(self, leaf: Any) -> Any:
        """A leaf that is kept, in float64 and not to be kept."""
        lifted = lift(leaf)
        same = lifted is leaf and isinstance(leaf, torch.Tensor)
        return copy_like(leaf, self._place) if same else lifted

    def roughly(self, inputs: list[Any], seed: int) -> Any:
        """Output in the working precision, computed where the oracle runs by now: the same but for
        rounding, in a quarter of the time for a loop of small operations."""
        graph = self._graph(inputs)
        if self._place == self.device or (graph is not None and graph.trusted):
            return self.run(inputs, seed)[0]
        if self._twin is None:
            self._twin = copy.deepcopy(self.model).to(self._place)
        try:
            seed_all(seed)
            with torch.no_grad():
                return self._twin(*to_device(inputs, self._place))
        except RuntimeError:
            self._move(self.oracle)
            return self.run(inputs, seed)[0]

    def settle(self, inputs: list[Any], seed: int) -> None:
        """Find out where the oracle runs, where that may be the CPU."""
        if self.device != "cpu" and self._on_device is None and _few(inputs):
            self.truth(inputs, seed)

    @span("oracle")
    def truth(
        self, inputs: list[Any], seed: int, operands: Rounding | None = None, moves: bool = True
    ) -> Any:
        """Output in float64. ``moves``: on the CPU where the GPU's memory ends; else
        torch.OutOfMemoryError is raised."""

        return self._exactly(inputs, seed, self._lifted, operands, moves)

    def _exactly(
        self, inputs: list[Any], seed: int, given: Callable[[list[Any]], Any],
        operands: Rounding | None, moves: bool,
    ) -> Any:  # fmt: skip
        """The oracle's output for what ``given`` makes of the inputs."""

        def run() -> Any:
            made = given(inputs)
            with float64(operands) as mode:
                seed_all(seed)
                return self.exact(*made), mode

        started = time.perf_counter()
        output, mode = self._with_room(run, moves)
        for note in mode.notes:
            if note not in self.notes:
                self.notes.append(note)
        if _few(inputs):
            self._placed(mode, started)
        if self._replays is None and self._worth_a_graph(mode):
            self._replays = Replays(self.model)
        return output

    def _worth_a_graph(self, mode: Float64Mode) -> bool:
        """Whether replaying the working precision may be quicker than running it, and can be tried:
        in training mode each run leaves other statistics behind, and a capture that fails where the
        CPU reads a value costs this process more than the graph would save."""
        many = mode.operations >= _MANY_OPERATIONS and not (mode.drew or mode.read)
        return many and self.device.startswith("cuda") and not self.model.training

    def _placed(self, mode: Float64Mode, started: float) -> None:
        """Where the oracle runs from now on, after a run that began at ``started``."""
        if self._place == "cpu":
            if self._on_device is not None and time.perf_counter() - started > self._on_device:
                self._move(self.oracle)
        # Random numbers are others on other devices.
        elif self._on_device is None and mode.operations >= _MANY_OPERATIONS and not mode.drew:
            if self._place.startswith("cuda"):
                torch.cuda.synchronize(self._place)
            self._on_device = time.perf_counter() - started
            self._move("cpu")

    def _move(self, place: str) -> None:
        self._place = place
        self.exact.to(place)

    def _with_room(self, run: Callable[[], Any], moves: bool = True) -> Any:
        """What ``run`` returns, on the oracle's device; on the CPU from now on where the GPU's
        memory ends, also once all that is kept in it for later has been given up, if it ``moves``.
        """
        for last in (False, True):
            try:
                found = run()
                return found if self._place == self.oracle else tree_map(self._home, found)
            except torch.OutOfMemoryError:
                if self.oracle == "cpu" or (last and (spare.crowded or not moves)):
                    raise
            except RuntimeError:
                if self._place == self.oracle:
                    raise
                # A tensor that is no buffer stays where it was made.
                self._move(self.oracle)
                return run()
            # Only here: the error held the tensors that were there when it was raised.
            self.forget()
            torch.cuda.empty_cache()
            if last:
                break
        self.oracle = "cpu"
        self._move("cpu")
        self.notes.append("the oracle ran on the CPU: it does not fit into the GPU's memory")
        return run()

    def _home(self, leaf: Any) -> Any:
        return leaf.to(self.oracle) if isinstance(leaf, torch.Tensor) else leaf

    @contextlib.contextmanager
    def holding(self, state: Mapping[str, torch.Tensor]) -> Iterator[None]:
        """Inside, the model has the weights and buffers ``state``."""
        kept = {name: t.detach().clone() for name, t in self.model.state_dict().items()}
        try:
            for model in (self.model, self.exact):
                model.load_state_dict(state)
            yield
        finally:
            for model in (self.model, self.exact):
                model.load_state_dict(kept)

    def perturbed(
        self, inputs: list[Any], seed: int, number: int = 0, by_row: bool = False,
        units: float | None = None,
    ) -> Any:  # fmt: skip
        """The oracle's output after every floating input and weight has moved by one unit of its
        dtype (see `_unit`), or by ``units`` units in the last place of float32 (float64: its own),
        up or down at random; ``number`` tells draws apart. With ``units`` equal numbers move alike,
        so that what is tied exactly stays tied.

        ``by_row``: the unit is that of the element's row (its root mean square along the last
        axis) where that is larger. Transforms, such as a convolution by FFT, are exact to that
        unit only (normwise backward stability: Higham, Accuracy and Stability of Numerical
        Algorithms, chapter 24), which shows where a row holds zeros beside large numbers.
        """
        return self._with_room(lambda: self._perturbed(inputs, seed, number, by_row, units))

    def _perturbed(
        self, inputs: list[Any], seed: int, number: int, by_row: bool, units: float | None
    ) -> Any:
        draw = torch.Generator().manual_seed(seed + number)

        def nudge(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point():
                return leaf
            exact = leaf.to(torch.float64)
            if units is None:
                unit = _unit(leaf.dtype)
                up = torch.randint(0, 2, leaf.shape, generator=draw).to(leaf.device)
            else:
                unit = units * _computed_unit(leaf.dtype)
                # A bit of a hash of the value.
                odd = 2 * int(torch.randint(1 << 61, (), generator=draw)) + 1
                up = (exact.view(torch.int64) * odd) >> 60 & 1
            sign = up * 2 - 1
            if by_row and exact.dim():
                size = exact.square().mean(dim=-1, keepdim=True).sqrt().maximum(exact.abs())
                return exact + sign * size * unit
            return exact * (1 + sign * unit)

        given = tree_map(nudge, to_device(inputs, self._place))
        weights = {name: nudge(t) for name, t in self.model.state_dict().items()}
        with self._with_weights(weights), float64():
            seed_all(seed)
            return self.exact(*given)

    def serial(
        self, inputs: list[Any], seed: int, number: int, unit: float, equal: bool = False,
        positive: bool = False,
    ) -> Any:  # fmt: skip
        """The oracle's output with the error of plain serial sums in the precision of ``unit``
        roundoff, ``equal`` where many terms are, ``positive`` for sums of such only; see
        `accumulation`. ``number`` tells draws apart."""

        def run() -> Any:
            given = lift(to_device(inputs, self._place))
            with float64(serial=Serial(unit, seed + number, equal, positive)):
                seed_all(seed)
                return self.exact(*given)

        return self._with_room(run)

    def in_precision(self, inputs: list[Any], seed: int, name: str) -> Any:
        """The oracle's output as an implementation in "tf32", "bf16" or "fp16" would have it: TF32
        rounds the operands of matrix products, the others inputs and weights too. Raises
        torch.OutOfMemoryError where the GPU's memory ends: the name of a precision is not worth
        an oracle on the CPU."""
        rounding = round_to(name)
        if name == "tf32":
            return self.truth(inputs, seed, rounding, moves=False)

        def low(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
                return rounding(leaf.to(torch.float64))
            return leaf

        def lowered(inputs: list[Any]) -> Any:
            kept = self._kept(inputs, self._place)
            if kept is None:
                return lift(tree_map(low, to_device(inputs, self._place)))
            return tree_map(lambda leaf: low(leaf) if floats(leaf) else self._own(leaf), kept)

        weights = {key: low(t) for key, t in self.model.state_dict().items()}
        with self._with_weights(weights):
            return self._exactly(inputs, seed, lowered, rounding, moves=False)

    @contextlib.contextmanager
    def _with_weights(self, weights: Mapping[str, torch.Tensor]) -> Iterator[None]:
        kept = {name: t.detach().clone() for name, t in self.exact.state_dict().items()}
        if not kept:
            yield
            return
        self.exact.load_state_dict(weights)
        try:
            yield
        finally:
            self.exact.load_state_dict(kept)


def guarded(problem: str, case: str, run: Callable[[], Any]) -> Any:
    """What ``run`` returns. Errors of the reference are the problem's fault, not the candidate's:
    raises ProblemError for any."""
    try:
        return run()
    except ProblemError:
        raise
    except Exception as error:
        text = str(error).splitlines()[0] if str(error) else ""
        raise ProblemError(
            f"the reference of {problem} fails on case {case!r}: {type(error).__name__}: {text}"
        ) from error


def working_name(dtype: torch.dtype) -> str:
    """The name of a working precision, such as "fp32"."""
    return _OWN_NAME.get(dtype, str(dtype).removeprefix("torch."))


def construct(
    factory: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], seed: int, device: str,
    training: bool = False,
) -> Any:  # fmt: skip
    """``factory(*args, **kwargs)`` under ``seed``, on ``device``, in eval mode or ``training``."""
    seed_all(seed)
    model = factory(*copy.deepcopy(args), **copy.deepcopy(kwargs))
    return model.to(device).train(training)


def state_of(model: Any) -> dict[str, torch.Tensor]:
    """A module's weights and buffers, on the CPU."""
    return {name: t.detach().cpu() for name, t in model.state_dict().items()}


def _few(inputs: list[Any]) -> bool:
    return nbytes(inputs) <= _FEW_BYTES


def _unit(dtype: torch.dtype) -> float:
    """Of a perturbation: the unit in the last place. A kernel has inputs of 16 and 8 bits exactly,
    but may round what it makes of them to 16 bits on the way, as tensor cores and flash attention
    want it: by 0.3 to 0.8 units of bfloat16 (outputs of gated linear attention, measured on an
    H200). An eighth, of which `budget.LIMIT` is 1.5, leaves room for that and not for
    products in eight bits, which are off by 4.7."""
    if dtype.itemsize > 2:
        return _computed_unit(dtype)
    return float(torch.finfo(torch.bfloat16 if dtype.itemsize == 1 else dtype).eps) / 8


def _computed_unit(dtype: torch.dtype) -> float:
    """The unit in the last place of what kernels compute in: float32, of float64 itself."""
    return float(torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps)


def _room(place: str) -> int:
    """Bytes of a GPU's memory that one more copy of the inputs may take."""
    return int(torch.cuda.get_device_properties(place).total_memory) // _SHARE
