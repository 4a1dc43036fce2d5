"""Rules that a call must keep whatever its values are: memory, aliasing, devices, repetition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernelproof.check.values import flatten, identical
from kernelproof.types import CURRENT_STREAM, Check, Run

_PLAIN = "right without filled memory"


class Guards:
    """The guards of one check; ``checks`` holds the outcome of each by name.

    Args:
        device: where the outputs must be.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.checks: dict[str, Check] = {}
        self.launches = 0

    def apply(
        self, name: str, run: Run, results: Any, changed: list[int], may_view: bool,
        may_overlap: bool, draws: bool, judge: Callable[[Any], Run],
    ) -> Run:  # fmt: skip
        """``run``, made wrong where its calls broke a rule.

        Args:
            name: the case, as messages call it.
            results: of each call; the first had new memory filled with NaN.
            changed: indices of inputs that the reference changes too.
            may_view: whether the reference's output shares memory with an input.
            may_overlap: whether its outputs have elements in one place.
            draws: whether the reference draws random numbers.
            judge: a result's values.
        """
        run = self.launched(name, run, results[0])
        result = _of_all(results)
        mutated = [i for i in result["mutated"] if i not in changed]
        run = self._guard(
            run, "inputs unchanged", not mutated,
            f"case {name}: input {mutated} was changed by the call",
        )  # fmt: skip
        beyond = result["overrun"]
        run = self._guard(
            run, "no write outside inputs", not beyond,
            f"case {name}: the call wrote outside "
            + ", ".join(f"input {i} ({words})" for i, words in beyond),
        )  # fmt: skip
        # Where the reference itself answers with a view (a reshape, an in-place op), so may others.
        views = [] if may_view else result["views_input"]
        run = self._guard(
            run, "outputs are new", not views and not result["reused"],
            f"case {name}: an output shares memory with "
            + ("an input" if views else "the output of an earlier call"),
        )  # fmt: skip
        # Who writes to one element would change another; the reference lets its callers do that.
        twice = [] if may_overlap else result["overlaps"]
        run = self._guard(
            run, "outputs do not overlap", not twice,
            f"case {name}: "
            + "; ".join(
                f"output {i} has several elements in one place (an axis of stride 0)" if i == j
                else f"outputs {i} and {j} are in the same memory" for i, j in twice
            ),
        )  # fmt: skip
        kind = self.device.split(":")[0]
        away = sorted({d for d in result["devices"] if d.split(":")[0] != kind})
        run = self._guard(
            run, "outputs on the inputs' device", not away,
            f"case {name}: an output is on {', '.join(away)}, the inputs are on {kind}",
        )  # fmt: skip
        if not draws and any(result.get("draws") for result in results):
            text = (
                "a call draws random numbers or seeds the generator, which the reference leaves "
                "alone: whatever its caller draws afterwards is other than with the reference"
            )
            note = Check(name="random numbers", outcome="note", message=text)
            self.checks.setdefault(note.name, note)
        if len(results) > 1:
            run = self._plain(run, results, judge)
        if len(results) > 2 and _PLAIN not in self.checks:
            run = self._repeats(run, results, judge)
        return run

    def launched(self, name: str, run: Run, result: dict[str, Any]) -> Run:
        """``run`` with what is known of its launches, whatever its values are."""
        run = self.emulated(name, run, result.get("emulated"))
        refused = result.get("refused") or []
        if not refused:
            return run
        text = f"case {name}: {'; '.join(refused)}"
        if run.status == "pass":
            # Whoever tries a large block first and then takes another way is right.
            note = Check(name="launches accepted", outcome="note", message=text)
            self.checks.setdefault("launches accepted", note)
            return run
        values = run.message.removeprefix(f"case {run.name}: ")
        run = run.model_copy(update={"message": f"{text}. Hence {values}"})
        return self._guard(run, "launches accepted", False, text)

    def emulated(self, name: str, run: Run, seen: dict[str, Any] | None) -> Run:
        """Findings of the emulator fail a kernel whatever its values are; see emulate.report."""
        if seen is None:
            return run
        errors, notes = seen["errors"], seen["notes"]
        self.launches += seen["launches"]
        text = "" if self.launches else "no call has launched a kernel"
        self.checks["emulated launches"] = Check(
            name="emulated launches", outcome="pass" if self.launches else "note", message=text
        )
        if seen["apart"]:
            which = ", ".join(map(str, seen["apart"]))
            text = (
                f"case {name}: no kernel had a part in output {which}, which torch alone has "
                "computed: what was emulated says nothing of it"
            )
            note = Check(name="outputs are of kernels", outcome="note", message=text)
            self.checks.setdefault(note.name, note)
        for words in notes[:3]:
            key = f"emulated: {words}"
            self.checks.setdefault(key, Check(name="emulated", outcome="note", message=words))
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        found = f"case {name}: {errors[0]}{more}" if errors else ""
        if errors and run.status != "pass":
            both = f"{run.message}; {errors[0]}{more}"
            run = run.model_copy(update={"message": both})
        return self._guard(run, "races, bounds and initialisation (emulated)", not errors, found)

    def _guard(self, run: Run, name: str, passed: bool, message: str) -> Run:
        if name not in self.checks or not passed:
            outcome = "pass" if passed else "fail"
            self.checks[name] = Check(name=name, outcome=outcome, message="" if passed else message)  # type: ignore[arg-type]
        if passed or run.status != "pass":
            return run
        return run.model_copy(update={"status": "wrong", "message": message})

    def _plain(self, run: Run, results: Any, judge: Callable[[Any], Run]) -> Run:
        """Run 1 had ordinary memory and must be right too: what NaN does not get through (a maximum
        in which it loses), and who looks whether memory is filled, is wrong there only."""
        # What has the bits of an output that passed need not be judged again: on gigabytes, and in
        # float64, that takes longer than all else.
        if _same(flatten(results[0]["output"]), flatten(results[1]["output"])):
            return run
        plain = judge(results[1])
        if plain.status == "pass":
            return run
        return self._guard(
            run, _PLAIN, False,
            f"{plain.message} (only when new memory is not filled with NaN: "
            "the result depends on memory that the kernel did not write)",
        )  # fmt: skip

    def _repeats(self, run: Run, results: Any, judge: Callable[[Any], Run]) -> Run:
        """Runs 1 and 2 should be equal bitwise."""
        one, two = flatten(results[1]["output"]), flatten(results[2]["output"])
        same = _same(one, two)
        if self.device != "cpu":
            # A note: most kernels that people write launch on the default stream, which is right
            # for all who use no other.
            aside = same or judge(results[2]).status == "pass"
            text = (
                "launched on another stream than torch.cuda.current_stream(): wrong where the "
                "caller uses streams, and in CUDA graphs"
            )
            # A case in which nothing is launched does not take the note of another away.
            if not aside or CURRENT_STREAM not in self.checks:
                self.checks[CURRENT_STREAM] = Check(
                    name=CURRENT_STREAM,
                    outcome="pass" if aside else "note",
                    message="" if aside else text,
                )
            if not aside:
                return run
        self.checks["repeatable"] = Check(
            name="repeatable",
            outcome="pass" if same else "note",
            message="" if same else "two runs on the same inputs differ bitwise",
        )
        return run


def _of_all(results: Any) -> dict[str, list[Any]]:
    """What was seen in any of the calls on the same inputs, each once: a buffer that is used again
    shows in the second."""
    found: dict[str, list[Any]] = {}
    for name in ("mutated", "overrun", "views_input", "reused", "overlaps", "devices"):
        found[name] = []
        for result in results:
            found[name] += [one for one in result.get(name, []) if one not in found[name]]
    return found


def _same(one: list[tuple[str, Any]], two: list[tuple[str, Any]]) -> bool:
    """Whether two outputs have the same leaves, bit by bit (NaN is NaN)."""
    return [name for name, _ in one] == [name for name, _ in two] and all(
        _bitwise(a, b) for (_, a), (_, b) in zip(one, two, strict=True)
    )


def _bitwise(a: Any, b: Any) -> bool:
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return type(a) is type(b) and (a == b or a != a)
    return a.shape == b.shape and a.dtype == b.dtype and identical(a, b)
