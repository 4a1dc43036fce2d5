"""The values that stages hand to each other, in the order in which they arise.

    Problem -> Candidate -> Build -> Verdict -> Timing -> Inspection -> Environment -> Record

All are frozen pydantic models made of plain data, so that each can be stored, sent to another
process and compared. Times are in seconds, sizes in bytes. No module but this one and `errors` is
shared between stages.
"""

from __future__ import annotations

from kernelproof.types.base import (
    Clock,
    Comparison,
    Evidence,
    Frozen,
    Level,
    Outcome,
    Progress,
    Real,
    Status,
    silent,
)
from kernelproof.types.inspection import (
    Finding,
    Inspection,
    InstructionMix,
    KernelFacts,
    Launch,
)
from kernelproof.types.ladder import (
    KernelUse,
    LadderResults,
    Medians,
    RungResult,
)
from kernelproof.types.record import (
    Environment,
    Record,
    SweepPoint,
)
from kernelproof.types.timing import (
    Bandwidth,
    Bound,
    Conditions,
    Contestant,
    Floors,
    GpuState,
    Limit,
    Ratio,
    Series,
    Timing,
    Work,
)
from kernelproof.types.verdict import (
    Build,
    Call,
    Candidate,
    Case,
    Check,
    Figures,
    LibraryUse,
    OutputVerdict,
    Problem,
    Run,
    Variant,
    Verdict,
)

__all__ = [
    "Bandwidth",
    "Bound",
    "Build",
    "Call",
    "Candidate",
    "Case",
    "Check",
    "Clock",
    "Comparison",
    "Conditions",
    "Contestant",
    "Environment",
    "Evidence",
    "Figures",
    "Finding",
    "Floors",
    "Frozen",
    "GpuState",
    "Inspection",
    "InstructionMix",
    "KernelFacts",
    "KernelUse",
    "LadderResults",
    "Launch",
    "Level",
    "LibraryUse",
    "Limit",
    "Medians",
    "Outcome",
    "OutputVerdict",
    "Problem",
    "Progress",
    "Ratio",
    "Real",
    "Record",
    "Run",
    "RungResult",
    "Series",
    "Status",
    "SweepPoint",
    "Timing",
    "Variant",
    "Verdict",
    "Work",
    "silent",
]
