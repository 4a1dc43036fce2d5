"""flashinfer-bench and SOL-ExecBench: Definition, Workload, Solution and Trace as JSON.

The forms are those of https://github.com/flashinfer-ai/flashinfer-bench (flashinfer_bench/data at
40e6ca7) and of its relative https://github.com/NVIDIA/SOL-ExecBench (core/data at 8d2237d), which
has one folder a problem, axes by expression, inputs from a function, and a tolerance in each
workload. Neither package is needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kernelproof.errors import UsageError
from kernelproof.suite.formats import made, solution
from kernelproof.suite.model import Item, Suite

NAME = "flashinfer"
# Kinds of operation whose answers are drawn at random and judged by their distribution.
_RANDOM = ("sampling",)
_DTYPES = (
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2",
    "int64", "int32", "int16", "int8", "uint8", "bool",
)  # fmt: skip
# Where neither a workload nor the kind of operation has another: absolute and relative, and the
# share of elements that must keep either (flashinfer_bench/bench/config.py, eval_config.yaml).
_TOLERANCE = {"atol": 1e-2, "rtol": 1e-2, "ratio": 1.0}
_RATIOS = {"moe": 0.95}

_PROBLEM = '''"""{doc}"""

import types
from pathlib import Path

import torch

REFERENCE = {reference}
INPUTS = {inputs}
OUTPUTS = {outputs}
WORKLOADS = {workloads}
RANDOM_INPUTS = {custom!r}
ROOT = {root!r}
CASES = {{
    name: {{"workload": index, **one["axes"]}}
    for index, (name, one) in enumerate(WORKLOADS.items())
}}
_code = types.ModuleType("reference")
exec(compile(REFERENCE, "reference.py", "exec"), vars(_code))
# What was drawn last, for its tolerance.
_drawn = 0


{shapes}

class Model(torch.nn.Module):
    def forward(self, *inputs):
        return _named(_code.run(*inputs), OUTPUTS, inputs)


def get_inputs(workload=0, **given):
    global _drawn
    _drawn = workload
    one = list(WORKLOADS.values())[workload]
    axes = _axes(given)
    sources = one["inputs"]
    if RANDOM_INPUTS and any(s["type"] == "custom" for s in sources.values()):
        scalars = {{k: s["value"] for k, s in sources.items() if s["type"] == "scalar"}}
        made = getattr(_code, RANDOM_INPUTS)({{**axes, **scalars}}, torch.device("cpu"))
        return [made[name] if name in made else scalars[name] for name in INPUTS]
    return [_input(name, spec, sources.get(name, {{}}), axes) for name, spec in INPUTS.items()]


def _input(name, spec, source, axes):
    kind = source.get("type", "random")
    if kind == "scalar":
        return source["value"]
    dtype = getattr(torch, spec["dtype"])
    if kind == "safetensors":
        from safetensors.torch import load_file

        found = load_file(str(Path(ROOT) / source["path"]))[source["tensor_key"]]
        return found.to(dtype).contiguous()
    shape = () if spec["shape"] is None else [axes[axis] for axis in spec["shape"]]
    value = _random(shape, dtype)
    return value.item() if spec["shape"] is None else value


def _random(shape, dtype):
    if dtype == torch.bool:
        return torch.rand(shape) < 0.5
    if dtype.is_floating_point:
        values = torch.randn(shape)
        return values.clamp(-2, 2).to(dtype) if dtype.itemsize == 1 else values.to(dtype)
    top = 128 if dtype.itemsize == 1 else 1024
    return torch.randint(0 if dtype == torch.uint8 else -top, top, shape).to(dtype)


def COMPAT(inputs, output):
    limits = list(WORKLOADS.values())[_drawn]["tolerance"]
    wanted = _leaves(_named(_code.run(*inputs), OUTPUTS, inputs))
    got = _leaves(output)
    if len(got) != len(wanted):
        return f"RUNTIME_ERROR: {{len(got)}} outputs, {{len(wanted)}} are defined"
    for name, one, other in zip(OUTPUTS, got, wanted):
        words = _refused(one, other, **limits)
        if words:
            return f"{{words}} ({{name}})"
    return ""


def _leaves(value):
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _refused(got, wanted, atol, rtol, ratio, both, cap=None, negative_inf=False):
    if tuple(got.shape) != tuple(wanted.shape):
        return f"INCORRECT_SHAPE: {{tuple(got.shape)}}, expected {{tuple(wanted.shape)}}"
    if got.dtype != wanted.dtype:
        return f"INCORRECT_DTYPE: {{got.dtype}}, expected {{wanted.dtype}}"
    got, wanted = got.float(), wanted.float()
    finite = torch.isfinite(got)
    if negative_inf:
        finite |= (got == -torch.inf) & (wanted == -torch.inf)
    if not bool(finite.all()):
        return "INCORRECT_NUMERICAL: NaN or infinity"
    error, size = (got - wanted).abs().nan_to_num(0.0), wanted.abs().nan_to_num(0.0)
    if both:
        off = (error > atol) & (error > rtol * (size + 1e-8))
    else:
        off = error > atol + rtol * size
        if bool((wanted != 0).any()) and not bool((got != 0).any()):
            return "INCORRECT_NUMERICAL: all zeros"
    matched = 1.0 - float(off.float().mean()) if off.numel() else 1.0
    if not matched >= ratio:
        return f"INCORRECT_NUMERICAL: {{matched:.2%}} of the elements match, {{ratio:.2%}} must"
    if cap is not None and float(error.max()) > cap:
        return f"INCORRECT_NUMERICAL: an error of {{float(error.max()):g}} is beyond {{cap:g}}"
    return ""
'''


def is_one(path: Path) -> bool:
    """Whether ``path`` is a dataset of flashinfer-bench or has problems of SOL-ExecBench."""
    return bool(_definitions(path))


def load(path: Path, candidates: Path | None = None, itself: bool = False) -> Suite:
    """The definitions below ``path`` with their workloads as cases, and with solutions.

    Args:
        candidates: a solution's file or a folder of them; those of the dataset when None.
        itself: the solution of each definition is its reference.

    Raises:
        UsageError: no definition there, one that is not readable, or no solution of any.
    """
    found = _definitions(path)
    if not found:
        raise UsageError(
            f"{path} holds neither definitions/**/*.json nor a definition.json: give a dataset of "
            "flashinfer-bench, or a folder of SOL-ExecBench"
        )
    solutions = solution.find(candidates if candidates is not None else path)
    several = len(found) > 1
    published = _published(path)
    items: list[Item] = []
    for file in found:
        definition = _read(file)
        name = str(_field(definition, "name", file))
        workloads = _workloads(path, file, name)
        problem = _problem(path, definition, workloads, file)
        alone = file.name == "definition.json"
        # Folders of SOL-ExecBench hold their own solutions; two may be of one definition.
        there = solution.find(file.parent) if alone and candidates is None else solutions
        given = {"reference": _itself(definition)} if itself else there.get(name, {})
        place = str(file.parent.relative_to(path)) if alone and several else name
        compat: dict[str, Any] = {"format": NAME, "definition": name, "workloads": workloads}
        category = str(definition.get("op_type") or "")
        for sample, (title, one) in enumerate(given.items()):
            own = {**compat, "solution": title}
            if (name, title) in published:
                own["published"] = published[name, title]
            full = place if len(given) == 1 else f"{place}/{title}"
            candidate = solution.candidate(one, definition)
            items.append(Item(problem, candidate, full, category, sample, {"compat": own}))
        if not given:
            items.append(Item(problem, None, place, category, 0, {"compat": compat}))
    if candidates is not None and all(item.candidate is None for item in items):
        raise UsageError(
            f"{candidates} holds no solution of {', '.join(i.name for i in items)}: a JSON file "
            "with `definition`, `spec` and `sources`"
        )
    return Suite(path.resolve().name, NAME, items)


def case_name(workload: Mapping[str, Any]) -> str:
    """The name of a workload's case: its axes, and the begin of its identity."""
    axes = ",".join(f"{axis}={value}" for axis, value in workload["axes"].items())
    return f"{axes} {str(workload['uuid'])[:8]}".strip()


def _definitions(path: Path) -> list[Path]:
    if not path.is_dir():
        return []
    inside = sorted((path / "definitions").rglob("*.json"))
    return inside or sorted(p for p in path.rglob("definition.json") if ".git" not in p.parts)


def _problem(
    root: Path, definition: dict[str, Any], workloads: list[dict[str, Any]], file: Path
) -> Path:
    name = str(definition["name"])
    why = _why_not(definition, workloads)
    if why:
        return made.unsupported(NAME, name, why)
    alone = file.name == "definition.json"
    doc = str(definition.get("description") or name).strip()
    text = _PROBLEM.format(
        doc=doc.replace("\\", "\\\\").replace('"""', "'''"),
        reference=made.literal(definition["reference"]),
        inputs=made.literal(_specs(definition["inputs"])),
        outputs=made.literal(_specs(definition["outputs"])),
        custom=definition.get("custom_inputs_entrypoint"),
        root=str((file.parent if alone else root).resolve()),
        shapes=solution.shapes(definition["axes"]),
        workloads=made.literal({
            case_name(w): {
                "axes": dict(w["axes"]), "inputs": dict(w.get("inputs") or {}),
                "tolerance": _tolerance(definition, w, alone),
            }
            for w in workloads
        }),
    )  # fmt: skip
    return made.problem(NAME, name, text)


def _why_not(definition: dict[str, Any], workloads: list[dict[str, Any]]) -> str:
    """Why a definition cannot be judged; "" where it can."""
    kind = definition.get("op_type")
    if kind in _RANDOM:
        return f"op_type {kind!r}: its answers are random and judged by their distribution"
    specs = {**definition["inputs"], **definition["outputs"]}
    odd = sorted({str(s["dtype"]) for s in specs.values()} - set(_DTYPES))
    if odd:
        return f"dtype {', '.join(odd)}: not judged; there are {', '.join(_DTYPES)}"
    return "" if workloads else "the dataset has no workload for it"


def _tolerance(definition: dict[str, Any], workload: dict[str, Any], sol: bool) -> dict[str, Any]:
    """What the harness's own verdict takes; ``both``: an element is off where its absolute and its
    relative error are beyond, rather than by more than their sum."""
    given = workload.get("tolerance")
    if not sol and not given:
        ratio = _RATIOS.get(str(definition.get("op_type")), _TOLERANCE["ratio"])
        return {**_TOLERANCE, "ratio": ratio, "both": True}
    given = given or {}
    return {
        "atol": given.get("max_atol", 1e-2), "rtol": given.get("max_rtol", 1e-2),
        "ratio": given.get("required_matched_ratio", 0.99), "both": False,
        "cap": given.get("max_error_cap"),
        "negative_inf": bool(given.get("allow_negative_inf", False)),
    }  # fmt: skip


def _workloads(root: Path, file: Path, name: str) -> list[dict[str, Any]]:
    if file.name == "definition.json":
        beside = file.parent / "workload.jsonl"
        return _lines(beside) if beside.is_file() else []
    found = [
        line["workload"]
        for path in sorted((root / "workloads").rglob(f"{name}.jsonl"))
        for line in _lines(path)
        if line.get("definition") == name and line.get("solution") is None
    ]
    return found


def _published(root: Path) -> dict[tuple[str, str], dict[str, str]]:
    """(definition, solution) -> identity of a workload -> the status in its trace."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for path in sorted((root / "traces").rglob("*.jsonl")):
        for line in _lines(path):
            if line.get("solution") and line.get("evaluation"):
                key = str(line["definition"]), str(line["solution"])
                workload = str(line["workload"]["uuid"])
                found.setdefault(key, {})[workload] = str(line["evaluation"]["status"])
    return found


def _itself(definition: dict[str, Any]) -> dict[str, Any]:
    """The reference as a solution: what a judge must pass."""
    return {
        "name": "reference", "definition": definition["name"], "author": "",
        "spec": {
            "language": "python", "entry_point": "main.py::run", "target_hardware": ["any"],
            "destination_passing_style": False,
        },
        "sources": [{"path": "main.py", "content": definition["reference"]}],
    }  # fmt: skip


def _specs(given: Mapping[str, Any]) -> dict[str, Any]:
    return {n: {"shape": s.get("shape"), "dtype": str(s["dtype"])} for n, s in given.items()}


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise UsageError(f"{path} holds {type(value).__name__}, not an object")
    for name in ("axes", "inputs", "outputs", "reference"):
        _field(value, name, path)
    return value


def _field(value: Mapping[str, Any], name: str, path: Path) -> Any:
    if name not in value:
        raise UsageError(f"{path} has no {name!r}: it is no Definition")
    return value[name]


def _lines(path: Path) -> list[dict[str, Any]]:
    return list(_parsed(path))


def _parsed(path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.strip():
            try:
                yield json.loads(line)
            except ValueError as error:
                raise UsageError(f"{path}:{number} is not JSON: {error}") from error
