"""Stage 1: load a reference module and name its cases.

A problem is one Python module in KernelBench's form: ``class Model(nn.Module)``, ``get_inputs()``
and optionally ``get_init_inputs()``. Optional names add what that form lacks:

    CASES       name -> keyword arguments for ``get_inputs`` (and, for those that it also takes, for
                ``get_init_inputs``); the first case is the one that is timed
    LARGE       more cases of that kind, past 2^31 elements, which run only when asked for
    BACKWARD    True where a candidate's gradients are part of the proof
    TOLERANCE   {"atol": ..., "rtol": ...} of the compat verdict
    COMPAT      function of the list of ``forward``'s arguments and an output: why the harness that
                the problem comes from would refuse that output, "" where it takes it; replaces
                ``TOLERANCE`` in the compat verdict of the declared cases
    BASELINES   name -> function of ``forward``'s arguments, or a Module class with Model's
                constructor
    MISTAKES    message -> function of ``forward``'s arguments: known slips; a failing candidate
                that agrees with one is told its message
    OWN_KERNELS   True where a candidate may not leave the work to PyTorch or a vendor library
    FLOPS, BYTES  a number, or a function of a case's keyword arguments, for the default case
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import hashlib
import inspect
import math
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from kernelproof import resize
from kernelproof.errors import ProblemError, meant
from kernelproof.importing import import_file
from kernelproof.resize import Size
from kernelproof.seeding import seed_all
from kernelproof.types import Case, Problem

# Weights are few where inputs are many; this keeps 32 MB of weights beside 0.5 MB of inputs.
_WEIGHTS_PER_INPUT = 64
# Indices beyond this do not fit into 32 bits with a sign.
_LARGE_ELEMENTS = 1 << 31
# Inputs from so many bytes on are kept until others are drawn.
_KEPT_BYTES = 256 << 20


@dataclasses.dataclass(frozen=True)
class Reference:
    """A loaded problem: the value of stage 1 together with its live module."""

    problem: Problem
    module: ModuleType
    # Bytes of the inputs that have been made or asked for, by the sizes of their case.
    _sizes: dict[str, int] = dataclasses.field(default_factory=dict, repr=False, compare=False)
    # What was drawn last, if it is large, with how often each tensor had been written to.
    _last: dict[str, tuple[list[Any], list[int]]] = dataclasses.field(
        default_factory=dict, repr=False, compare=False
    )

    def init_args(self, case: Case) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments of ``Model`` for ``case``."""
        make = getattr(self.module, "get_init_inputs", None)
        made = make(**_accepted(make, case.sizes)) if make is not None else []
        # KernelBench allows [args, kwargs] as well as a plain list.
        if (
            isinstance(made, (list, tuple))
            and len(made) == 2
            and isinstance(made[0], (list, tuple))
            and isinstance(made[1], dict)
        ):
            return list(made[0]), dict(made[1])
        if isinstance(made, dict):
            return [], dict(made)
        return list(made), {}

    def inputs(self, case: Case) -> list[Any]:
        """Fresh inputs for ``case``; the caller has seeded torch (see `drawn`)."""
        # A problem may remember what it has made last.
        self._last.clear()
        given = self.module.get_inputs(**case.sizes)
        # A tensor alone could be gone through as well, row by row.
        if not isinstance(given, Iterable) or type(given).__name__ in ("Tensor", "dict", "str"):
            raise ProblemError(
                f"get_inputs of {self.problem.path} returns a {type(given).__name__}; it must "
                "return a list of what forward takes, such as [torch.randn(8)]"
            )
        made = list(given)
        self._sizes[repr(case.sizes)] = resize.tensor_bytes(made)
        return made

    def drawn(self, case: Case, seed: int) -> list[Any]:
        """The inputs of ``case`` under ``seed``. Gigabytes take seconds to draw: large ones that
        were drawn last are not drawn again, unless somebody has written to them since."""
        key = repr((case.sizes, seed))
        last = self._last.get(key)
        if last is not None and last[1] == _versions(last[0]):
            return list(last[0])
        seed_all(seed)
        made = self.inputs(case)
        if self._sizes[repr(case.sizes)] >= _KEPT_BYTES:
            self._last[key] = made, _versions(made)
        return list(made)

    def input_bytes(self, case: Case) -> int:
        """Bytes of the tensors of ``case``."""
        if repr(case.sizes) not in self._sizes:
            import torch

            try:
                # On the meta device tensors have a size and no memory; but its first use imports
                # the decompositions of all operators, which takes a second.
                with torch.device("meta"):
                    self.inputs(case)
            except Exception:
                # What is made from values (an `item`, numpy) cannot be made there, and fails in
                # many ways; what is wrong otherwise fails again.
                self.inputs(case)
        return self._sizes[repr(case.sizes)]

    def held_bytes(self, case: Case) -> int:
        """Bytes of the inputs and outputs of ``case``; where the reference does not run on the meta
        device, the outputs count as much as the inputs."""
        import torch

        try:
            with torch.device("meta"), torch.no_grad():
                args, kwargs = self.init_args(case)
                inputs = self.inputs(case)
                made = [inputs, self.module.Model(*args, **kwargs).eval()(*inputs)]
            return resize.tensor_bytes(made)
        except Exception:
            return 2 * self.input_bytes(case)

    def other_sizes(self) -> list[tuple[dict[str, Size], Reference]]:
        """This problem at other sizes at which it runs, where its sizes are module-level constants
        and it declares no cases, with what is changed; see `resize.variations`. None is larger."""
        if getattr(self.module, "CASES", None):
            return []
        path, sizes = Path(self.problem.path), self.problem.sizes

        def runs(trial: dict[str, Size]) -> bool:
            return _runs(path, sizes | trial)

        found = []
        for trial in resize.variations(path.read_text(), vars(self.module), runs):
            problem = self.problem.model_copy(update={"sizes": sizes | trial})
            found.append((trial, Reference(problem, _import(path, sizes | trial))))
        return found

    def with_case(self, case: Case, sizes: Mapping[str, Any]) -> Reference:
        """This problem with other ``sizes`` in one of its cases, which keeps its name."""
        changed = case.model_copy(update={"sizes": {**case.sizes, **sizes}})
        cases = tuple(changed if one.name == case.name else one for one in self.problem.cases)
        return Reference(self.problem.model_copy(update={"cases": cases}), self.module)

    def large(self) -> list[tuple[Case, dict[str, Size], Reference]]:
        """Cases with a tensor of more than 2^31 elements, with what is changed for them: those in
        ``LARGE``, or for a problem without declared cases one by a larger size constant."""
        declared = getattr(self.module, "LARGE", None)
        if declared or getattr(self.module, "CASES", None):
            cases = _cases(Path(self.problem.path), declared, "LARGE") if declared else ()
            return [(case, {}, self) for case in cases]
        path, sizes = Path(self.problem.path), self.problem.sizes

        def extent(trial: dict[str, Size]) -> tuple[int, int]:
            return _extent(path, sizes | trial)

        trial = resize.grown(path.read_text(), vars(self.module), extent, _LARGE_ELEMENTS)
        if not trial:
            return []
        problem = self.problem.model_copy(update={"sizes": sizes | trial})
        return [(problem.cases[0], trial, Reference(problem, _import(path, sizes | trial)))]

    def count(self, name: str, case: Case) -> float | None:
        """``FLOPS`` or ``BYTES`` of ``case``, or None where the problem gives none."""
        value = getattr(self.module, name, None)
        if value is None:
            return None
        if callable(value):
            return float(value(**_accepted(value, case.sizes)))
        return float(value) if case == self.problem.cases[0] else None


def load(
    where: str | Path, sizes: Mapping[str, Size] | None = None, shrink_to: int | None = None,
    training: bool = False,
) -> Reference:  # fmt: skip
    """Load a problem by path, or by the name of a file in ``problems/`` or of a shipped operator.

    Args:
        sizes: new values for module-level constants of the file, such as ``{"batch_size": 2}``.
        shrink_to: halve the size constants until the inputs have at most so many bytes, and the
            weights at most 64 times as many.
        training: the modules run in training mode; see `types.Problem`.

    Raises:
        ProblemError: there is no such problem, it does not import, it lacks ``Model`` or
            ``get_inputs``, or it has no such constant; the message names the file and what is
            missing.
    """
    path = find(where)
    sizes = dict(sizes or {})
    module = _import(path, sizes)
    if shrink_to is not None:
        sizes = _shrunk(path, module, sizes, shrink_to)
        module = _import(path, sizes)
    model = getattr(module, "Model", None)
    if not inspect.isclass(model):
        raise ProblemError(f"{path} has no class `Model`; a problem needs Model and get_inputs")
    if not callable(getattr(module, "get_inputs", None)):
        raise ProblemError(f"{path} has no function `get_inputs`; a problem needs it")
    tolerance = getattr(module, "TOLERANCE", None) or {}
    problem = Problem(
        name=_name(path),
        path=str(path),
        digest=hashlib.sha256(path.read_bytes()).hexdigest()[:32],
        sizes=sizes,
        training=training,
        cases=_cases(path, getattr(module, "CASES", None), "CASES"),
        atol=tolerance.get("atol"),
        rtol=tolerance.get("rtol"),
        baselines=tuple(getattr(module, "BASELINES", {})),
        doc=inspect.cleandoc(module.__doc__ or ""),
    )
    return Reference(problem, module)


def name_of(path: Path) -> str:
    """The name of the problem in the file ``path``, which is not run if it defines what a problem
    needs. Raises ProblemError as `load` where it does not."""
    try:
        tree = ast.parse(path.read_text())
    except (SyntaxError, ValueError):
        tree = ast.Module([], [])
    defined = {getattr(node, "name", "") for node in tree.body}
    return _name(path) if {"Model", "get_inputs"} <= defined else load(path).problem.name


def find(where: str | Path) -> Path:
    """The file of the problem ``where``. Raises ProblemError that lists what there is."""
    path = Path(where).expanduser()
    if path.is_dir() and (path / "problem.py").is_file():
        path = path / "problem.py"
    if path.is_file():
        return path.resolve()
    known = known_problems()
    if str(where) in known:
        return known[str(where)]
    raise ProblemError(
        f"no problem {str(where)!r}{meant(str(where), known)}: neither a file nor one of "
        f"{', '.join(sorted(known))}"
    )


@functools.cache
def known_problems() -> dict[str, Path]:
    """Name -> file of every problem that comes with kernelproof."""
    package = Path(__file__).parent
    found = {_name(p): p for p in package.glob("ops/[!_]*/problem*.py")}
    # In a wheel the problems lie inside the package, in a checkout beside `src`.
    for folder in (package / "problems", package.parents[1] / "problems"):
        found |= {p.stem: p for p in folder.glob("[!_]*.py")}
    return found


def _name(path: Path) -> str:
    """Of a problem file. ``problem.py`` has the name of its folder; an operator's further problems,
    such as ``problem_forms.py``, have it with what follows."""
    first, _, rest = path.stem.partition("_")
    if first != "problem" or (rest and not (path.parent / "problem.py").is_file()):
        return path.stem
    return f"{path.parent.name}_{rest}" if rest else path.parent.name


def shipped_operators() -> dict[str, Path]:
    """Name -> folder of every shipped operator, found by listing ``ops/``."""
    return {
        p.parent.name: p.parent for p in sorted(Path(__file__).parent.glob("ops/[!_]*/problem.py"))
    }


def _cases(path: Path, declared: Any, name: str) -> tuple[Case, ...]:
    if not declared:
        return (Case(name="default"),)
    if not isinstance(declared, dict) or not all(isinstance(v, dict) for v in declared.values()):
        raise ProblemError(f"{path}: {name} must be a dict of name -> dict of keyword arguments")
    return tuple(Case(name=str(case), sizes=sizes) for case, sizes in declared.items())


def _import(path: Path, sizes: Mapping[str, Size]) -> ModuleType:
    try:
        tree = resize.with_sizes(path.read_text(), sizes) if sizes else None
        return import_file(path, "problem", tree)
    except KeyError as error:
        if error.args and error.args[0] in sizes:
            raise ProblemError(_no_constant(path, str(error.args[0]))) from None
        words = f"{path}{_line(error, path)} does not import: KeyError: {error}"
        raise ProblemError(words) from error
    except Exception as error:
        last = traceback.format_exception_only(type(error), error)[-1].strip()
        raise ProblemError(f"{path}{_line(error, path)} does not import: {last}") from error


def _line(error: Exception, path: Path) -> str:
    """Such as ":12", where the line of the file is known."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f":{error.lineno}" if error.lineno else ""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    return f":{lines[-1]}" if lines else ""


def _no_constant(path: Path, name: str) -> str:
    """The file may not import as it is: its sizes are told where it does."""
    words = f"{path} sets no module-level constant {name!r}"
    with contextlib.suppress(ProblemError):
        sizes = resize.size_constants(path.read_text(), vars(_import(path, {})))
        words += f"; --size takes {', '.join(sizes)}" if sizes else "; it has no sizes to change"
    return words


def _shrunk(path: Path, module: ModuleType, sizes: dict[str, Size], limit: int) -> dict[str, Size]:
    """``sizes`` and the smaller constants with which the default inputs fit in ``limit`` bytes."""
    import torch

    def fits(trial: dict[str, Size]) -> bool:
        made = _import(path, sizes | trial)
        try:
            with torch.device("meta"):
                inputs = resize.tensor_bytes(made.get_inputs())
                model = made.Model(*getattr(made, "get_init_inputs", list)())
        except Exception as error:
            raise ProblemError(
                f"{path} cannot be shrunk: on the meta device, where its sizes are tried, it ends "
                f"with {type(error).__name__}: {error}; leave --shrink out"
            ) from error
        weights = resize.tensor_bytes(list(model.state_dict().values()))
        return inputs <= limit and weights <= _WEIGHTS_PER_INPUT * limit

    def runs(trial: dict[str, Size]) -> bool:
        return _runs(path, sizes | trial)

    return sizes | resize.shrink(path.read_text(), vars(module), fits, runs)


def _runs(path: Path, sizes: dict[str, Size]) -> bool:
    """Whether the reference runs at ``sizes``."""
    return _on_meta(path, sizes) is not None


def _on_meta(path: Path, sizes: dict[str, Size]) -> tuple[Any, Any] | None:
    """Inputs and output of the reference at ``sizes``, None where it does not run. On the meta
    device a forward costs nothing and still refuses shapes that do not fit."""
    import torch

    try:
        made = _import(path, sizes)
        with torch.device("meta"), torch.no_grad():
            inputs = made.get_inputs()
            make = getattr(made, "get_init_inputs", list)
            return inputs, made.Model(*make()).eval()(*inputs)
    except Exception:
        return None


def _versions(inputs: list[Any]) -> list[int]:
    """How often each tensor has been written to."""
    from torch import Tensor
    from torch.utils._pytree import tree_leaves

    return [leaf._version for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)]


def _accepted(function: Callable[..., Any], sizes: dict[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return dict(sizes)
    names = {p.name for p in parameters}
    return {key: value for key, value in sizes.items() if key in names}


def _extent(path: Path, sizes: dict[str, Size]) -> tuple[int, int]:
    """Elements of the largest and bytes of all inputs and outputs; (0, 0) where the reference does
    not run at ``sizes``."""
    ran = _on_meta(path, sizes)
    if ran is None:
        return 0, 0
    from torch import Tensor
    from torch.utils._pytree import tree_leaves

    leaves = [x for x in tree_leaves(ran) if isinstance(x, Tensor)]
    return max((math.prod(x.shape) for x in leaves), default=0), resize.tensor_bytes(leaves)
