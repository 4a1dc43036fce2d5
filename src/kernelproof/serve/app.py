"""The application: pages, files, live answers, and what is sent in."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio.to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from kernelproof.errors import KernelproofError
from kernelproof.report import html, page, pictures
from kernelproof.serve import live, pages, sending
from kernelproof.serve.calls import Calls
from kernelproof.serve.desk import Desk
from kernelproof.serve.guard import SELF_CONTAINED, Access, Guard

TEMPLATES = Path(__file__).parent / "templates"
_REPORT = Path(page.__file__).parent
_HOUR = {"Cache-Control": "max-age=3600"}


def application(store: str | None, access: Access) -> Starlette:
    """The ASGI application.

    Raises:
        UsageError: the store cannot be opened.
    """
    desk = Desk(store, access, Calls(store))

    @contextlib.asynccontextmanager
    async def life(_: Starlette) -> AsyncIterator[None]:
        yield
        desk.calls.close()

    routes: list[BaseRoute] = [
        Route("/records/{record}.json", functools.partial(_record, desk, _json)),
        Route("/records/{record}/report.html", functools.partial(_record, desk, _report)),
        Route("/sessions/{session}/events", functools.partial(live.events, desk)),
        Route("/sessions", functools.partial(sending.start, desk), methods=["POST"]),
        Route("/sessions/{session}/calls", functools.partial(sending.call, desk), methods=["POST"]),
        Route("/static/{name}", _static),
        *(Route(one.path, _shown(desk, one)) for one in pages.PAGES),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(Guard, access=access)],
        exception_handlers={
            KernelproofError: functools.partial(_refusal, desk),
            HTTPException: functools.partial(_refusal, desk),
        },
        lifespan=life,
    )


def filled(desk: Desk, request: Request, template: str, nav: str, values: dict[str, Any]) -> str:
    """A template of this package with what all of them take."""
    return str(
        page.template(template, TEMPLATES).render(
            nav=[(one.nav, one.path) for one in pages.PAGES if one.nav],
            here=nav, allow_submit=desk.access.allow_submit, nonce=request.scope["nonce"],
            charts=bool(request.scope.get("charts")), library="", link="", **html.HEADS, **values,
        )
    )  # fmt: skip


def _shown(desk: Desk, one: pages.Page) -> Callable[[Request], Any]:
    def made(request: Request) -> str:
        request.scope["charts"] = one.charts
        return filled(desk, request, one.template, one.nav, one.view(desk, request))

    async def endpoint(request: Request) -> Response:
        return HTMLResponse(await anyio.to_thread.run_sync(made, request))

    return endpoint


async def _record(desk: Desk, make: Callable[[Any], Response], request: Request) -> Response:
    def found() -> Response:
        return make(desk.record(request.path_params["record"]))

    return await anyio.to_thread.run_sync(found)


def _json(record: Any) -> Response:
    return Response(record.model_dump_json(indent=1), media_type="application/json")


def _report(record: Any) -> Response:
    """The file that `kernelproof report` writes."""
    return HTMLResponse(html.render([record]), headers={"Content-Security-Policy": SELF_CONTAINED})


async def _static(request: Request) -> Response:
    """One of three files; nothing else of the disk has an address."""
    name = request.path_params["name"]
    if name == "plotly.js":
        return Response(await anyio.to_thread.run_sync(_plotly), headers=_HOUR,
                        media_type="text/javascript")  # fmt: skip
    if name == "live.js":
        return Response((TEMPLATES / name).read_bytes(), media_type="text/javascript")
    if name == "style.css":
        text = (_REPORT / name).read_bytes() + (TEMPLATES / "serve.css").read_bytes()
        return Response(text, media_type="text/css")
    raise HTTPException(404)


@functools.cache
def _plotly() -> bytes:
    return str(pictures.plotly("offline").get_plotlyjs()).encode()


async def _refusal(desk: Desk, request: Request, error: Exception) -> Response:
    """What was refused, in words: a page for a browser, a line for a program."""
    code = error.status_code if isinstance(error, HTTPException) else _code(request)
    text = error.detail if isinstance(error, HTTPException) else str(error)
    if code == 404 and isinstance(error, HTTPException):
        text = f"nothing is at {request.url.path}"
    if "text/html" not in request.headers.get("accept", ""):
        return PlainTextResponse(f"{text}\n", code)
    request.scope["charts"] = False
    shown = filled(desk, request, "refused.html", "", {"code": code, "text": text})
    return HTMLResponse(shown, code)


def _code(request: Request) -> int:
    return 404 if request.method in ("GET", "HEAD") else 400
