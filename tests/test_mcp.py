"""The MCP server, played by the SDK's own client: over stdio from `machine` to `submit_kernel`."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from kernelproof import mcp, session
from kernelproof.errors import UsageError
from kernelproof.types import CallAnswer, MachineFacts, ProblemFacts, Rules, SessionLog

BODY = """import os, sys, time
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x, z, alpha, beta, valid):
        {}
        y = x.clone()
        y[:, :valid] = (alpha * x[:, :valid].float() + beta * z[:, :valid].float()).to(x.dtype)
        return y
"""
RIGHT = BODY.format("print('noise on stdout', flush=True)")
QUICK = (
    "--level", "quick", "--submit-level", "quick", "--seeds", "1", "--baseline", "eager",
    "--seconds", "0.2", "--rounds", "3", "--timeout", "2",
)  # fmt: skip

RULES = Rules(
    level="quick", seeds=1, baselines=("eager",), timing_seconds=0.2, rounds=3, call_timeout=2.0
)


def play(url: str, options: tuple[str, ...], scene: Callable[[Client], Awaitable[None]]) -> None:
    """Start the server as an agent's host does, and let ``scene`` use it."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "kernelproof", "mcp", *options, "--store", url],
        env=env,
    )

    async def run() -> None:
        async with Client(server, read_timeout_seconds=300) as client:
            await scene(client)

    anyio.run(run)


def inside(made: Any, scene: Callable[[Client], Awaitable[None]]) -> None:
    """Let ``scene`` use a server in this process."""

    async def run() -> None:
        async with Client(made) as client:
            await scene(client)

    anyio.run(run)


async def ask(client: Client, tool: str, **arguments: Any) -> tuple[str, Any]:
    """Text and structured content of a call that is no error."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content[0].text
    return result.content[0].text, result.structured_content


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    return str(result.content[0].text)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 's.sqlite'}"


def test_a_whole_session(url: str) -> None:
    async def scene(client: Client) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {
            "machine", "problem", "compile_kernel", "check_kernel", "bench_kernel",
            "inspect_kernel", "submit_kernel", "session_log",
        }  # fmt: skip
        assert tools["check_kernel"].input_schema["required"] == ["candidate"]
        assert "summary" in tools["bench_kernel"].output_schema["properties"]

        text, body = await ask(client, "machine", measure=False)
        assert MachineFacts.model_validate(body).gpu is None and "TF32" in text
        text, body = await ask(client, "problem")
        facts = ProblemFacts.model_validate(body)
        assert facts.cases[0].inputs[0] == "float32 [40, 120]" and facts.reference_time[0] > 0
        assert "7 of 7 calls left" in text and "class Model(nn.Module)" in text
        assert "about the problem 'axpby' alone" in await refused(
            client, "problem", name="rms_norm"
        )

        text, body = await ask(
            client, "compile_kernel", candidate=RIGHT.replace("clone()", "clone(")
        )
        assert body["status"] == "compile_error"
        assert any(line[0] == ">" for line in body["diagnostics"][0]["context"])
        assert text.endswith("call compile_kernel") and "6 of 7 calls left" in text
        text, body = await ask(client, "check_kernel", candidate=BODY.format("alpha = 1.0"))
        assert body["status"] == "wrong" and "check 2: wrong" in text
        for how, status in (("time.sleep(99)", "timeout"), ("os.abort()", "crash")):
            text, body = await ask(client, "check_kernel", candidate=BODY.format(how))
            assert body["status"] == status and "call check_kernel" in text
        nan = BODY.format("return x * float('nan')")
        text, body = await ask(client, "check_kernel", candidate=nan, name="broken")
        assert body["status"] == "wrong" and body["candidate"] == "broken"
        told: list[str] = []

        async def progress(done: float, total: float | None, message: str | None) -> None:
            told.append(message or "")

        result = await client.call_tool(
            "check_kernel", {"candidate": RIGHT}, progress_callback=progress
        )
        assert result.structured_content["status"] == "pass" and "check default" in told
        text, body = await ask(client, "bench_kernel", candidate=RIGHT)
        answer = CallAnswer.model_validate(body)
        assert answer.summary.time is not None and answer.record is None
        assert "call submit_kernel" in text and "0 of 7 calls left" in text
        assert "has 0 of its 7 calls left" in await refused(client, "check_kernel", candidate=RIGHT)
        text, body = await ask(client, "submit_kernel", candidate=RIGHT)
        assert body["status"] == "pass" and body["session"]["state"] == "closed"
        again = await refused(client, "submit_kernel", candidate=RIGHT)
        assert "is closed: its candidate was submitted; session_log shows" in again
        text, body = await ask(client, "session_log")
        log = SessionLog.model_validate(body)
        assert [a.status for a in log.attempts] == [
            "compile_error", "wrong", "timeout", "crash", "wrong", "pass", "pass", "pass",
        ]  # fmt: skip
        assert "best" in text and log.attempts[-1].what == "submit"

    play(url, ("--problem", "axpby", "--budget", "7", *QUICK), scene)
    assert len(session.sessions(store=url)) == 1


def test_a_client_chooses_its_problem_and_goes_on_later(url: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(RIGHT)

    async def scene(client: Client) -> None:
        assert "no session yet: call problem" in await refused(
            client, "check_kernel", candidate=RIGHT
        )
        assert "name a problem: " in await refused(client, "problem")
        assert "no problem 'none'" in await refused(client, "problem", name="none")
        await ask(client, "problem", name="axpby")
        _, body = await ask(client, "compile_kernel", candidate=str(path))
        assert body["candidate"] == "mine" and body["status"] == "pass"
        assert "no candidate 'gone.py'" in await refused(
            client, "check_kernel", candidate="gone.py"
        )

    inside(mcp.server(None, RULES, url), scene)
    (one,) = session.sessions(store=url)
    assert (one.used, one.state) == (1, "open")

    async def later(client: Client) -> None:
        text, _ = await ask(client, "session_log")
        assert f"session {one.id} on axpby: open, 49 of 50 calls left" in text
        assert "this server is about the session" in await refused(
            client, "session_log", session_id="other"
        )

    inside(mcp.server(None, None, url, joined=one.id), later)


def test_http_is_for_this_machine_alone(url: str) -> None:
    made = mcp.server("axpby", Rules(budget=3), url)
    with pytest.raises(UsageError, match="runs code on this machine, so it listens on 127"):
        mcp.serve(made, "http", "0.0.0.0", 8000)


def test_a_port_that_is_taken_is_a_usage_error(url: str) -> None:
    made = mcp.server("axpby", Rules(budget=3), url)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=rf"cannot listen on 127\.0\.0\.1, port {port}"):
            mcp.serve(made, "http", "127.0.0.1", port)


def test_over_http(url: str) -> None:
    import subprocess

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "kernelproof", "mcp", "--transport", "http"]
    command += ["--problem", "axpby", "--port", str(port), "--store", url, *QUICK]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)

    async def run() -> None:
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None
            await anyio.sleep(0.1)
        async with Client(f"http://127.0.0.1:{port}/mcp", read_timeout_seconds=300) as client:
            _, body = await ask(client, "check_kernel", candidate=RIGHT)
            assert body["status"] == "pass"

    try:
        anyio.run(run)
    finally:
        process.terminate()
        process.wait(20)
