"""The pages: for each an address, a template and the function that gives the template its values.

A page more is one function and one template, and a row of `PAGES`.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.requests import Request

from kernelproof import board as boards
from kernelproof import problem as problems
from kernelproof import session
from kernelproof.report import board as board_text
from kernelproof.report import html, page, session_page, suite_page, units
from kernelproof.report.sessions import diagnostic
from kernelproof.serve.desk import Desk
from kernelproof.serve.guard import form_key
from kernelproof.types import CallAnswer, Problem

_MOST = 50
_FEW = 10
_LINKED = board_text.HEAD.index("candidate")


@dataclasses.dataclass(frozen=True)
class Page:
    """``path``: as of starlette's routes. ``view``: values for ``template``. ``nav``: its name
    among the links of all pages, if it is there. ``charts``: whether it has plotly's."""

    path: str
    template: str
    view: Callable[[Desk, Request], dict[str, Any]]
    nav: str = ""
    charts: bool = False


def board(desk: Desk, request: Request) -> dict[str, Any]:
    """The best records by problem, case and device."""
    problem = request.query_params.get("problem") or None
    baseline = request.query_params.get("baseline") or "eager"
    rows = boards.board(problem, baseline, store=desk.store)
    groups = []
    for (name, digest, case, device, beside), mine in board_text.groups(rows):
        groups.append(
            {
                "problem": name, "known": name in problems.known_problems(), "digest": digest[:8],
                "case": case, "device": units.one_line(device), "baseline": units.one_line(beside),
                "rows": [(row.record_id, board_text.cells(row)) for row in mine],
            }
        )  # fmt: skip
    return {
        "groups": groups, "head_of_board": board_text.HEAD, "linked": _LINKED, "problem": problem,
        "baseline": baseline,
    }  # fmt: skip


def problem_list(desk: Desk, request: Request) -> dict[str, Any]:
    """Every problem that comes with kernelproof or has records."""
    known, counts = problems.known_problems(), desk.records.counts()
    rows = []
    for name in sorted({*known, *counts}):
        records, passed = counts.get(name, (0, 0))
        rows.append((name, _first_words(known[name]) if name in known else "", records, passed))
    return {"rows": rows}


def problem(desk: Desk, request: Request) -> dict[str, Any]:
    """Source, cases and baselines, its records and sessions."""
    name = request.path_params["problem"]
    path = problems.known_problems().get(name)
    records = desk.records.index(_MOST, name)
    if path is None and not records:
        # Names what there is.
        problems.find(name)
    found = _loaded(path) if path is not None else desk.record(records[0].id).problem
    return {
        "name": name, "digest": found.digest[:12], "doc": found.doc,
        "source": path.read_text() if path is not None else "",
        "cases": [(c.name, ", ".join(f"{k}={v}" for k, v in c.sizes.items())) for c in found.cases],
        "baselines": ", ".join(("eager", "torch.compile", *found.baselines)),
        "tolerance": "" if found.atol is None else f"atol {found.atol:g}, rtol {found.rtol:g}",
        "records": _record_rows(records), "sessions": _session_rows(
            desk.sessions.of_problem(name, _FEW)
        ),
        "key": form_key(desk.access, request.url.path), "page": request.url.path,
    }  # fmt: skip


def record_list(desk: Desk, request: Request) -> dict[str, Any]:
    """The newest records."""
    return {"rows": _record_rows(desk.records.index(_MOST)), "most": _MOST}


def record(desk: Desk, request: Request) -> dict[str, Any]:
    """The record as in a report."""
    found = desk.record(request.path_params["record"])
    view = html.record_view(1, found)
    view["chart"] = _with_nonce(view["chart"], request)
    view["pictures"] = [(title, _with_nonce(m, request)) for title, m in view["pictures"]]
    return {"view": view, "drawn": bool(view["chart"])}


def session_list(desk: Desk, request: Request) -> dict[str, Any]:
    """The newest sessions."""
    return {"rows": _session_rows(desk.sessions.latest(_MOST)), "most": _MOST}


def session_(desk: Desk, request: Request) -> dict[str, Any]:
    """The ladder of a session, as it is now."""
    row = desk.row(request.path_params["session"])
    path = request.url.path
    text = ""
    if desk.access.allow_submit and row.calls:
        kept = session.source_of(row.id, row.calls, store=desk.store)
        text = kept.files.get(kept.entry, "") if len(kept.files) == 1 else ""
    return {
        **ladder(desk, row.id), "open": row.state == "open", "closed": row.state == "closed",
        "key": form_key(desk.access, path), "page": path, "text": text,
    }  # fmt: skip


def ladder(desk: Desk, identity: str) -> dict[str, Any]:
    """What changes while a session goes on."""
    log = desk.log(identity)
    return {
        "session": session_page.view(log),
        "words": units.one_line(desk.calls.words.get(log.session.id, "")),
        "running": log.session.running,
    }


def attempt(desk: Desk, request: Request) -> dict[str, Any]:
    """One attempt: its answer and its sources."""
    row = desk.row(request.path_params["session"])
    number = int(request.path_params["number"])
    sources = session.source_of(row.id, number, store=desk.store)
    log = desk.log(row.id)
    one = next(a for a in log.attempts if a.number == number)
    answer = next(c.body for c in desk.sessions.calls(row.id) if c.number == number)
    detail: list[str] = []
    if one.state == "done":
        found = CallAnswer.model_validate_json(answer)
        lines = [line for d in found.diagnostics for line in diagnostic(d)]
        detail = ["\n".join(lines)] if lines else [units.plain(found.detail)]
    return {
        "session": row.id, "one": one, "status": one.status or one.state,
        "message": units.plain(one.message), "detail": [text for text in detail if text.strip()],
        "files": sorted(sources.files.items()), "binary": sorted(sources.binary),
    }  # fmt: skip


def suite_list(desk: Desk, request: Request) -> dict[str, Any]:
    """The newest runs of suites."""
    rows = [
        {
            "id": run.id, "suite": units.one_line(run.suite), "format": run.format,
            "judged": judged, "count": run.count, "timed": "yes" if run.timed else "no",
            "made": f"{run.created:%Y-%m-%d %H:%M}",
        }
        for run, judged in desk.suites.latest(_MOST)
    ]  # fmt: skip
    return {"rows": rows, "most": _MOST}


def suite(desk: Desk, request: Request) -> dict[str, Any]:
    """The numbers and results of a run, as they are now."""
    return {"suite": suite_page.view(desk.suite(request.path_params["run"]))}


PAGES = (
    Page("/", "board.html", board, "board"),
    Page("/problems", "problems.html", problem_list, "problems"),
    Page("/problems/{problem}", "problem.html", problem),
    Page("/records", "records.html", record_list, "records"),
    Page("/records/{record}", "record_page.html", record, charts=True),
    Page("/sessions", "sessions.html", session_list, "sessions"),
    Page("/sessions/{session}", "session_now.html", session_),
    Page("/sessions/{session}/attempts/{number:int}", "attempt.html", attempt),
    Page("/suites", "suites.html", suite_list, "suites"),
    Page("/suites/{run}", "suite_now.html", suite),
)


def _record_rows(found: Any) -> list[dict[str, str]]:
    return [
        {
            "id": row.id, "problem": units.one_line(row.problem), "status": row.status,
            "candidate": units.one_line(row.candidate), "device": units.one_line(row.device),
            "made": f"{row.created:%Y-%m-%d %H:%M}",
        }
        for row in found
    ]  # fmt: skip


def _session_rows(found: Any) -> list[dict[str, Any]]:
    return [
        {
            "id": row.id, "problem": units.one_line(row.problem), "state": row.state,
            "used": row.used, "budget": row.budget, "calls": row.calls,
            "made": f"{row.created:%Y-%m-%d %H:%M}",
        }
        for row in found
    ]  # fmt: skip


def _first_words(path: Path) -> str:
    """Of the problem's description, without running its module."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return units.one_line(text.partition("\n\n")[0])


@functools.cache
def _loaded(path: Path) -> Problem:
    return problems.load(path).problem


def _with_nonce(markup: Any, request: Request) -> Any:
    """A chart whose script the browser may run, see `guard`. The text is the plotting library's,
    which writes "<" in names as an escape."""
    tag = f'<script nonce="{request.scope["nonce"]}"'
    return page.markup(str(markup).replace("<script", tag))
