"""Texts of NVIDIA's tools, in the forms that their manuals show."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from kernelproof.errors import CandidateCrash, CandidateTimeout, UnsupportedError
from kernelproof.inspect import tools, watch

MEMCHECK = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at void scale<float, (int)4>(float *, int)+0x70 in /home/me/kernel.cu:5
=========     by thread (32,0,0) in block (0,0,0)
=========     Address 0x7f3b00000400 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f3b00000000 of size 1024 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: main in program.cc:3 [0x1234]
=========
========= Invalid __global__ write of size 4 bytes
=========     at void scale<float, (int)4>(float *, int)+0x70 in /home/me/kernel.cu:5
=========     by thread (33,0,0) in block (0,0,0)
=========
========= Invalid __shared__ read of size 8 bytes
=========     at 0x90 in other.cu:17:gather(double *)
=========     by thread (0,0,0) in block (1,0,0)
=========
========= ERROR SUMMARY: 3 errors
"""
RACECHECK = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at sum(float *)+0x90 in sum.cu:7
=========     and Read access at sum(float *)+0xa0 in sum.cu:9 [124 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
INITCHECK = """========= Uninitialized __global__ memory read of size 4 bytes
=========     at copy+0x40
=========     by thread (0,0,0) in block (0,0,0)
========= ERROR SUMMARY: 1 error
"""
SYNCCHECK = """========= Barrier error detected. Divergent thread(s) in block.
=========     at half(int *)+0x60 in half.cu:4
=========     by thread (0,0,0) in block (0,0,0)
========= ERROR SUMMARY: 1 error
"""


def shapes(text: str, tool: str) -> list[tuple[str, int, str, str]]:
    found = watch.parse_sanitizer(text, tool)
    return [(f.kind, f.count, f.kernel, f.where) for f in found]


def test_equal_findings_of_memcheck_are_counted() -> None:
    assert shapes(MEMCHECK, "memcheck") == [
        ("Invalid __global__ write of size 4 bytes", 2, "scale<float, 4>", "kernel.cu:5"),
        ("Invalid __shared__ read of size 8 bytes", 1, "gather", "other.cu:17"),
    ]


@pytest.mark.parametrize(
    ("text", "tool", "found"),
    [
        (RACECHECK, "racecheck", ("race (error, write)", 1, "sum", "sum.cu:7")),
        (INITCHECK, "initcheck", ("Uninitialized __global__ memory read of size 4 bytes", 1,
                                  "copy", "")),
        (SYNCCHECK, "synccheck", ("Barrier error detected. Divergent thread(s) in block", 1,
                                  "half", "half.cu:4")),
    ],
)  # fmt: skip
def test_findings_of_the_other_tools(text: str, tool: str, found: Any) -> None:
    assert shapes(text, tool) == [found]


def test_a_clean_run_has_none() -> None:
    assert shapes("========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n", "x") == []


def fake(monkeypatch: pytest.MonkeyPatch, text: str = "", error: Exception | None = None) -> None:
    def run(command: list[str], **_: Any) -> Any:
        if error is not None:
            raise error
        return subprocess.CompletedProcess(command, 0, text, "")

    monkeypatch.setattr(tools, "find", lambda tool: f"/opt/{tool}")
    monkeypatch.setattr(watch.subprocess, "run", run)


def test_a_run_without_a_summary_is_no_clean_run(monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, MEMCHECK)
    found, summary = watch.sanitize(Path("request"), "memcheck", 1.0)
    assert (len(found), summary) == (2, "3 errors")
    fake(monkeypatch, "Segmentation fault")
    with pytest.raises(CandidateCrash, match="memcheck ended without a summary"):
        watch.sanitize(Path("request"), "memcheck", 1.0)
    fake(monkeypatch, error=subprocess.TimeoutExpired("x", 1.0))
    with pytest.raises(CandidateTimeout, match="no end within 1 s"):
        watch.sanitize(Path("request"), "memcheck", 1.0)


def test_missing_tools_say_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "find", lambda tool: None)
    with pytest.raises(UnsupportedError, match=r"--sanitize \(racecheck\) needs compute-sanitizer"):
        watch.sanitize(Path("request"), "racecheck", 1.0)
    with pytest.raises(UnsupportedError, match=r"--ncu needs ncu.*Nsight Compute"):
        watch.count(Path("request"), 1.0)


COUNTED = """==PROF== Connected to process 12
==PROF== Profiling "scale": 0%....100% - 3 passes
"ID","Process ID","Kernel Name","Block Size","{}","{}"
"","","","","ns","byte"
"0","12","void scale<float>(float *)","(128, 1, 1)","2,048","1,024"
"1","12","void scale<float>(float *)","(128, 1, 1)","4,096","n/a"
"2","12","other","(32, 1, 1)","512.5","n/a"
""".format(*watch.COUNTERS[:2])


def test_counters_are_of_the_first_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, COUNTED)
    time, read = watch.COUNTERS[:2]
    assert watch.count(Path("request"), 1.0) == {
        "void scale<float>(float *)": {time: 2048.0, read: 1024.0},
        "other": {time: 512.5},
    }


def test_ncu_without_permission_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n")
    with pytest.raises(CandidateCrash, match="ERR_NVGPUCTRPERM"):
        watch.count(Path("request"), 1.0)
