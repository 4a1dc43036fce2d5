"""What holds a kernel back, in the text and in the page."""

from __future__ import annotations

from kernelproof.report import detail, render
from kernelproof.report.inspection import head, lines
from kernelproof.types import Finding, Inspection, KernelFacts, Launch, Record

KERNEL = KernelFacts(
    name="down", symbol="_Z4down", registers=104, spill_stores=8, spill_loads=8,
    shared_bytes=1024, stack_bytes=0, occupancy=0.19, limiter="registers",
    launch=Launch(grid=(96, 1, 1), block=(384, 1, 1), shared=0),
    sentences=("spills registers: 8 bytes",),
)  # fmt: skip
FOUND = Inspection(
    gpu="NVIDIA H200", arch="sm_90a", multiprocessors=132, kernels=(KERNEL,), case="founding",
    sentences=("launch-bound: <half> of it",),
)  # fmt: skip


def test_a_line_about_a_kernel() -> None:
    text = "down: 104 registers, 1.00 KiB of shared memory, 16 B spilled, occupancy 19 %"
    assert head(KERNEL) == f"{text}, limited by registers"


def test_it_is_in_text_and_page() -> None:
    plain = Record.model_validate(
        {
            "id": "0", "created": "2026-01-01T00:00:00Z",
            "problem": {"name": "p", "path": "p.py", "digest": "", "cases": [{"name": "default"}]},
            "candidate": {"name": "c", "path": "c.py", "folder": ".", "language": "cuda-nvrtc",
                          "digest": "", "sources": []},
            "build": {"status": "pass", "seconds": 0.1},
            "verdict": {"status": "pass", "proof": True, "compat": True, "evidence": "device",
                        "device": "cuda", "limit": 12.0},
            "environment": {"kernelproof": "0", "commit": "", "python": "3", "torch": "2",
                            "platform": "", "cpu": "", "cores": 1, "threads": 1, "compiler": ""},
        }
    )  # fmt: skip
    record = plain.model_copy(update={"inspection": FOUND})
    assert "- launch-bound: <half> of it" in detail(record)
    assert "- spills registers: 8 bytes" in detail(record)
    page = render([record])
    assert "<li>launch-bound: &lt;half&gt; of it</li>" in page and "<p>down: 104" in page
    assert list(lines(None)) == [] and "What holds it back" not in render([plain])


def test_findings_of_tools_are_shown() -> None:
    race = Finding(tool="racecheck", kind="race (error, write)", count=12, kernel="down")
    update = {"findings": (race,), "tools": {"racecheck": "1 hazard", "ncu": "1 kernel counted"}}
    counted = KERNEL.model_copy(update={"counters": {"dram__bytes_read.sum": 4096.0}})
    found = FOUND.model_copy(update={**update, "kernels": (counted,)})
    text = "\n".join(lines(found))
    assert "racecheck: race (error, write) in down, 12 times" in text
    assert "racecheck: 1 hazard" in text and "down: dram__bytes_read.sum 4096" in text
    assert "NVIDIA's tools" not in "\n".join(lines(FOUND))
