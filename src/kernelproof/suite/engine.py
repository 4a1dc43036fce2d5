"""Judge the items of a suite on whatever workers there are, and keep each result as it comes.

A worker judges one item at a time and has its device to itself. While it does, candidates that are
compiled are built ahead on other processor cores, and those that are built go first. What kills a
worker or hangs in it costs an item another attempt, or in the end its verdict, and never the run.
Where the workers are, on this machine or on others, is for a `Crew` to know.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from kernelproof import candidate as candidates
from kernelproof.errors import KernelproofError, UsageError
from kernelproof.suite import results
from kernelproof.suite.judging import Late, Lost, Starved
from kernelproof.suite.model import Item
from kernelproof.types import ItemStatus, Record, SuiteResult

# Processes that an item may take down with it, and errors of ours that it may meet.
_MOST_LOST = 3
_MOST_FAULTS = 2
_PERIOD = 0.1  # seconds between looks at the workers
# Languages whose import compiles something.
_COMPILED = ("cpp-c", "cpp-stable", "cpp-inline", "cuda-stable", "cuda-inline")

Keep = Callable[[SuiteResult, Record | None], None]


class Gone(Exception):
    """The worker is no more, and not by the item's doing: its machine went away."""


class Slot(Protocol):
    """One worker."""

    name: str

    def judge(self, item: Item) -> dict[str, Any]:
        """See `judging.Judge.ask`, whose errors it raises; and Gone. After an error the next call
        begins with a new process."""

    def close(self) -> None:
        """End it; a call that is under way raises."""


class Crew(Protocol):
    """The workers of a run. ``builders``: how many calls of `build` there may be at a time.
    ``patience``: seconds without any worker after which a run ends."""

    builders: int
    patience: float

    def slots(self) -> Sequence[Slot]:
        """Workers that have come since the last call."""

    def build(self, item: Item) -> None:
        """Build a candidate ahead; what fails then fails again when it is judged."""

    def close(self) -> None:
        """End all that is not a slot."""


class _Work:
    """What is to be done, shared by the threads of a run."""

    def __init__(self, items: Sequence[Item], keep: Keep, builds: bool) -> None:
        self.changed = threading.Condition()
        self.waiting = list(items)
        self.unbuilt = [i for i in items if builds and _compiled(i)]
        # Not yet built: judged last, and not at all while others can be.
        self.coming = {item.name for item in self.unbuilt}
        self.running = 0
        self.lost: dict[str, int] = {}
        self.faults: dict[str, int] = {}
        self.over = False
        self.error: BaseException | None = None
        self._keep = keep

    def take(self) -> Item | None:
        """The next item; None where there is nothing left to do."""
        with self.changed:
            while not self.over:
                ready = [i for i in self.waiting if i.name not in self.coming]
                if ready:
                    self.waiting.remove(ready[0])
                    self.running += 1
                    return ready[0]
                if not self.waiting and not self.running:
                    return None
                self.changed.wait(1.0)
        return None

    def to_build(self) -> Item | None:
        with self.changed:
            return self.unbuilt.pop(0) if self.unbuilt and not self.over else None

    def is_built(self, item: Item) -> None:
        with self.changed:
            self.coming.discard(item.name)
            self.changed.notify_all()

    def back(self, item: Item) -> None:
        """To be judged again, before the others."""
        with self.changed:
            self.waiting.insert(0, item)
            self.running -= 1
            self.changed.notify_all()

    def done(self, result: SuiteResult, record: Record | None) -> None:
        """Keep a result; an error in that is the end of the run."""
        with self.changed:
            if self.over:
                return
            self._keep(result, record)
            self.running -= 1
            self.changed.notify_all()

    def stop(self, error: BaseException | None = None) -> None:
        with self.changed:
            self.over = True
            self.error = self.error or error
            self.changed.notify_all()

    def finished(self) -> bool:
        with self.changed:
            return self.over or (not self.waiting and not self.running)

    def attempts(self, item: Item) -> int:
        return 1 + self.lost.get(item.name, 0) + self.faults.get(item.name, 0)


def run(items: Sequence[Item], crew: Crew, keep: Keep) -> None:
    """Judge ``items`` and give each result, with its record where there is one, to ``keep``, which
    is called by one thread at a time.

    Raises:
        KernelproofError: no worker is left.
        Whatever ``keep`` raises; and KeyboardInterrupt. What was kept until then is kept.
    """
    for item in items:
        if item.candidate is None:
            message = "the suite has no candidate for this problem"
            keep(results.without_record(item, item.digest(), "missing", message, 0), None)
    work = _Work([i for i in items if i.candidate is not None], keep, crew.builders > 0)
    slots: dict[threading.Thread, Slot] = {}
    builders = [
        threading.Thread(target=_build, args=(work, crew), daemon=True)
        for _ in range(crew.builders)
    ]
    try:
        for builder in builders:
            builder.start()
        _attend(work, crew, slots)
    finally:
        work.stop()
        for slot in slots.values():
            slot.close()
        crew.close()
        for thread in (*slots, *builders):
            thread.join()
    if work.error is not None:
        raise work.error


def _attend(work: _Work, crew: Crew, slots: dict[threading.Thread, Slot]) -> None:
    """Start a thread for each worker that comes, until all is done."""
    seen = time.monotonic()
    while not work.finished():
        for slot in crew.slots():
            thread = threading.Thread(target=_serve, args=(work, slot), daemon=True)
            slots[thread] = slot
            thread.start()
        if any(thread.is_alive() for thread in slots):
            seen = time.monotonic()
        elif time.monotonic() - seen > crew.patience and not work.finished():
            # Asked again, since the last of them may have finished after it was asked above.
            raise KernelproofError("no worker is left for this run; it can be resumed later")
        with work.changed:
            work.changed.wait(_PERIOD)


def _build(work: _Work, crew: Crew) -> None:
    while (item := work.to_build()) is not None:
        with contextlib.suppress(Exception):
            # What a build needs and lacks is told when the item is judged.
            crew.build(item)
        work.is_built(item)


def _serve(work: _Work, slot: Slot) -> None:
    """One worker's items."""
    try:
        while (item := work.take()) is not None:
            try:
                result, record = _judged(work, slot, item)
            except Lost:
                work.back(item)
                continue
            except Gone:
                # It counts, lest an item takes one machine after the other with it.
                work.lost[item.name] = work.lost.get(item.name, 0) + 1
                work.back(item)
                return
            work.done(result, record)
    except BaseException as error:
        work.stop(error)
    finally:
        slot.close()


def _judged(work: _Work, slot: Slot, item: Item) -> tuple[SuiteResult, Record | None]:
    """Raises Lost where the item is to be judged again by whatever worker is free, and Gone."""
    digest = ""

    def ended(status: ItemStatus, message: str) -> tuple[SuiteResult, None]:
        told = work.attempts(item)
        return results.without_record(item, digest, status, message, told, slot.name), None

    try:
        digest = item.digest()
        if work.lost.get(item.name, 0) >= _MOST_LOST:
            return ended("lost", f"its worker was lost {_MOST_LOST} times")
        answer = slot.judge(item)
        changed = item.digest() != digest
    except (UsageError, OSError) as error:
        return ended("unsupported", str(error))
    except Late as error:
        return ended("timeout", f"{error}; its worker was ended")
    except Starved as error:
        # The worker has waited for the memory already.
        return ended("lost", str(error))
    except Lost as error:
        count = work.lost[item.name] = work.lost.get(item.name, 0) + 1
        if count < _MOST_LOST:
            raise
        return ended("lost", f"its worker was lost {count} times; the last time {error}")
    except KernelproofError as error:
        count = work.faults[item.name] = work.faults.get(item.name, 0) + 1
        if count < _MOST_FAULTS:
            raise Lost(str(error)) from error
        return ended("fault", f"an error of kernelproof: {error}")
    if changed:
        return ended("fault", "its files changed while it was judged: resume the run")
    record = Record.model_validate_json(answer["record"])
    told = work.attempts(item)
    return results.of_record(item, digest, record, answer, told, slot.name), record


def _compiled(item: Item) -> bool:
    if item.candidate is None:
        return False
    try:
        return candidates.load(item.candidate).language in _COMPILED
    except UsageError:
        return False
