"""A run of a suite from its start, through whatever ends it early, to its results.

The Python interface: `start` a run, `resume` one by its id, and `state` of one, whether it is still
going or not.
"""

from __future__ import annotations

import dataclasses
import datetime
import re
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from kernelproof.errors import UsageError
from kernelproof.store import Store, Suites
from kernelproof.suite import engine, formats, local, numbers, results
from kernelproof.suite.local import Rules
from kernelproof.suite.model import Item, Suite
from kernelproof.types import Record, SuiteResult, SuiteRun, SuiteState

Workers = Literal["local", "ray"]
# Told with each result: how many of how many there are now.
Told = Callable[[SuiteResult, int, int], None]


@dataclasses.dataclass(frozen=True)
class Means:
    """With what a run is carried out; another choice at the next resumption changes no verdict.

    ``gpus``: numbers such as "0,1"; None for all. ``jobs``: see `local.Local`. ``limit``: seconds
    that the judgement of an item may take. ``address``: of a Ray cluster; None starts one here.
    ``lanes``: how many items are judged at a time on each GPU, where nothing is timed.
    """

    workers: Workers = "local"
    gpus: str | None = None
    jobs: int | None = None
    limit: float = 900.0
    address: str | None = None
    lanes: int = 1


def unheard(result: SuiteResult, done: int, count: int) -> None:
    """A `Told` that does nothing."""


def start(
    path: str | Path,
    candidates: str | Path | None = None,
    *,
    format: str | None = None,
    level: int | None = None,
    timed: bool = True,
    options: Mapping[str, Any] | None = None,
    means: Means | None = None,
    store: str | None = None,
    told: Told = unheard,
    began: Callable[[SuiteRun], None] = lambda run: None,
) -> SuiteState:
    """Judge a suite.

    Args:
        path, candidates, format, level: see `formats.load`.
        timed: whether candidates that pass are timed.
        options: fields of `pipeline.Options` that are not the default, as JSON has them.
        began: is told the run, whose id resumes it, before anything is judged.

    Raises:
        UsageError: no such suite, GPU or option.
        KernelproofError: no worker is left.
    """
    where = str(Path(path).expanduser().resolve())
    beside = None if candidates is None else str(Path(candidates).expanduser().resolve())
    suite = formats.load(where, format, level, beside)
    if not any(item.candidate is not None for item in suite.items):
        raise UsageError(
            f"{where}: none of {len(suite.items)} problems has a candidate"
            f"{'' if beside is None else f' in {beside}'}: `kernelproof suite run SUITE "
            "CANDIDATES` takes the folder of them, or the word `reference` (docs/suites.md)"
        )
    run = SuiteRun(
        id=uuid.uuid4().hex[:12], created=datetime.datetime.now(datetime.timezone.utc),
        suite=suite.name, format=suite.format, path=where, candidates=beside, level=level,
        timed=timed, options=dict(options or {}), count=len(suite.items),
    )  # fmt: skip
    means = means or Means()
    crew = _crew(run, means, set_up=means.workers == "local")
    try:
        if crew is not None:
            # Their imports take longer than the store, which may be a new one.
            crew.prepare(sum(item.candidate is not None for item in suite.items))
        Suites(store).create(run)
        began(run)
        return _carry_on(run, suite, means, store, told, crew)
    finally:
        if crew is not None:
            crew.close()


def resume(
    run: str, path: str | Path | None = None, candidates: str | Path | None = None, *,
    means: Means | None = None, store: str | None = None, told: Told = unheard,
    began: Callable[[SuiteRun], None] = lambda run: None,
) -> SuiteState:  # fmt: skip
    """Judge what a run has no result of, or of other files than there are now, or that was lost.

    Args:
        path, candidates: where the suite is now, if not where it was; what is judged again goes by
            the content.

    Raises:
        UsageError: no such run, or its suite is no longer there.
    """
    found = Suites(store).get(run)
    suite = formats.load(
        path if path is not None else found.path, found.format, found.level,
        candidates if candidates is not None else found.candidates,
    )  # fmt: skip
    began(found)
    return _carry_on(found, suite, means or Means(), store, told)


def state(run: str, *, store: str | None = None) -> SuiteState:
    """A run and its results so far. Raises UsageError if there is no such run."""
    kept = Suites(store)
    found = kept.get(run)
    return _state(found, kept.results(found.id))


def judge_items(
    run: SuiteRun, items: list[Item], means: Means, store: str | None, told: Told = unheard,
    crew: engine.Crew | None = None,
) -> None:  # fmt: skip
    """Judge ``items`` and keep each result and record in the store as it comes. ``crew``: workers
    that are there already."""
    kept, records = Suites(store), Store(store)
    done = run.count - len(items)

    def keep(result: SuiteResult, record: Record | None) -> None:
        nonlocal done
        if record is not None:
            records.add(record)
        kept.put(run.id, result)
        done += 1
        told(result, done, run.count)

    if items:
        engine.run(items, crew or _crew(run, means), keep)


def _carry_on(
    run: SuiteRun, suite: Suite, means: Means, store: str | None, told: Told,
    crew: engine.Crew | None = None,
) -> SuiteState:  # fmt: skip
    kept = Suites(store)
    before = {r.item: r for r in kept.results(run.id) if r.status not in results.AGAIN}
    left = [i for i in suite.items if i.name not in before or before[i.name].digest != _digest(i)]
    judge_items(run, left, means, store, told, crew)
    return _state(run, kept.results(run.id))


def _digest(item: Item) -> str:
    try:
        return item.digest()
    except (UsageError, OSError):
        # Gone since: the engine says so.
        return ""


def by_name(name: str) -> list[tuple[int, str]]:
    """A key by which "level1/9" comes before "level1/10"."""
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


def _state(run: SuiteRun, found: list[SuiteResult]) -> SuiteState:
    found = sorted(found, key=lambda result: by_name(result.item))
    return SuiteState(
        run=run, results=tuple(found), left=run.count - len(found),
        devices=numbers.by_device(run, found),
    )  # fmt: skip


def _crew(run: SuiteRun, means: Means, set_up: bool = True) -> Any:
    """The workers; with ``set_up`` False only what is wrong with them is found."""
    rules = Rules(run.timed, run.options, means.limit)
    if means.workers == "ray":
        from kernelproof.suite import ray_engine

        if means.gpus is not None:
            raise UsageError(f"--gpus {means.gpus}: on a Ray cluster Ray gives workers their GPUs")
        if means.lanes != 1:
            raise UsageError(f"--lanes {means.lanes} is for workers of this machine")
        ray_engine.require()
        return ray_engine.Cluster(rules, means.address, means.jobs) if set_up else None
    if means.workers != "local":
        raise UsageError(f"--workers {means.workers}: there are local and ray")
    if means.address is not None:
        raise UsageError(f"--address {means.address} goes with --workers ray")
    device = run.options.get("device")
    gpus = local.visible(means.gpus, device)
    if isinstance(device, str) and device.startswith("cuda") and not gpus:
        raise UsageError(f"device {device!r}: torch sees no CUDA GPU here")
    return local.Local(rules, gpus, means.jobs, means.lanes)
