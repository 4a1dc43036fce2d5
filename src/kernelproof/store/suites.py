"""Runs of suites and the result of each item, in a database.

A result is one row, written when the item is judged: whatever ends a run, what it has found stays.
"""

from __future__ import annotations

from sqlalchemy import func, select, update
from sqlalchemy.exc import IntegrityError

from kernelproof.errors import UsageError
from kernelproof.store.schema import SUITE_RESULTS, SUITE_RUNS, default_url
from kernelproof.store.upgrade import engine_of, shown
from kernelproof.types import SuiteResult, SuiteRun


class Suites:
    """The runs at ``url``; see `records.Store`."""

    def __init__(self, url: str | None = None) -> None:
        url = url or default_url()
        self.url = shown(url)
        self._engine = engine_of(url)

    def create(self, run: SuiteRun) -> None:
        """A new run, without results."""
        row = dict(id=run.id, created=run.created, suite=run.suite, body=run.model_dump_json())
        with self._engine.begin() as connection:
            connection.execute(SUITE_RUNS.insert(), row)

    def get(self, run: str) -> SuiteRun:
        """The run whose id begins with ``run``. Raises UsageError if it is not one."""
        r = SUITE_RUNS.c
        query = select(r.body).where(r.id.startswith(run, autoescape=True)).limit(2)
        with self._engine.connect() as connection:
            bodies = list(connection.scalars(query))
        if len(bodies) != 1 or not run:
            what = "no run of a suite" if not bodies else "more than one run of a suite"
            raise UsageError(
                f"{what} begins with {run!r} in {self.url}; `kernelproof suite list` names them, "
                "`kernelproof suite run SUITE` makes one"
            )
        return SuiteRun.model_validate_json(bodies[0])

    def latest(self, count: int) -> list[tuple[SuiteRun, int]]:
        """The newest ``count`` runs, newest first, each with how many results it has."""
        done = select(SUITE_RESULTS.c.run, func.count().label("n")).group_by(SUITE_RESULTS.c.run)
        counted = done.subquery()
        query = (
            select(SUITE_RUNS.c.body, func.coalesce(counted.c.n, 0))
            .join_from(SUITE_RUNS, counted, SUITE_RUNS.c.id == counted.c.run, isouter=True)
            .order_by(SUITE_RUNS.c.created.desc())
            .limit(count)
        )
        with self._engine.connect() as connection:
            rows = connection.execute(query).all()
        return [(SuiteRun.model_validate_json(body), int(n)) for body, n in rows]

    def results(self, run: str) -> list[SuiteResult]:
        """The results of the run with this id, by the names of their items."""
        r = SUITE_RESULTS.c
        query = select(r.body).where(r.run == run).order_by(r.item)
        with self._engine.connect() as connection:
            return [SuiteResult.model_validate_json(body) for body in connection.scalars(query)]

    def put(self, run: str, result: SuiteResult) -> None:
        """Keep the result of an item, in the place of an earlier one."""
        r = SUITE_RESULTS.c
        row = dict(
            run=run, item=result.item, digest=result.digest, status=result.status,
            device=result.device, record=result.record_id, body=result.model_dump_json(),
        )  # fmt: skip
        changed = update(SUITE_RESULTS).where(r.run == run, r.item == result.item).values(**row)
        try:
            with self._engine.begin() as connection:
                if connection.execute(changed).rowcount == 0:
                    connection.execute(SUITE_RESULTS.insert(), row)
        except IntegrityError:
            # Another process has judged the item in the meantime.
            with self._engine.begin() as connection:
                connection.execute(changed)
