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
# For an answer to end by itself when the server ends; less than `run` waits.
_GRACE = 1.0


async def events(desk: Desk, request: Request) -> Response:
    """The ladder now, and again whenever the session has changed, until it is closed."""
    one = await anyio.to_thread.run_sync(desk.row, request.path_params["session"])
    leaving = anyio.Event()
    return EventSourceResponse(
        _told(desk, one.id, leaving), ping=15, shutdown_event=leaving, shutdown_grace_period=_GRACE
    )


async def _told(desk: Desk, identity: str, leaving: anyio.Event) -> AsyncIterator[dict[str, str]]:
    last = None
    while not leaving.is_set():
        now = await anyio.to_thread.run_sync(desk.stamp, identity)
        if now != last:
            last = now
            yield {"data": await anyio.to_thread.run_sync(_ladder, desk, identity)}
        if now[0] == "closed":
            yield {"event": "end", "data": "closed"}
            return
        with anyio.move_on_after(_EVERY):
            await leaving.wait()


def _ladder(desk: Desk, identity: str) -> str:
    from kernelproof.serve.app import TEMPLATES

    values = pages.ladder(desk, identity)
    return str(page.template("ladder_now.html", TEMPLATES).render(link="", **values))
