"""`kernelproof serve`, which `cli` makes part of the command line."""

from __future__ import annotations

from typing import Annotated

import typer

from kernelproof.arguments import StoreOpt
from kernelproof.errors import UsageError

_NEEDED = ("starlette", "uvicorn", "sse_starlette", "anyio", "multipart", "python_multipart")


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: a free one.")] = 8000,
    allow_submit: Annotated[
        bool,
        typer.Option("--allow-submit", help="Take candidates: whoever has access runs code here."),
    ] = False,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="KERNELPROOF_TOKEN", help="Needed by whoever asks; without it only on loopback."
        ),
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option(help="A further host name to answer to, as behind a proxy; repeatable."),
    ] = None,
    store: StoreOpt = None,
) -> None:
    """Show board, problems, records and session ladders in a browser, with live updates."""
    try:
        from kernelproof import serve as serving
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _NEEDED:
            raise
        raise UsageError(
            f"the pages need the package {error.name}: pip install 'kernelproof[serve]'"
        ) from error
    access = serving.Access(host, token, allow_submit, tuple(name or ()))
    if allow_submit:
        from kernelproof.worker.client import start_server

        start_server()
    serving.run(access, port, store)
