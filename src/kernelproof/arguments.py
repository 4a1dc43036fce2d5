"""Arguments and options that several commands of the command line share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernelproof.bounds import MOST_SECONDS
from kernelproof.errors import UsageError


def _store(url: str | None) -> str | None:
    """What no store can come of is told before the work, and without the database's libraries."""
    if url is None:
        return None
    if "://" not in url:
        raise UsageError(
            f"--store {url!r} is no URL of a database: give one such as "
            "sqlite:///records.sqlite or postgresql://user@host/name"
        )
    kind, _, path = url.partition(":///")
    folder = Path(path.partition("?")[0]).absolute().parent
    if kind == "sqlite" and path and not folder.is_dir():
        raise UsageError(f"--store {url!r}: there is no folder {folder}")
    return url


ProblemArg = Annotated[
    str, typer.Argument(help="Path of a problem, or the name of one (see `kernelproof doctor`).")
]
CandidateArg = Annotated[
    str,
    typer.Argument(
        help="A .py file or folder with ModelNew; for a shipped operator also cpu, cuda."
    ),
]
JsonOpt = Annotated[bool, typer.Option("--json", help="Print one JSON object only.")]
DeviceOpt = Annotated[
    str | None,
    typer.Option(help="cpu, cuda or cuda:<index>. Default: what the candidate needs."),
]
PlaceOpt = Annotated[
    str | None,
    typer.Option("--device", help="cpu, cuda or cuda:<index>. Default: the GPU, else the CPU."),
]
SeedsOpt = Annotated[int, typer.Option(min=1, help="Random inputs for the first case.")]
SeedOpt = Annotated[int | None, typer.Option(help="Replay: derive all seeds from this number.")]
CaseOpt = Annotated[list[str] | None, typer.Option("--case", help="Only this case; repeatable.")]
BytesOpt = Annotated[
    int | None, typer.Option("--max-bytes", min=0, help="Leave out cases with larger inputs.")
]
SizeOpt = Annotated[
    list[str] | None,
    typer.Option("--size", help="NAME=VALUE for a module-level constant; repeatable."),
]
ShrinkOpt = Annotated[
    int | None,
    typer.Option(min=1, help="Halve the problem's sizes until its inputs fit in these bytes."),
]
QuickOpt = Annotated[
    bool, typer.Option("--quick", help="Declared cases and one seed only: while you edit.")
]
ThoroughOpt = Annotated[
    bool, typer.Option("--thorough", help="Families and layouts of every case; other sizes.")
]
LargeOpt = Annotated[
    bool, typer.Option("--large", help="Also cases past 2^31 elements; needs tens of GB.")
]
TrainingOpt = Annotated[
    bool,
    typer.Option(
        "--training",
        help="Modules in training mode: batch statistics, dropout drawn under the seed.",
    ),
]
TimeoutOpt = Annotated[
    float, typer.Option(min=0.1, max=MOST_SECONDS, help="Seconds that a call may take.")
]
StoreOpt = Annotated[
    str | None,
    typer.Option(
        callback=_store, help="Record store (SQLAlchemy URL). Default: the data folder's."
    ),
]
SweepOpt = Annotated[
    str | None,
    typer.Option(
        help="NAME=FROM:TO:xFACTOR or NAME=FROM:TO:+STEP: time at each of these sizes. The first "
        "is checked in full, the others quickly; beside eager alone unless --baseline is given."
    ),
]
BaselineOpt = Annotated[
    list[str] | None,
    typer.Option("--baseline", help="Only this baseline; repeatable. Default: all that are usual."),
]
VsOpt = Annotated[
    list[str] | None,
    typer.Option(
        "--vs",
        help="Another candidate to time beside, or `best`: that of the best record; repeatable.",
    ),
]
RoundsOpt = Annotated[int, typer.Option(min=2, help="Interleaved rounds at most.")]
SecondsOpt = Annotated[
    float, typer.Option(min=0.0, max=MOST_SECONDS, help="No new round after this time.")
]
GpuOpt = Annotated[
    str | None,
    typer.Option(
        help="Such as h200, a100, b200 or sm_90. Default: the one of this machine, else h200."
    ),
]
ProblemOpt = Annotated[
    str | None,
    typer.Option(
        help="Whose inputs to call the candidate with. Default: the one that its name begins with."
    ),
]
LaunchOpt = Annotated[
    list[str] | None,
    typer.Option(
        help="KERNEL<<<GRID, BLOCK>>>(ARGUMENTS) of a file's kernel, repeatable. Default: its "
        "comments `// launch: ...`."
    ),
]
KernelOpt = Annotated[
    list[str] | None,
    typer.Option(help="Instance of a template in a .cu file, such as 'scale<float>'; repeatable."),
]
InspectedArg = Annotated[
    str,
    typer.Argument(
        help="A .py file or folder with ModelNew, a shipped operator's kernel such as mla_kv/cuda, "
        "or a .cu, .ptx or .cubin file."
    ),
]
OneCaseOpt = Annotated[str | None, typer.Option("--case", help="Default: the problem's first.")]
CompilerOpt = Annotated[str, typer.Option(help="nvcc or nvrtc, for a .cu file.")]
RecordOpt = Annotated[
    Path | None,
    typer.Option(help="JSON of a `bench` of the candidate: its times, FLOPs and bytes."),
]
SanitizeOpt = Annotated[
    bool,
    typer.Option(
        "--sanitize",
        help="On a GPU: also run compute-sanitizer (memcheck, racecheck, initcheck, synccheck), "
        "outside of a worker's confinement.",
    ),
]
NcuOpt = Annotated[
    bool,
    typer.Option(
        "--ncu",
        help="On a GPU: also count with Nsight Compute, outside of a worker's confinement.",
    ),
]
