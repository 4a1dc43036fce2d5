"""Do sessions in parallel lose or mix anything? Eight of them, twenty calls each, by commands.

    python benchmarks/parallel_sessions.py -o FILE [--store URL] [--sessions 8] [--calls 20]

Each session is driven by a process of its own, which runs `kernelproof session ...` as a user does,
with another candidate in every call (right and wrong ones in turn), and submits in the end. Then
the store is compared with what each call printed: every attempt, its status, its candidate, its
record. Without --store that is SQLite in an empty data folder. Results of another database that
FILE holds stay in it. Exit code 1 where anything is lost or mixed.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from kernelproof import environment, session
from kernelproof.store import Store

PROBLEM = "axpby"
RULES = ("--level", "quick", "--submit-level", "quick", "--seeds", "1", "--device", "cpu",
         "--baseline", "eager", "--rounds", "3", "--seconds", "0.2")  # fmt: skip
BODY = """import torch
import torch.nn as nn


class ModelNew(nn.Module):  # session {number}, call {call}
    def forward(self, x, z, alpha, beta, valid):
        y = x.clone()
        scaled = alpha * x[:, :valid].float() + beta * z[:, :valid].float()
        y[:, :valid] = (scaled + {slip}).to(x.dtype)
        return y
"""


def command(folder: Path, store: str | None, *words: str) -> dict[str, Any]:
    given = [sys.executable, "-m", "kernelproof", "session", *words, "--json"]
    given += ["--store", store] if store else []
    env = {**os.environ, "KERNELPROOF_HOME": str(folder / "home")}
    done = subprocess.run(given, capture_output=True, text=True, check=False, env=env, cwd=folder)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{words}: {done.stderr[-2000:]}")
    return dict(json.loads(done.stdout))


def play(folder: Path, store: str | None, number: int, calls: int) -> tuple[str, list[Any]]:
    """One session; its id, and what each call printed: number, status, digest, record."""
    made = command(folder, store, "start", PROBLEM, "--budget", str(calls), *RULES)
    one, told = str(made["session"]["id"]), []
    for call in range(calls + 1):
        path = folder / f"session_{number}.py"
        slip = "0.0" if call % 2 == 0 else "1.0"
        path.write_text(BODY.format(number=number, call=call, slip=slip))
        what = "check" if call < calls else "submit"
        found = command(folder, store, what, one, path.name)
        assert found["status"] == ("pass" if call % 2 == 0 else "wrong"), found["message"]
        told.append([found[k] for k in ("number", "status", "digest", "record_id")])
    return one, told


def differences(store: str, one: str, told: list[Any]) -> list[str]:
    """How the store's session ``one`` differs from what its calls printed."""
    log = session.log(one, store=store)
    kept = [[a.number, a.status, a.digest, a.record_id] for a in log.attempts]
    found = [] if kept == told else [f"{one}: {kept} instead of {told}"]
    if (log.session.state, log.session.left) != ("closed", 0):
        found.append(f"{one}: {log.session.state}, {log.session.left} calls left")
    records = Store(store)
    for number, status, digest, record in told:
        got = records.get(record)
        if (got.status, got.candidate.digest) != (status, digest):
            found.append(f"{one}: the record of call {number} is another's")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--store", default=None, help="Default: SQLite in an empty data folder.")
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--calls", type=int, default=20)
    given = parser.parse_args()
    began = time.time()
    with (
        tempfile.TemporaryDirectory() as name,
        concurrent.futures.ThreadPoolExecutor(given.sessions) as pool,
    ):
        folder = Path(name)
        waiting = [
            pool.submit(play, folder, given.store, n, given.calls) for n in range(given.sessions)
        ]
        played = [one.result() for one in waiting]
        seconds = time.time() - began
        store = given.store or f"sqlite:///{folder / 'home' / 'records.sqlite'}"
        wrong = [words for one, told in played for words in differences(store, one, told)]
        records = {told[3] for _, calls in played for told in calls}
    machine = environment.capture()
    calls = sum(len(told) for _, told in played)
    database = store.partition(":")[0].partition("+")[0]
    body = json.loads(given.output.read_text()) if given.output.is_file() else {}
    body[database] = {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "environment": json.loads(machine.model_dump_json()), "sessions": given.sessions,
        "calls": calls, "records": len(records), "seconds": seconds, "differences": wrong,
    }  # fmt: skip
    given.output.write_text(json.dumps(body, indent=1) + "\n")
    print(f"{database}: {given.sessions} sessions, {calls} calls, {len(records)} records in "
          f"{seconds:.0f} s; {len(wrong)} differences")  # fmt: skip
    print("\n".join(wrong))
    return 1 if wrong or len(records) != calls else 0


if __name__ == "__main__":
    sys.exit(main())
