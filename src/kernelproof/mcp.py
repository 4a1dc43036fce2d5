"""The session tools for an agent, over the Model Context Protocol.

Each tool is one function of `session` or `facts`: its text is short, its structured content is what
the function returned. Calls are carried out one after the other; a long one reports its progress.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import anyio
import anyio.from_thread
import anyio.to_thread
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, TextContent
from pydantic import Field

from kernelproof import __version__, facts, session, session_folder
from kernelproof.errors import KernelproofError, UsageError
from kernelproof.report import facts as facts_text
from kernelproof.report import sessions as sessions_text
from kernelproof.types import (
    CallAnswer,
    MachineFacts,
    NextStep,
    ProblemFacts,
    Rules,
    SessionLog,
    SessionState,
    What,
)

if TYPE_CHECKING:
    from pydantic import BaseModel

_T = TypeVar("_T")
LOOPBACK = ("127.0.0.1", "localhost", "::1")
INSTRUCTIONS = """\
kernelproof judges custom PyTorch kernels. You write a candidate: a Python module with
`class ModelNew(nn.Module)` that has the constructor and forward of the problem's `Model` and
computes the same, faster. Begin with `machine` and `problem`. Then loop: `compile_kernel` (quick:
errors at their lines), `check_kernel` (is it right? why not?), `bench_kernel` (how fast beside
what?), `inspect_kernel` (what holds it back?). Each costs calls of a budget; every answer says how
many are left and what makes sense next. End with `submit_kernel`, once: it costs no call, judges
with fresh secret inputs and closes the session."""

CandidateArg = Annotated[
    str,
    Field(
        description="The text of the Python module with ModelNew (more than one line), or the path "
        "of a .py file or folder on this machine."
    ),
]
FilesArg = Annotated[
    dict[str, str] | None,
    Field(
        description="Only with a text: sources beside it, name -> text, such as "
        '{"kernel.cu": "..."}; the module finds them by Path(__file__).with_name(...).'
    ),
]
NameArg = Annotated[str, Field(description="What to call a candidate that is given as text.")]
SessionArg = Annotated[
    str | None, Field(description="A session's id. Default: the one of the last `problem`.")
]

_CALLS: dict[What, str] = {
    "compile": "Build a candidate only, which is quick: the compiler's errors with the lines "
    "around them; registers, spills and shared memory of its kernels.",
    "check": "Build a candidate and check that it computes the same function, in all cases; says "
    "what is wrong, where, and what it looks like.",
    "bench": "Check a candidate, then time it beside the baselines: median with its interval, "
    "FASTER, SAME, SLOWER or UNCLEAR, and the floor of this machine.",
    "inspect": "What a candidate's kernels take (registers, spills, occupancy, instructions) and "
    "what holds them back. Needs no GPU.",
    "submit": "Once, at the end: judge a candidate for good with fresh secret inputs and all "
    "baselines, and close the session. Costs no call.",
}


class Desk:
    """What a server keeps between calls: the present session.

    Args:
        only: the problem that all is about, whose one session is opened at once; None lets the
            client choose, and opens a session for each problem it asks for.
        joined: a session to go on with, by its id or folder, instead of a new one.
    """

    def __init__(
        self, only: str | None, rules: Rules, store: str | None, joined: str | None = None
    ) -> None:
        if joined is not None:
            joined, store = session_folder.resolved(joined, store)
        self.only, self.rules, self.store = only, rules, store
        self.current: str | None = None
        self.limiter = anyio.CapacityLimiter(1)
        if joined is not None:
            found = session.log(joined, store=store)
            self.only, self.rules = session.problem_of(joined, store=store), found.rules
            self.current = found.session.id
        elif only is not None:
            self.current = session.start(only, rules, store=store).session.id

    def opened(self, name: str | None) -> str:
        """The problem to speak of, with a session on it. Raises UsageError for another than the
        only one, and where nobody has chosen one."""
        if self.only is not None:
            if name not in (None, self.only):
                raise UsageError(
                    f"this server is about the problem {self.only!r} alone, not {name!r}; call "
                    "problem without a name"
                )
            return self.only
        if name is None:
            from kernelproof.problem import known_problems

            raise UsageError(f"name a problem: {', '.join(sorted(known_problems()))}, or a path")
        self.current = session.start(name, self.rules, store=self.store).session.id
        return name

    def chosen(self, asked: str | None) -> str:
        """The session to use. Raises UsageError where there is none, or, with a problem that all is
        about, for another."""
        if self.only is not None and asked not in (None, self.current):
            raise UsageError(f"this server is about the session {self.current} alone")
        if asked is None and self.current is None:
            raise UsageError("no session yet: call problem with a name, which opens one")
        return str(asked or self.current)

    async def work(self, context: Context, function: Callable[..., _T], *given: Any) -> _T:
        """``function(*given, progress=...)`` in a thread, one at a time. What it refuses is an
        error that says what is accepted."""
        steps = 0

        def progress(what: str, done: int, total: int) -> None:
            nonlocal steps
            steps += 1
            anyio.from_thread.run(context.report_progress, float(steps), None, what)

        def called() -> _T:
            return function(*given, progress=progress)

        try:
            return await anyio.to_thread.run_sync(called, limiter=self.limiter)
        except KernelproofError as error:
            raise ToolError(_for_agents(str(error))) from error


def server(
    only: str | None = None,
    rules: Rules | None = None,
    store: str | None = None,
    joined: str | None = None,
) -> MCPServer[Any]:
    """The server with its tools; arguments as of `Desk`.

    Raises:
        UsageError: no such problem or session.
    """
    desk = Desk(only, rules or Rules(), store, joined)
    made: MCPServer[Any] = MCPServer(
        "kernelproof", version=__version__, instructions=INSTRUCTIONS, log_level="WARNING"
    )
    _look_tools(made, desk)
    _work_tools(made, desk)
    return made


def _look_tools(made: MCPServer[Any], desk: Desk) -> None:
    """Tools that cost nothing."""

    @made.tool()
    async def machine(
        context: Context, measure: bool = True
    ) -> Annotated[CallToolResult, MachineFacts]:
        """GPU limits (multiprocessors, shared memory, L2), compilers, TF32 defaults, and measured
        floors: empty launch, bandwidths, arithmetic rates. Costs no call."""
        found = await desk.work(context, facts.machine, measure)
        return _result(facts_text.machine(found), found)

    @made.tool()
    async def problem(
        context: Context,
        name: Annotated[
            str | None, Field(description="A problem's name or path; none where it is given.")
        ] = None,
    ) -> Annotated[CallToolResult, ProblemFacts]:
        """The problem: source of the reference, cases with shapes and dtypes, tolerances,
        baselines, the reference's time. Opens a session on it. Costs no call."""

        def look(progress: Any) -> tuple[ProblemFacts, SessionLog]:
            where = desk.opened(name)
            rules = desk.rules
            found = facts.problem(
                where, device=rules.device, sizes=dict(rules.sizes), shrink_to=rules.shrink_to,
                progress=progress,
            )  # fmt: skip
            return found, session.log(str(desk.current), store=desk.store)

        found, log = await desk.work(context, look)
        return _result(f"{facts_text.problem(found)}\n\n{_state(log)}", found)

    @made.tool()
    async def session_log(
        context: Context, session_id: SessionArg = None, diffs: bool = False
    ) -> Annotated[CallToolResult, SessionLog]:
        """The ladder of attempts: what each changed, verdict, errors, registers and spills, times
        with intervals, the best so far. Costs no call."""

        def look(progress: Any) -> SessionLog:
            return session.log(desk.chosen(session_id), store=desk.store)

        found = await desk.work(context, look)
        return _result(sessions_text.ladder(found, _words, diffs), found)


def _work_tools(made: MCPServer[Any], desk: Desk) -> None:
    """Tools that take a candidate."""

    def add(name: str, what: What, description: str) -> None:
        async def tool(
            context: Context,
            candidate: CandidateArg,
            files: FilesArg = None,
            name: NameArg = "candidate",
            session_id: SessionArg = None,
        ) -> Annotated[CallToolResult, CallAnswer]:
            def call(progress: Any) -> CallAnswer:
                return session.call(
                    desk.chosen(session_id), what, candidate, files=files, name=name,
                    store=desk.store, progress=progress,
                )  # fmt: skip

            found = await desk.work(context, call)
            text = sessions_text.answer(found, _words, full=False)
            # The record is in the store: all samples of all clocks are nothing to read.
            return _result(text, found.model_copy(update={"record": None}))

        made.tool(name=name, description=description)(tool)

    for what, description in _CALLS.items():
        add(f"{what}_kernel", what, description)


def serve(made: MCPServer[Any], transport: str, host: str, port: int) -> None:
    """Run ``made`` until the client goes (stdio) or for good (HTTP).

    Raises:
        UsageError: HTTP on another address than loopback: whoever reaches it runs code here; a
            port that is taken.
    """
    if transport == "stdio":
        made.run("stdio")
        return
    if host not in LOOPBACK:
        raise UsageError(
            f"--host {host}: whoever reaches this server runs code on this machine, so it listens "
            f"on {LOOPBACK[0]} only; from elsewhere use a tunnel, such as "
            f"`ssh -L {port}:{LOOPBACK[0]}:{port} MACHINE`"
        )
    try:
        # The server would tell it in words of its own, and end as if it were a fault of ours.
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        raise UsageError(
            f"cannot listen on {host}, port {port}: {error.strerror}; give another --port"
        ) from error
    made.run("streamable-http", host=host, port=port)


def _result(text: str, value: BaseModel) -> CallToolResult:
    return CallToolResult(
        content=[TextContent(type="text", text=text)],
        structured_content=value.model_dump(mode="json"),
    )


def _words(step: NextStep, state: SessionState) -> str:
    """What the next action is called here."""
    if step.action == "start":
        return "call problem with a name to open another session"
    if step.action == "log":
        return "call session_log"
    return f"call {step.then if step.action == 'edit' else step.action}_kernel"


def _state(log: SessionLog) -> str:
    return f"{sessions_text.state_line(log.session)}\nnext     call check_kernel or compile_kernel"


def _for_agents(text: str) -> str:
    """An error in the words of these tools."""
    for verb in ("log", "start"):
        tool = "session_log" if verb == "log" else "problem with a name"
        text = text.replace(f"`kernelproof session {verb}`", tool)
    return text
