"""Listen, and serve until interrupted."""

from __future__ import annotations

import socket
import sys

import uvicorn

from kernelproof.errors import UsageError
from kernelproof.serve.app import application
from kernelproof.serve.guard import Access

_SECONDS = 2  # for open answers, when the server ends


def run(access: Access, port: int, store: str | None) -> None:
    """Serve ``store`` on ``access.host`` and ``port`` (0: a free one), and say where on stderr.

    Raises:
        UsageError: the address cannot be listened on.
    """
    listening = _listen(access.host, port)
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    with_token = "?token=TOKEN" if access.token is not None else ""
    doing = "candidates are taken" if access.allow_submit else "read-only"
    print(
        f"kernelproof: http://{shown}:{port}/{with_token} ({doing}); Ctrl-C ends it",
        file=sys.stderr, flush=True,
    )  # fmt: skip
    config = uvicorn.Config(
        application(store, access), log_level="warning", server_header=False, lifespan="on",
        timeout_graceful_shutdown=_SECONDS, access_log=False,
    )  # fmt: skip
    uvicorn.Server(config).run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family)
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"cannot listen on {host}, port {port}: {error}; --port 0 takes a free port"
        ) from error
