"""What NVIDIA's tools say of a candidate on a GPU: compute-sanitizer and Nsight Compute."""

from __future__ import annotations

import csv
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from kernelproof.errors import CandidateCrash, CandidateTimeout
from kernelproof.inspect import tools
from kernelproof.inspect.assemble import plain_name
from kernelproof.types import Candidate, Finding

SANITIZERS = ("memcheck", "racecheck", "initcheck", "synccheck")
# Counters of one launch: time, bytes of memory, and how busy the parts of the chip were.
COUNTERS = (
    "gpu__time_duration.sum", "dram__bytes_read.sum", "dram__bytes_write.sum",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
)  # fmt: skip
_PREFIX = "========= "
_LOCATION = re.compile(r"\bat (?P<kernel>.+?)\+0x[0-9a-f]+(?: in (?P<file>\S+))?")
_OLD_LOCATION = re.compile(r"at 0x[0-9a-f]+ in (?P<file>\S+?:\d+):(?P<kernel>[^(]+)")
_SUMMARY = re.compile(r"(ERROR|RACECHECK|LEAK|SYNCCHECK) SUMMARY: (?P<text>.*)")
_RACE = re.compile(r"(?P<level>Error|Warning): Race reported between (?P<what>.*)")


def write_request(path: Path, candidate: Candidate, payload: Any) -> None:
    """``payload``: constructor, inputs, seed as `inspect.capture` takes them, on the CPU."""
    made = (candidate.path, candidate.language, payload)
    path.write_bytes(pickle.dumps(made, protocol=5))


def sanitize(request: Path, tool: str, timeout: float) -> tuple[list[Finding], str]:
    """Run a candidate's request under one tool of compute-sanitizer.

    Returns the findings, and the tool's summary.

    Raises:
        UnsupportedError: the tool is missing.
        CandidateCrash: the process ended without the tool's summary.
        CandidateTimeout: it did not end in time.
    """
    found = tools.require("compute-sanitizer", f"--sanitize ({tool})")
    command = [found, "--tool", tool, "--print-limit", "1000"]
    if tool == "memcheck":
        command += ["--report-api-errors", "no"]
    text = _watched([*command, *_target(request)], tool, timeout)
    summary = _SUMMARY.search(text)
    if summary is None:
        raise CandidateCrash(f"{tool} ended without a summary", text[-2000:])
    return parse_sanitizer(text, tool), summary["text"].strip()


def parse_sanitizer(text: str, tool: str) -> list[Finding]:
    """Findings of compute-sanitizer's text, equal ones counted."""
    counts: dict[tuple[str, str, str], int] = {}
    kind, place = "", ("", "")
    for line in [*text.splitlines(), _PREFIX + "end"]:
        if not line.startswith(_PREFIX):
            continue
        body = line.removeprefix(_PREFIX)
        if not body.startswith(" "):
            if kind:
                key = (kind, place[0], place[1])
                counts[key] = counts.get(key, 0) + 1
            kind, place = _kind(body), ("", "")
            place = _place(body) if kind else place
        elif kind and place == ("", ""):
            place = _place(body.strip())
    return [
        Finding(tool=tool, kind=kind, count=count, kernel=kernel, where=where)
        for (kind, kernel, where), count in counts.items()
    ]


def _kind(line: str) -> str:
    race = _RACE.match(line)
    if race is not None:
        first = race["what"].partition(" access")[0]
        return f"race ({race['level'].lower()}, {first.lower()})"
    started = ("Invalid ", "Uninitialized ", "Barrier error", "Misaligned ", "Leaked ", "Fatal UVM",
               "Malloc/Free error", "Unused memory", "Warp-level ", "Out-of-range ")  # fmt: skip
    return line.rstrip(".") if line.startswith(started) else ""


def _place(line: str) -> tuple[str, str]:
    """Kernel and source line of a line that says where."""
    old = _OLD_LOCATION.search(line)
    found = old if old is not None else _LOCATION.search(line)
    if found is None:
        return "", ""
    return plain_name(found["kernel"]), Path(found["file"]).name if found["file"] else ""


def count(request: Path, timeout: float) -> dict[str, dict[str, float]]:
    """Counters of the first launch of each kernel, by its symbol, with ncu.

    Raises:
        UnsupportedError: ncu is missing.
        CandidateCrash: it gave no counters; the message has its own words.
        CandidateTimeout: it did not end in time.
    """
    found = tools.require("ncu", "--ncu")
    # Symbols: the demangler of ncu writes template arguments in a way of its own.
    command = [found, "--csv", "--page", "raw", "--print-units", "base", "--print-kernel-base",
               "mangled", "--target-processes", "all",
               "--metrics", ",".join(COUNTERS)]  # fmt: skip
    text = _watched([*command, *_target(request)], "ncu", timeout)
    counters = parse_counters(text.splitlines())
    if not counters:
        said = [line for line in text.splitlines() if line.startswith("==ERROR==")]
        raise CandidateCrash(f"ncu gave no counters: {' '.join(said) or 'no kernel ran'}", text)
    return counters


def parse_counters(lines: Iterable[str]) -> dict[str, dict[str, float]]:
    """Counters by kernel from ncu's table: a head, a row of units, a row for each launch."""
    rows = list(csv.reader(line for line in lines if line.startswith('"')))
    if len(rows) < 3 or "Kernel Name" not in rows[0]:
        return {}
    head = rows[0]
    found: dict[str, dict[str, float]] = {}
    for row in rows[2:]:
        cells = dict(zip(head, row, strict=False))
        values = {name: _number(cells.get(name, "")) for name in COUNTERS}
        told = {name: value for name, value in values.items() if value is not None}
        found.setdefault(cells["Kernel Name"], told)
    return found


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def _target(request: Path) -> list[str]:
    return [sys.executable, "-m", "kernelproof.worker.watched", str(request)]


def _watched(command: Sequence[str], tool: str, timeout: float) -> str:
    """Everything that the tool and its process print."""
    # Torch's own allocator hands out parts of large blocks, between whose parts no tool sees.
    variables = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    variables["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    try:
        done = subprocess.run(
            list(command), capture_output=True, text=True, errors="replace", check=False,
            timeout=timeout, env=variables,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise CandidateTimeout(f"{tool}: no end within {timeout:g} s") from error
    return done.stdout + done.stderr
