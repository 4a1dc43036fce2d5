"""Modules in workers of their own, as the check and the timing see them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelproof.errors import CandidateCrash, UnsupportedError
from kernelproof.types import Build, Candidate, Verdict
from kernelproof.worker import Worker, landlock
from kernelproof.worker.limits import confine
from kernelproof.worker.traces import Traces

if TYPE_CHECKING:
    from kernelproof.pipeline import Options


# Languages whose launches can be interpreted without a GPU.
_EMULATED = ("cuda-nvrtc", "triton")


class CandidateProcess:
    """The candidate in its worker, as the check sees it; ``hides`` are files it may not read."""

    def __init__(
        self, candidate: Candidate, device: str, options: Options, hides: Sequence[str] = ()
    ) -> None:
        self.candidate = candidate
        self.device = device
        self.options = options
        # Kernels for a GPU that is not there: their launches are interpreted on the CPU.
        self.emulated = device == "cpu" and candidate.language in _EMULATED
        limits = confine(candidate, hides, device != "cpu", options.memory)
        self.traces = None
        if "files" in limits.without or not landlock.version():
            folder = Path(candidate.folder)
            self.traces = Traces([folder / name for name in candidate.sources])
        self.worker = Worker(candidate.name, limits)
        self.weights = ""
        self.build_seconds = 0.0
        self.built = False

    def __enter__(self) -> CandidateProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.worker.close()

    def construct(self, args: Any, kwargs: Any, seed: int, state: Any) -> str:
        answer = self._ask(
            "load",
            timeout=self.options.build_timeout,
            payload=(args, kwargs, seed, state),
            path=self.candidate.path,
            kind="candidate",
            attr="ModelNew",
            device=self.device,
            language=self.candidate.language,
            threads=threads(),
            emulated=self.emulated,
        )
        if not self.built:
            self.build_seconds = answer["import_seconds"] + answer["construct_seconds"]
            self.weights = answer["weights"]
            self.built = True
        return str(answer["weights"])

    def call(self, inputs: list[Any], seed: int, poison: bool, repeats: int) -> Any:
        return self._ask(
            "call",
            timeout=self.options.call_timeout,
            payload=(inputs, seed),
            poison=poison,
            repeats=repeats,
        )

    def traced(self, verdict: Verdict) -> Verdict:
        """The verdict in view of files that the candidate has changed, where it could."""
        changed = self.traces.changed() if self.traces is not None else []
        if not changed:
            return verdict
        message = f"files that are not the candidate's to change have changed: {changed[0]}"
        message += f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        return verdict.model_copy(
            update={"status": "cheat", "proof": False, "compat": False, "message": message}
        )

    def build(self, verdict: Verdict) -> Build:
        """The build's outcome, once the check is over."""
        confinement = self.worker.protections()
        if self.built:
            return Build(
                status="pass", seconds=self.build_seconds, weights=self.weights,
                confinement=confinement,
            )  # fmt: skip
        return Build(
            status=verdict.status if verdict.status != "pass" else "crash",
            seconds=0.0,
            message=verdict.message,
            detail=verdict.detail,
            confinement=confinement,
        )

    def _ask(self, do: str, **fields: Any) -> Any:
        try:
            return self.worker.ask(do, **fields)
        except CandidateCrash as error:
            gpu_code = self.candidate.language.startswith(("cuda", "triton"))
            if not gpu_code or self.device != "cpu" or self.emulated:
                raise
            raise UnsupportedError(
                f"the candidate is {self.candidate.language} code and ran on the CPU, where it "
                f"failed: {error.message}. It needs an NVIDIA GPU; see `kernelproof doctor`",
                error.detail,
            ) from error


class Timed:
    """A module that its worker has loaded, as the timing sees it; ``timeout`` in seconds."""

    def __init__(self, worker: Worker, inputs: list[Any], timeout: float) -> None:
        self.worker = worker
        self.inputs = inputs
        self.timeout = timeout

    def prepare(self) -> dict[str, Any]:
        answer: dict[str, Any] = self.worker.ask(
            "prepare", timeout=self.timeout, payload=self.inputs, graph=True
        )
        return answer

    def sample(self, clock: str, calls: int) -> list[float]:
        readings: list[float] = self.worker.ask(
            "sample", timeout=self.timeout, clock=clock, calls=calls
        )
        return readings


class TimedModule(Timed):
    """A baseline in a worker of its own, which loads it when the timing prepares it."""

    def __init__(
        self, name: str, path: str, attr: str, device: str, payload: Any, inputs: list[Any],
        options: Options, wrap: str | None = None,
    ) -> None:  # fmt: skip
        timeout = options.compile_timeout if wrap == "compile" else options.call_timeout
        super().__init__(Worker(name), inputs, timeout)
        self.load = {
            "path": path, "kind": "baseline", "attr": attr, "device": device, "wrap": wrap,
            "language": "pytorch", "threads": threads(),
        }  # fmt: skip
        self.payload = payload

    def prepare(self) -> dict[str, Any]:
        self.worker.ask("load", timeout=self.timeout, payload=self.payload, **self.load)
        return super().prepare()


def threads() -> int:
    import torch

    return torch.get_num_threads()
