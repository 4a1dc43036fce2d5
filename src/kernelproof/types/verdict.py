"""What a check takes and finds: Problem, Candidate, Build, Verdict."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import PlainSerializer, model_validator

from kernelproof.types.base import (
    Evidence,
    Frozen,
    Outcome,
    Real,
    Status,
)

# The check that tells whether kernels run on the stream that torch asks for.
CURRENT_STREAM = "current stream"


def _dump_sizes(sizes: dict[str, Any]) -> dict[str, Any]:
    plain = (bool, int, float, str, list, tuple, dict, type(None))
    return {key: v if isinstance(v, plain) else str(v) for key, v in sizes.items()}


class Case(Frozen):
    """One named set of keyword arguments of the problem's ``get_inputs``.

    In JSON, values that JSON lacks (a ``torch.dtype``) stand as text.
    """

    name: str
    sizes: Annotated[dict[str, Any], PlainSerializer(_dump_sizes, when_used="json")] = {}


class Problem(Frozen):
    """A reference module on disk. ``digest`` is the hash of its source; ``sizes`` are the
    module-level constants that were given other values. ``training``: its modules run in training
    mode, in which batch normalisation takes the statistics of the batch."""

    name: str
    path: str
    digest: str
    sizes: dict[str, int | tuple[int, ...]] = {}
    training: bool = False
    cases: tuple[Case, ...]
    atol: float | None = None
    rtol: float | None = None
    baselines: tuple[str, ...] = ()
    doc: str = ""


class Candidate(Frozen):
    """A candidate on disk. ``digest`` covers every source in ``sources`` (relative names)."""

    name: str
    path: str
    folder: str
    language: str
    digest: str
    sources: tuple[str, ...]

    @property
    def for_gpu(self) -> bool:
        """Whether its own kernels are for a GPU."""
        return self.language.startswith(("cuda", "triton"))


class Build(Frozen):
    """What came of importing and constructing the candidate. ``confinement``: the limits that
    were on its process, one line each; see docs/trust.md. ``alike``: whether its constructor has
    drawn the reference's weights under the same seed, before it was given them."""

    status: Status
    seconds: float
    message: str = ""
    detail: str = ""
    weights: str = ""
    alike: bool | None = None
    log: str = ""
    confinement: tuple[str, ...] = ()


class Figures(Frozen):
    """Error of one output against the float64 oracle.

    ``max_abs``, ``mean_abs``, ``rms``: absolute, in the output's own units. ``max_rel``: largest
    error over the magnitude of its truth. ``max_ulp``: largest error in units in the last place of
    the output's dtype. ``effective_bits``: -log2(rms error / rms truth); 24 is perfect fp32.
    """

    max_abs: Real
    mean_abs: Real
    rms: Real
    max_rel: Real
    max_ulp: Real
    effective_bits: Real


class OutputVerdict(Frozen):
    """Judgement of one output tensor in one run."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    passed: bool
    compat: bool
    figures: Figures | None = None
    reference: Figures | None = None
    ratio_rows: Real = 0.0
    ratio_all: Real = 0.0
    looks_like: str = ""
    wrong: int = 0
    worst_index: tuple[int, ...] = ()
    worst_got: Real = 0.0
    worst_expected: Real = 0.0
    message: str = ""


class Check(Frozen):
    """Outcome of one guard or property; ``note`` informs and never fails a candidate."""

    name: str
    outcome: Outcome
    message: str = ""


class Variant(Frozen):
    """How a run's inputs differ from the case as declared; see docs/verdict.md.

    ``family``: of values, of which ``version`` says how many inputs it left out. ``layout``: of
    their storage. ``sizes``: module-level constants with other values.
    """

    family: str = ""
    version: int = 0
    layout: str = ""
    sizes: dict[str, Any] = {}

    @property
    def label(self) -> str:
        """Such as "large, offset"; "" as declared."""
        sizes = (f"{name}={value}" for name, value in self.sizes.items())
        return ", ".join(word for word in (self.family, self.layout, *sizes) if word)


class Call(Frozen):
    """What a candidate was called with: a declared case, a seed, and what was varied."""

    case: str
    seed: int
    variant: Variant = Variant()

    @property
    def name(self) -> str:
        """Such as "founding" or "founding [large]"."""
        label = self.variant.label
        return f"{self.case} [{label}]" if label else self.case


class Run(Call):
    """One call, and how it was judged."""

    status: Status
    outputs: tuple[OutputVerdict, ...] = ()
    message: str = ""


class Verdict(Frozen):
    """Is it the same function? ``proof`` and ``compat`` are the two verdicts of docs/verdict.md.

    ``smallest``: the sizes of the smallest case found to fail. ``failing``: the call
    that decided, also where it gave no run because it broke. ``fingerprint``: hash of the
    bits of the last run's outputs, by which a reproducer knows them again.
    """

    status: Status
    proof: bool
    compat: bool
    evidence: Evidence
    device: str
    limit: float
    message: str = ""
    detail: str = ""
    runs: tuple[Run, ...] = ()
    checks: tuple[Check, ...] = ()
    looks_like: str = ""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    smallest: Case | None = None
    failing: Call | None = None
    fingerprint: str = ""

    @model_validator(mode="after")
    def _pass_means_proof(self) -> Verdict:
        if (self.status == "pass") != self.proof:
            raise ValueError(f"status {self.status!r} does not go with proof={self.proof}")
        return self


class LibraryUse(Frozen):
    """``share`` of one call's time (0 to 1) in operators of PyTorch and in kernels of vendor
    libraries, their ``names``, and the language in which the candidate ``claims`` to compute."""

    share: float
    names: tuple[str, ...] = ()
    claims: str = ""
