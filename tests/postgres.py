"""A PostgreSQL server of one's own, for as long as a test needs it."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path


def binaries() -> Path | None:
    """The folder of the newest server's programs; None where there is none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=_version)
    if found:
        return found[-1].parent
    there = shutil.which("initdb")
    return Path(there).resolve().parent if there else None


def _version(path: Path) -> float:
    return float(path.parents[1].name)


def _user() -> str | None:
    """The server refuses to run as root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


@contextlib.contextmanager
def server(programs: Path) -> Iterator[str]:
    """Start one in a new folder, on a free port of loopback; yields the URL of its database."""
    user = _user()
    # Not below pytest's own folders, which only root may enter.
    folder = Path(tempfile.mkdtemp(prefix="kernelproof-pg-", dir="/tmp"))
    if user is not None:
        shutil.chown(folder, user)

    def run(program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(programs / program), *arguments], user=user, cwd=folder, capture_output=True,
            text=True, check=False, env={**os.environ, "LC_ALL": "C", "HOME": str(folder)},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    data = str(folder / "data")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    try:
        run("initdb", "-D", data, "-U", "tester", "-E", "UTF8", "--auth=trust", "--no-sync")
        options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        run("pg_ctl", "-D", data, "-w", "-l", str(folder / "log"), "-o", options, "start")
        try:
            yield f"postgresql://tester:secret@127.0.0.1:{port}/postgres"
        finally:
            run("pg_ctl", "-D", data, "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
