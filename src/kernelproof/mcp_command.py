"""`kernelproof mcp`, which `cli` makes part of the command line."""

from __future__ import annotations

from typing import Annotated

import typer

from kernelproof.arguments import (
    BaselineOpt,
    BytesOpt,
    CaseOpt,
    DeviceOpt,
    RoundsOpt,
    SecondsOpt,
    SeedsOpt,
    ShrinkOpt,
    SizeOpt,
    StoreOpt,
    TimeoutOpt,
)
from kernelproof.errors import UsageError
from kernelproof.session_commands import BudgetOpt, CostOpt, LevelOpt, TimeOpt, rules_of

_TRANSPORTS = ("stdio", "http")


def mcp(
    problem: Annotated[
        str | None,
        typer.Option(help="The one problem of this server. Default: what the client asks for."),
    ] = None,
    session: Annotated[
        str | None, typer.Option(help="Go on with this session instead of a new one.")
    ] = None,
    transport: Annotated[str, typer.Option(help="stdio or http (streamable HTTP).")] = "stdio",
    host: Annotated[str, typer.Option(help="Of http: an address of loopback.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Of http; the path is /mcp.")] = 8000,
    budget: BudgetOpt = 50,
    time: TimeOpt = None,
    cost: CostOpt = None,
    device: DeviceOpt = None,
    level: LevelOpt = "default",
    submit_level: LevelOpt = "thorough",
    seeds: SeedsOpt = 5,
    case: CaseOpt = None,
    baseline: BaselineOpt = None,
    rounds: RoundsOpt = 160,
    seconds: SecondsOpt = 10.0,
    max_bytes: BytesOpt = None,
    size: SizeOpt = None,
    shrink: ShrinkOpt = None,
    timeout: TimeoutOpt = 60.0,
    store: StoreOpt = None,
) -> None:
    """Serve the session tools to an agent, over the Model Context Protocol."""
    if transport not in _TRANSPORTS:
        raise UsageError(f"--transport {transport!r}: there are {', '.join(_TRANSPORTS)}")
    if problem is not None and session is not None:
        raise UsageError("--session has a problem already; leave --problem out")
    rules = rules_of(
        budget=budget, time=time, cost=cost, device=device, level=level,
        submit_level=submit_level, seeds=seeds, case=case, max_bytes=max_bytes, size=size,
        shrink=shrink, baseline=baseline, seconds=seconds, rounds=rounds, timeout=timeout,
    )  # fmt: skip
    try:
        from kernelproof import mcp as serving
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("mcp", "anyio"):
            raise
        raise UsageError(
            "the MCP server needs the package mcp: pip install 'kernelproof[mcp]'"
        ) from error
    from kernelproof.worker.client import start_server

    start_server()
    serving.serve(serving.server(problem, rules, store, session), transport, host, port)
