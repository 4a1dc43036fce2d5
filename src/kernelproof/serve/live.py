"""A running session as it goes on: server-sent events with the ladder as HTML."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import anyio.to_thread
from sse_starlette import EventSourceResponse
from starlette.requests import Request
from starlette.responses import Response

from kernelproof.report import page
from kernelproof.serve import pages
from kernelproof.serve.desk import Desk

# How often the store is asked, in seconds.
_EVERY = 0.5


async def events(desk: Desk, request: Request) -> Response:
    """The ladder now, and again whenever the session has changed, until it is closed."""
    one = await anyio.to_thread.run_sync(desk.row, request.path_params["session"])
    return EventSourceResponse(_told(desk, one.id), ping=15)


async def _told(desk: Desk, identity: str) -> AsyncIterator[dict[str, str]]:
    last = None
    while True:
        now = await anyio.to_thread.run_sync(desk.stamp, identity)
        if now != last:
            last = now
            yield {"data": await anyio.to_thread.run_sync(_ladder, desk, identity)}
        if now[0] == "closed":
            yield {"event": "end", "data": "closed"}
            return
        await anyio.sleep(_EVERY)


def _ladder(desk: Desk, identity: str) -> str:
    from kernelproof.serve.app import TEMPLATES

    values = pages.ladder(desk, identity)
    return str(page.template("ladder_now.html", TEMPLATES).render(link="", **values))
