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
from kernelproof.types.board import (
    BoardRow,
    Compared,
    Side,
)
from kernelproof.types.facts import (
    CaseFacts,
    GpuFacts,
    MachineFacts,
    ProblemFacts,
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
from kernelproof.types.proof import (
    Answer,
    Proof,
    Request,
    Rerun,
    Sources,
    TimeChange,
    Verification,
)
from kernelproof.types.record import (
    Environment,
    Record,
    SweepPoint,
)
from kernelproof.types.session import (
    Attempt,
    CallAnswer,
    Diagnostic,
    NextStep,
    Rules,
    SessionLog,
    SessionState,
    Started,
    Summary,
    What,
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
    "Answer",
    "Attempt",
    "Bandwidth",
    "BoardRow",
    "Bound",
    "Build",
    "Call",
    "CallAnswer",
    "Candidate",
    "Case",
    "CaseFacts",
    "Check",
    "Clock",
    "Compared",
    "Comparison",
    "Conditions",
    "Contestant",
    "Diagnostic",
    "Environment",
    "Evidence",
    "Figures",
    "Finding",
    "Floors",
    "Frozen",
    "GpuFacts",
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
    "MachineFacts",
    "Medians",
    "NextStep",
    "Outcome",
    "OutputVerdict",
    "Problem",
    "ProblemFacts",
    "Progress",
    "Proof",
    "Ratio",
    "Real",
    "Record",
    "Request",
    "Rerun",
    "Rules",
    "Run",
    "RungResult",
    "Series",
    "SessionLog",
    "SessionState",
    "Side",
    "Sources",
    "Started",
    "Status",
    "Summary",
    "SweepPoint",
    "TimeChange",
    "Timing",
    "Variant",
    "Verdict",
    "Verification",
    "What",
    "Work",
    "silent",
]
