"""What is sent in: sessions to open, candidates to judge. A form comes back to the session's page;
JSON is answered with JSON once the call is over."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast, get_args

import anyio.to_thread
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from kernelproof import problem as problems
from kernelproof import session
from kernelproof.errors import UsageError
from kernelproof.serve.calls import MOST_BYTES
from kernelproof.serve.desk import Desk
from kernelproof.serve.guard import form_is_ours
from kernelproof.types import Rules, What

_MOST_FILES = 32


class _Start(BaseModel):
    model_config = ConfigDict(extra="forbid")
    problem: str
    budget: int = 50


class _Call(BaseModel):
    model_config = ConfigDict(extra="forbid")
    what: str
    candidate: str
    files: dict[str, str] = {}
    name: str = "candidate"


async def start(desk: Desk, request: Request) -> Response:
    """Open a session on a problem that comes with kernelproof: ``problem``, ``budget``."""
    body, is_json = await _sent(desk, request)
    asked = _valid(_Start, body)
    if asked.problem not in problems.known_problems():
        known = ", ".join(sorted(problems.known_problems()))
        raise UsageError(f"no problem {asked.problem!r} comes with kernelproof; there are {known}")

    def opened() -> Any:
        return session.start(asked.problem, Rules(budget=asked.budget), store=desk.store)

    made = await anyio.to_thread.run_sync(opened)
    if is_json:
        return Response(made.model_dump_json(), 201, media_type="application/json")
    return RedirectResponse(f"/sessions/{made.session.id}", 303)


async def call(desk: Desk, request: Request) -> Response:
    """One call of a session: ``what``, ``candidate`` (text), ``files``, ``name``."""
    one = (await anyio.to_thread.run_sync(desk.row, request.path_params["session"])).id
    body, is_json = await _sent(desk, request)
    asked = _valid(_Call, body)
    if asked.what not in get_args(What):
        raise UsageError(f"no call {asked.what!r}; there are {', '.join(get_args(What))}")
    given = (one, cast(What, asked.what), asked.candidate, asked.files, asked.name)
    if not is_json:
        await anyio.to_thread.run_sync(desk.calls.begin_or_refuse, *given)
        return RedirectResponse(f"/sessions/{one}", 303)
    answer = await asyncio.wrap_future(desk.calls.begin(*given)[0])
    shown = answer.model_copy(update={"record": None})
    return Response(shown.model_dump_json(), media_type="application/json")


async def _sent(desk: Desk, request: Request) -> tuple[dict[str, Any], bool]:
    """Fields of a JSON object or a form, and which of them it was. JSON needs no key: a browser
    sends none to another site without asking there first, and nothing here allows it."""
    text = await _body(request)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        try:
            found = json.loads(text)
        except ValueError as error:
            raise UsageError(f"this is no JSON: {error}") from error
        if not isinstance(found, dict):
            raise UsageError("this JSON is no object with fields")
        return found, True
    async with request.form(max_files=_MOST_FILES, max_part_size=MOST_BYTES) as form:
        fields: dict[str, Any] = {k: v for k, v in form.items() if isinstance(v, str)}
        page, key = str(fields.pop("page", "")), str(fields.pop("key", ""))
        if not form_is_ours(desk.access, page, key):
            raise HTTPException(403, "this form is of another run of the server; load it again")
        files = {}
        for upload in form.getlist("files"):
            if not isinstance(upload, str) and upload.filename:
                files[upload.filename] = _decoded(upload.filename, await upload.read())
        return ({**fields, "files": files} if files else fields), False


async def _body(request: Request) -> bytes:
    """The whole body, which starlette keeps for its own parsers. It ends where it is too long."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MOST_BYTES:
            raise HTTPException(413, f"more than {MOST_BYTES} bytes")
        parts.append(part)
    request._body = b"".join(parts)
    return request._body


def _decoded(name: str, found: bytes) -> str:
    try:
        return found.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is no text in UTF-8") from error


def _valid(kind: Any, body: dict[str, Any]) -> Any:
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        taken = ", ".join(kind.model_fields)
        raise UsageError(f"{field}: {first['msg']}; the fields are {taken}") from error
