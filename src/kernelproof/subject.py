"""The candidate in a worker of its own, as the check sees it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelproof import forms
from kernelproof.errors import CandidateCrash, CandidateError, UnsupportedError
from kernelproof.types import Build, Candidate, Verdict
from kernelproof.worker import Worker, landlock
from kernelproof.worker.limits import confine
from kernelproof.worker.probe import without_for_cuda
from kernelproof.worker.traces import Traces

if TYPE_CHECKING:
    from kernelproof.options import Options
    from kernelproof.problem import Reference
    from kernelproof.types import Case


# Languages whose launches can be interpreted without a GPU.
EMULATED = ("cuda-nvrtc", "cuda-inline", "cuda-stable", "triton")
# Not what nvcc builds, which takes up to a minute.
QUICK_TO_COMPILE = ("cuda-nvrtc", "triton")
_HOST_CODE = ("cuda-inline", "cuda-stable")


class CandidateProcess:
    """The candidate in its worker, as the check sees it.

    Args:
        hides: files that it may not read.
        current: the device that is current while it runs on ``device``; "" for the same.
    """

    def __init__(
        self, candidate: Candidate, device: str, options: Options, hides: Sequence[str] = (),
        current: str = "",
    ) -> None:  # fmt: skip
        self.current = current
        self.candidate = candidate
        self.device = device
        self.options = options
        self.hides = hides
        # Kernels for a GPU that is not there: their launches are interpreted on the CPU.
        self.emulated = device == "cpu" and candidate.language in EMULATED
        if self.emulated and candidate.language in _HOST_CODE:
            from kernelproof.emulate.host import compile as host

            # The candidate meets the same error, and is told.
            with contextlib.suppress(CandidateError):
                host.prepare()
        limits = confine(candidate, hides, device != "cpu", options.memory)
        if limits.gpu:
            limits = dataclasses.replace(limits, without=without_for_cuda())
        self.traces = None
        if "files" in limits.without or not landlock.version():
            folder = Path(candidate.folder)
            self.traces = Traces([folder / name for name in candidate.sources])
        self.limits = limits
        self.worker = Worker(candidate.name, limits)
        self.weights = ""
        self.alike: bool | None = None
        self.build_seconds = 0.0
        self.import_seconds = 0.0
        self.built = False
        # Whether the present worker has the candidate: one that took another's place has not.
        self.loaded = False
        # Called after the first construction.
        self.once_built: Callable[[], None] | None = None

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
            current=self.current,
            training=self.options.training,
        )
        answer = forms.read("load", answer, forms.LOAD)
        self.loaded = True
        if not self.built:
            self.import_seconds = answer["import_seconds"]
            self.build_seconds = self.import_seconds + answer["construct_seconds"]
            self.weights, self.alike = answer["weights"], answer["alike"]
            self.built = True
            if self.once_built is not None:
                self.once_built()
        return str(answer["weights"])

    def call(self, inputs: list[Any], seed: int, poison: bool, repeats: int) -> Any:
        answer = self._ask(
            "call",
            timeout=self.options.call_timeout,
            payload=(inputs, seed),
            poison=poison,
            repeats=repeats,
        )
        # A candidate can write to its worker's channel: what comes is taken for what it looks like.
        if not isinstance(answer, list) or len(answer) != repeats:
            raise forms.nonsense("call", answer)
        return [forms.read("call", run, forms.CALL) for run in answer]

    def gradients(self, inputs: list[Any], seed: int) -> list[Any]:
        """Gradients for ``inputs``, the last of which are the cotangents; see `backward`."""
        answer = self._ask(
            "gradients", timeout=self.options.call_timeout, payload=(inputs, seed)
        )  # fmt: skip
        if not isinstance(answer, list):
            raise forms.nonsense("gradients", answer)
        return answer

    def another(self, device: str = "") -> CandidateProcess:
        """The same candidate in a process of its own; on another ``device`` while the present one
        is current, where one is given."""
        current = self.device if device else ""
        on = device or self.device
        return CandidateProcess(self.candidate, on, self.options, self.hides, current)

    def revive(self) -> None:
        """A new worker, where the present one has ended."""
        if not self.worker.alive:
            self.worker = Worker(self.candidate.name, self.limits)
            self.loaded = False

    def renewed(self, payload: tuple[Any, Any, int, Any]) -> Worker:
        """A new worker in place of the present one, in which the candidate is constructed."""
        self.worker.close()
        self.revive()
        self.construct(*payload)
        return self.worker

    def traced(self, inputs: list[Any] | None) -> dict[str, Any]:
        """What the worker's tripwires saw, and a profile of one call where ``inputs`` are given."""
        answer = self._ask("traced", timeout=self.options.call_timeout, payload=inputs)
        told: dict[str, Any] = forms.read("traced", answer, forms.TRACED)
        return told

    def captured(self, gpu: str, multiprocessors: int, payload: Any) -> dict[str, Any]:
        """The kernels of the candidate compiled for ``gpu``, and its launches in one call;
        ``payload`` as of `inspect.capture`."""
        answer = self._ask(
            "capture", timeout=self.options.build_timeout, payload=payload, gpu=gpu,
            multiprocessors=multiprocessors, path=self.candidate.path, kind="candidate",
            attr="ModelNew", device="cpu", language=self.candidate.language, threads=threads(),
        )  # fmt: skip
        told: dict[str, Any] = forms.read("capture", answer, forms.CAPTURED)
        return told

    def kernel_times(self, inputs: list[Any]) -> list[dict[str, Any]]:
        """The kernels of one call of the constructed candidate on the GPU; see `worker.kernels`."""
        answer = self._ask("kernels", timeout=self.options.call_timeout, payload=inputs)
        told: list[dict[str, Any]] = forms.read("kernels", answer, forms.KERNELS)
        return told

    def build_ahead(self, capability: str) -> None:
        """Import the candidate, whose builds are then in the cache; for a GPU of ``capability``,
        such as "9.0", which need not be there. It is not constructed."""
        self._ask(
            "build", timeout=self.options.build_timeout, path=self.candidate.path,
            language=self.candidate.language, capability=capability,
        )  # fmt: skip

    def audited(self, verdict: Verdict) -> Verdict:
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
                alike=self.alike, confinement=confinement,
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
            if not self.candidate.for_gpu or self.device != "cpu" or self.emulated:
                raise
            raise UnsupportedError(
                f"the candidate is {self.candidate.language} code and ran on the CPU, where it "
                f"failed: {error.message}. It needs an NVIDIA GPU; see `kernelproof doctor`",
                error.detail,
            ) from error


def payload_of(reference: Reference, case: Case, seed: int) -> tuple[Any, Any, int, Any]:
    """What a worker needs to construct a module with the weights that the reference has under
    ``seed``: arguments, keywords, seed, weights."""
    from kernelproof.check.reference import construct, state_of

    args, kwargs = reference.init_args(case)
    training = reference.problem.training
    model = construct(reference.module.Model, args, kwargs, seed, "cpu", training)
    return args, kwargs, seed, state_of(model)


def threads() -> int:
    import torch

    return torch.get_num_threads()
