"""`prove`: everything about one candidate in one file. `verify`: the same again, here."""

from __future__ import annotations

import datetime
import tempfile
from pathlib import Path

from kernelproof import __version__, environment, pipeline, proof_file, recompared, sources
from kernelproof import candidate as candidates
from kernelproof import problem as problems
from kernelproof.errors import CandidateError, UsageError
from kernelproof.subject import EMULATED
from kernelproof.types import (
    Candidate,
    Environment,
    Inspection,
    Progress,
    Proof,
    Record,
    Request,
    Rerun,
    Verification,
    silent,
)


def prove(
    problem: str | Path,
    candidate: str | Path,
    *,
    request: Request | None = None,
    device: str | None = None,
    seed: int | None = None,
    progress: Progress = silent,
) -> Proof:
    """Build, check, time and inspect a candidate, and keep it with all its sources.

    Args:
        device, seed: as of `options.Options`.

    Raises:
        UsageError: as `pipeline.judge`; a candidate of more than 16 MiB, or one that changes while
            it is judged.
    """
    request = request or Request()
    loaded = problems.load(problem, dict(request.sizes), request.shrink_to, request.training)
    found = candidates.load(candidates.find(loaded.problem.path, candidate))
    # Before anything of it runs.
    of_problem, of_candidate = sources.of_problem(loaded.problem), sources.of_candidate(found)
    options = _options(request, device, seed)
    path = loaded.problem.path
    record = pipeline.judge(path, candidate, timed=True, options=options, progress=progress)
    if record.candidate.digest != of_candidate.digest:
        raise UsageError(
            f"{found.path} changed while it was judged; leave it alone and run `prove` again"
        )
    inspection, note = record.inspection, ""
    if inspection is None:
        progress("inspect", 0, 1)
        inspection, note = _inspected(found, path, record)
    return Proof(
        created=datetime.datetime.now(datetime.timezone.utc),
        kernelproof=__version__,
        request=request,
        problem=of_problem,
        candidate=of_candidate,
        record=record.model_copy(update={"inspection": inspection}),
        inspection_note=note,
    )


def verify(
    path: Path, *, fresh: bool = True, timed: bool = True, progress: Progress = silent
) -> Verification:
    """Compare a proof's file with its hash, and judge its candidate here again.

    Args:
        fresh: also with fresh, secret seeds.
        timed: also time it, where the device is the one of the proof.

    Raises:
        UsageError: no such file, or it never was a proof.
    """
    read = proof_file.read(path)
    found = Verification(file=str(path), answer="NOT VERIFIED", sha256=read.sha256)
    if read.edited:
        reasons = (f"the file is not as it was written: {read.edited}",)
        return found.model_copy(update={"answer": "EDITED", "reasons": reasons})
    found = _add(found, verified=("the file is as it was written (hash)",))
    if read.proof is None:
        return _add(found, reasons=(read.unreadable,), unverified=("the verdict",))
    proof = read.proof
    here = environment.capture()
    found = found.model_copy(update={"made": proof.record.environment, "here": here})
    if inner := _inconsistent(proof):
        return _add(found.model_copy(update={"answer": "EDITED"}), reasons=(inner,))
    found = _add(found, verified=("its sources have the digests that it names",))
    found = _add(found, notes=_other_software(proof.record.environment, here))
    with tempfile.TemporaryDirectory(prefix="kernelproof-verify-") as folder:
        return _again(found, proof, Path(folder), fresh, timed, progress)


def _again(
    found: Verification, proof: Proof, folder: Path, fresh: bool, timed: bool, progress: Progress
) -> Verification:
    problem = sources.lay(proof.problem, folder / "problem")
    if proof.candidate.shipped:
        candidate, other = sources.installed(proof.candidate)
        if other:
            reason = f"{other}: install the one that made the proof ({_made_with(proof)})"
            return _add(found, reasons=(reason,), unverified=("the verdict",))
        found = _add(found, verified=("the installed kernel has the sources of the proof",))
    else:
        candidate = sources.lay(proof.candidate, folder / "candidate")
    device, lacking = _device(proof)
    if device is None:
        return _add(found, reasons=(lacking,), unverified=("the verdict",))

    request = proof.request
    if lacking:
        # What takes seconds on a GPU takes hours in an emulator, which by itself does less.
        request = request.model_copy(update={"level": "default"})

    def judge(seed: int | None, words: str, clocked: bool) -> Record:
        progress(f"judge it again with {words}", 0, 1)
        options = _options(request, device, seed)
        return pipeline.judge(problem, candidate, timed=clocked, options=options, progress=progress)

    no_times = recompared.no_times(proof.record, None if lacking else found.here)
    no_times = no_times if timed else "nobody asked for them"
    record = judge(proof.record.seed, "the proof's seeds", not no_times)
    reruns = [recompared.rerun(proof.record, record, "same")]
    if fresh:
        again = judge(None, "fresh seeds", False)
        reruns.append(recompared.rerun(proof.record, again, "fresh"))
    times = recompared.times(proof.record, record) if not no_times else ()
    if not no_times and not times:
        no_times = "it was not timed here, since it did not pass"
    found = found.model_copy(update={"reruns": tuple(reruns), "times": times, "no_times": no_times})
    return _answered(found, reruns, lacking)


def _answered(found: Verification, reruns: list[Rerun], lacking: str) -> Verification:
    words = {"same": "with the proof's seeds", "fresh": "with fresh seeds"}
    differing = [f"{words[one.seeds]}: {text}" for one in reruns for text in one.differences]
    seen = tuple(
        f"the verdict {words[one.seeds]}, {one.evidence}" for one in reruns if not one.differences
    )
    found = _add(found, verified=seen)
    if differing:
        return _add(found.model_copy(update={"answer": "DIFFERENT"}), reasons=tuple(differing))
    if lacking:
        return _add(found, reasons=(lacking,), unverified=("the verdict on a GPU", "times"))
    return found.model_copy(update={"answer": "SAME VERDICT"})


def _device(proof: Proof) -> tuple[str | None, str]:
    """Where to run the candidate; and what this machine lacks for the evidence of the proof."""
    import torch

    verdict, made = proof.record.verdict, proof.record.environment
    if verdict.device == "cpu":
        return "cpu", ""
    if torch.cuda.is_available():
        return "cuda", ""
    text = f"the proof was made on a GPU ({made.gpu}), and torch sees none here"
    if proof.record.candidate.language in EMULATED:
        return "cpu", f"{text}: its kernels were emulated, which is no such evidence"
    return None, f"{text}; {proof.record.candidate.language} code cannot be emulated"


def _options(request: Request, device: str | None, seed: int | None) -> pipeline.Options:
    return pipeline.Options(device=device, seed=seed, **dict(request))


def _inspected(candidate: Candidate, problem: str, record: Record) -> tuple[Inspection | None, str]:
    """A static inspection of the kernels, or why there is none."""
    from kernelproof import inspecting

    if not candidate.for_gpu:
        return None, f"{candidate.language} code has no kernel for a GPU"
    if record.build.status != "pass":
        return None, f"it was not built: {record.build.status}"
    case = record.timing.case if record.timing is not None else None
    wish = inspecting.Wish(problem=problem, case=case)
    try:
        return inspecting.inspect(candidate.path, wish, record.timing, run=False), ""
    except (CandidateError, UsageError) as error:
        return None, str(error)


def _inconsistent(proof: Proof) -> str:
    """How the parts of a proof contradict each other, whose file is as it was written."""
    record = proof.record
    for name, kept, judged, is_problem in (
        ("problem", proof.problem, record.problem.digest, True),
        ("candidate", proof.candidate, record.candidate.digest, False),
    ):
        if kept.digest != judged:
            return f"its verdict is about another {name}: {judged[:12]}, not {kept.digest[:12]}"
        if wrong := sources.fits(kept, is_problem):
            return f"its {name} is not the one of its verdict ({judged[:12]}): {wrong}"
    return ""


def _other_software(made: Environment, here: Environment) -> tuple[str, ...]:
    names = {"kernelproof": "kernelproof", "commit": "commit of kernelproof", "torch": "torch"}
    names |= {"gpu": "GPU", "cpu": "processor", "compiler": "C++ compiler"}
    pairs = ((word, getattr(made, name), getattr(here, name)) for name, word in names.items())
    found = [f"{w}: {a or 'none'} then, {b or 'none'} here" for w, a, b in pairs if a != b]
    return tuple(found)


def _made_with(proof: Proof) -> str:
    commit = proof.record.environment.commit
    return f"kernelproof {proof.kernelproof}" + (f", commit {commit}" if commit else "")


def _add(found: Verification, **more: tuple[str, ...]) -> Verification:
    return found.model_copy(update={k: (*getattr(found, k), *v) for k, v in more.items()})
