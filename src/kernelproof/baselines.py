"""What a candidate is timed beside: the names there are, and how a worker makes each of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from kernelproof.errors import UsageError, meant
from kernelproof.problem import Reference
from kernelproof.types import Case

EAGER = "eager"
# Name -> what a worker does to the reference; see `worker.wrapping`. These are fixed.
_WRAPS = {
    EAGER: None,
    "torch.compile": "compile",
    "torch.compile (max-autotune)": "compile max-autotune",
    "CUDA graph of eager": "graph",
}
# Where float32 matrix products decide the time, those of this name have TF32 on, all others off.
_TF32 = " (tf32)"
_WITH_TF32 = (EAGER, "torch.compile")
# By name only: it tries kernels for minutes.
_SLOW = "torch.compile (max-autotune)"
# Only on a GPU.
_GPU = "CUDA graph of eager"


@dataclasses.dataclass(frozen=True)
class Baseline:
    """How a worker makes one: attribute of the problem's module, what is done to it, and whether
    TF32 is on; None leaves torch's setting."""

    name: str
    attr: str
    wrap: str | None = None
    tf32: bool | None = None


def chosen(
    reference: Reference, case: Case, device: str, wanted: Sequence[str] | None
) -> list[Baseline]:
    """Those that are ``wanted``, or all that are usual on ``device``.

    Raises:
        UsageError: there is none of that name.
    """
    cuda = device != "cpu"
    products = cuda and _float32_products(reference, case)
    own = reference.problem.baselines
    usual = [name for name in _WRAPS if name != _SLOW and (cuda or name != _GPU)]
    extra = [f"{name}{_TF32}" for name in _WITH_TF32] if products else []
    # Beside eager, whose other precision it is; not every way to compile twice by default.
    usual[1:1] = extra[:1]
    usual += [name for name in own if name not in usual]
    known = [*usual, *extra[1:], _SLOW]
    names = usual if wanted is None else list(dict.fromkeys(wanted))
    unknown = [name for name in names if name not in known]
    if unknown:
        place = "on a GPU" if cuda else "on a CPU"
        raise UsageError(
            f"{reference.problem.name} has no baseline {unknown[0]!r} {place}"
            f"{meant(unknown[0], known)}; "
            f"--baseline takes {', '.join(map(repr, known))}"
        )
    return [_made(name, own, products) for name in names]


def _made(name: str, own: Sequence[str], products: bool) -> Baseline:
    tf32 = name.endswith(_TF32) if products else None
    if name in own:
        return Baseline(name, f"BASELINES:{name}", None, tf32)
    return Baseline(name, "Model", _WRAPS[name.removesuffix(_TF32)], tf32)


def _float32_products(reference: Reference, case: Case) -> bool:
    """Whether the reference multiplies float32 matrices, or convolves with them."""
    from kernelproof.work import multiplies

    try:
        args, kwargs = reference.init_args(case)
        model = reference.module.Model(*args, **kwargs).train(reference.problem.training)
        return multiplies(model, reference.inputs(case), "fp32")
    except Exception:
        # A reference that does not run is the check's affair, which says what is wrong with it.
        return False
