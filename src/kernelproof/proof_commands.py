"""`kernelproof prove` and `kernelproof verify`, which `cli` makes part of the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from kernelproof import failures
from kernelproof.arguments import (
    BaselineOpt,
    BytesOpt,
    CandidateArg,
    CaseOpt,
    DeviceOpt,
    JsonOpt,
    ProblemArg,
    QuickOpt,
    RoundsOpt,
    SecondsOpt,
    SeedOpt,
    SeedsOpt,
    ShrinkOpt,
    SizeOpt,
    StoreOpt,
    ThoroughOpt,
    TimeoutOpt,
    TrainingOpt,
)
from kernelproof.commands import level_of, print_json, sizes_of
from kernelproof.errors import UsageError
from kernelproof.progress import Shown


def prove(
    problem: ProblemArg,
    candidate: CandidateArg,
    output: Annotated[Path, typer.Option("--output", "-o", help="The proof, a JSON file.")],
    json_: JsonOpt = False,
    device: DeviceOpt = None,
    seeds: SeedsOpt = 5,
    seed: SeedOpt = None,
    case: CaseOpt = None,
    quick: QuickOpt = False,
    thorough: ThoroughOpt = False,
    baseline: BaselineOpt = None,
    rounds: RoundsOpt = 160,
    seconds: SecondsOpt = 10.0,
    max_bytes: BytesOpt = None,
    size: SizeOpt = None,
    shrink: ShrinkOpt = None,
    training: TrainingOpt = False,
    timeout: TimeoutOpt = 60.0,
    store: StoreOpt = None,
) -> None:
    """Check, time and inspect a candidate, and write it all with the sources into one file that
    `verify` judges again somewhere else. A candidate that fails has a proof, too."""
    from kernelproof import outfile
    from kernelproof.worker.client import start_server

    outfile.check(output)
    start_server()
    from kernelproof import proof_file, proving
    from kernelproof.report import detail
    from kernelproof.store import Store
    from kernelproof.types import Request

    request = Request(
        level=level_of(quick, thorough), seeds=seeds, cases=tuple(case or ()),
        max_bytes=max_bytes, sizes=sizes_of(size), shrink_to=shrink,
        baselines=None if baseline is None else tuple(baseline), call_timeout=timeout,
        rounds=rounds, seconds=seconds, training=training,
    )  # fmt: skip
    with Shown() as progress:
        made = proving.prove(
            problem, candidate, request=request, device=device, seed=seed, progress=progress
        )
    lost = failures.kept(lambda: Store(store).add(made.record))
    try:
        written = proof_file.write(made, output)
    except UsageError:
        # What was found out is not lost with the file.
        print(detail(made.record), file=sys.stderr)
        raise
    if json_:
        print_json({"status": made.record.status, "file": str(output), "sha256": written})
    else:
        print(detail(made.record))
        print(f"\nproof    {output}, sha256 {written}\nagain    kernelproof verify {output}")
    raise typer.Exit(lost or (0 if made.record.status == "pass" else 1))


def verify(
    file: Annotated[Path, typer.Argument(help="A proof that `kernelproof prove` wrote.")],
    json_: JsonOpt = False,
    fresh: Annotated[
        bool, typer.Option(help="Judge again with fresh, secret seeds as well.")
    ] = True,
    time: Annotated[bool, typer.Option(help="Time it again, where the device is the same.")] = True,
) -> None:
    """Judge a proof's candidate here again: SAME VERDICT, or what differs. Runs the code in the
    file, in the same confinement as any candidate's; the problem's code is trusted."""
    from kernelproof.worker.client import start_server

    start_server()
    from kernelproof import proving
    from kernelproof.report.proofs import verification

    with Shown() as progress:
        found = proving.verify(file, fresh=fresh, timed=time, progress=progress)
    print(verification(found)) if not json_ else print_json(json.loads(found.model_dump_json()))
    raise typer.Exit(0 if found.answer == "SAME VERDICT" else 1)
