"""gpu-mode's reference-kernels: folders with `task.yml` and `reference.py`, submissions with
`custom_kernel(data)`.

The form is that of https://github.com/gpu-mode/reference-kernels (README and problems/ at f83cb92).
`eval.py` is not run: what is judged are `generate_input`, `ref_kernel` and `check_implementation`
with the cases of `task.yml`. "cuda" in their text becomes the device of the run, so that a machine
without a GPU can do it.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from kernelproof.errors import UsageError
from kernelproof.suite.formats import made, task_text
from kernelproof.suite.model import Item, Suite

NAME = "gpumode"
_SUBMISSION = "@SUBMISSION@"
# Modules of a task that are the harness's, not the problem's.
_HARNESS = {"eval.py"}
_TOLERANCES = ("rtol", "atol")
_LEADERBOARD = re.compile(r"#!POPCORN\s+leaderboard\s+(\S+)")

_PROBLEM = '''"""{doc}"""

import sys
import types

import torch

# The modules of the task, as they are but for the device.
SOURCES = {sources}
CASES = {cases}
_device = "cpu"


def kernelproof_device():
    return _device


def _module(name):
    made = types.ModuleType(name)
    made.kernelproof_device = kernelproof_device
    sys.modules[name] = made
    exec(compile(SOURCES[name], name + ".py", "exec"), vars(made))
    return made


_kept = {{name: sys.modules.get(name) for name in SOURCES}}
try:
    for _name in SOURCES:
        _reference = _module(_name)
finally:
    for _name, _before in _kept.items():
        sys.modules.pop(_name, None)
        if _before is not None:
            sys.modules[_name] = _before


# How the last members of the data, into which an answer may be written, are made. They are no
# inputs: each call has new ones.
BUFFERS = {buffers}


{data}

class Model(torch.nn.Module):
    def forward(self, *inputs):
        global _device
        data, _device = _data(inputs)
        return _answer(_reference.ref_kernel(data), inputs)


def get_inputs(**case):
    global _device
    _device = "cpu"
    # The seed of the case is public; this one hangs on kernelproof's own. Some tasks add it to
    # their numbers, so it is as small as theirs.
    case["seed"] = int(torch.randint(1 << 14, ()))
    data = _reference.generate_input(**case)
    if type(data) is not tuple or len(data) < 2:
        return [data]
    cut = len(data) - len(BUFFERS)
    return [*data[:cut], *[[list(x.shape), x.dtype] for x in data[cut:]]]


def COMPAT(inputs, output):
    global _device
    data, _device = _data(inputs)
    found = _reference.check_implementation(data, output)
    # Older tasks return a text, empty where all is well.
    good, text = found if isinstance(found, tuple) else (not found, found)
    return "" if good else str(text) or "check_implementation refuses it"
'''

_DATA = '''def _data(inputs):
    """The data as `generate_input` gives them, and their device."""
    leaves = torch.utils._pytree.tree_leaves(list(inputs))
    device = next((str(x.device) for x in leaves if isinstance(x, torch.Tensor)), "cpu")
    if len(inputs) == 1:
        return inputs[0], device
    cut = len(inputs) - len(BUFFERS)
    made = [
        getattr(torch, fill)(shape, dtype=dtype, device=device)
        for fill, (shape, dtype) in zip(BUFFERS, inputs[cut:])
    ]
    return (*inputs[:cut], *made), device


def _answer(answer, inputs):
    """In the dtype of the buffer: some references answer in float64, and take both."""
    if len(BUFFERS) == 1 and isinstance(answer, torch.Tensor):
        shape, dtype = inputs[-1]
        answer = answer.to(dtype) if list(answer.shape) == list(shape) else answer
    return answer

'''

_CANDIDATE = '''"""A submission of reference-kernels as ModelNew."""

{mark}import sys
from pathlib import Path

import torch

from kernelproof.errors import UnsupportedError
from kernelproof.importing import import_file

# By path: modules of these names may lie elsewhere as well.
HERE = Path(__file__).parent
try:
    for _name in {helpers}:
        sys.modules[_name] = import_file(HERE / (_name + ".py"), "task")
    custom_kernel = import_file(HERE / "submission.py", "submission").custom_kernel
except ModuleNotFoundError as error:
    raise UnsupportedError(f"the submission needs {{error.name}}, which is not installed") from None
BUFFERS = {buffers}


{data}

class ModelNew(torch.nn.Module):
    def forward(self, *inputs):
        return _answer(custom_kernel(_data(inputs)[0]), inputs)
'''


def is_one(path: Path) -> bool:
    """Whether ``path`` is a checkout, a set of problems or a problem."""
    return bool(_tasks(path))


def load(path: Path, candidates: Path | None = None, itself: bool = False) -> Suite:
    """The problems below ``path`` with submissions.

    Args:
        candidates: a submission, or a folder of them: ``<problem>/*.py``, ``<problem>__<name>.py``,
            or any whose head says ``#!POPCORN leaderboard <problem>``; each problem's own
            `submission.py` when None.
        itself: the submission of each problem is its reference.

    Raises:
        UsageError: no problem there, a `task.yml` that is none, or no submission of any.
    """
    tasks = _tasks(path)
    if not tasks:
        raise UsageError(f"{path} holds no task.yml: give a folder of reference-kernels")
    one = len(tasks) == 1
    items: list[Item] = []
    for folder in tasks:
        name = _name(folder, path)
        problem, helpers = _problem(folder, name)
        submissions = _submissions(folder, candidates, one) if not itself else {}
        if itself:
            submissions = {"reference": _ITSELF}
        items += _items(name, problem, helpers or {}, submissions)
    if candidates is not None and all(item.candidate is None for item in items):
        raise UsageError(
            f"{candidates} holds no submission of {', '.join(item.name for item in items)}: name "
            "them <problem>/<name>.py or <problem>__<name>.py, or begin them with "
            "`#!POPCORN leaderboard <problem>`"
        )
    return Suite(path.resolve().name, NAME, items)


# The reference as a submission: what a judge must pass. Not for others, who may not read it.
_ITSELF = "from reference import ref_kernel as custom_kernel\n"


def _items(
    name: str, problem: Path, helpers: dict[str, str], submissions: dict[str, str]
) -> list[Item]:
    compat = {"compat": {"format": NAME}}
    buffers = task_text.buffers(helpers.get("reference.py", ""))
    category = name.rpartition("/")[0]
    found = []
    for sample, (title, text) in enumerate(submissions.items()):
        mark = "import triton\n" if re.search(r"^\s*(import|from)\s+triton\b", text, re.M) else ""
        own = {f: t for f, t in helpers.items() if text is _ITSELF or f != "reference.py"}
        # The reference uses the others.
        modules = sorted((f.removesuffix(".py") for f in own), key=lambda m: (m == "reference", m))
        adapter = _CANDIDATE.format(
            mark=mark, buffers=buffers, data=_DATA, helpers=made.literal(modules)
        )
        files = {"candidate.py": adapter, "submission.py": text, **own}
        candidate = made.folder(NAME, f"{name.rpartition('/')[2]}-{title}", files)
        full = name if len(submissions) == 1 else f"{name}/{title}"
        found.append(Item(problem, candidate, full, category, sample, compat))
    return found or [Item(problem, None, name, category, 0, compat)]


def _tasks(path: Path) -> list[Path]:
    if not path.is_dir():
        return []
    return sorted(p.parent for p in path.rglob("task.yml") if ".git" not in p.parts)


def _name(folder: Path, root: Path) -> str:
    parts = [p for p in folder.relative_to(root).parts if p != "problems"]
    return "/".join(parts) or folder.resolve().name


def _problem(folder: Path, name: str) -> tuple[Path, dict[str, str] | None]:
    """The problem of a task, and the modules beside it that a submission may import; None for the
    latter where the task cannot be judged."""
    task = made.yaml_of(folder / "task.yml")
    why = _why_not(folder, task)
    if why:
        return made.unsupported(NAME, name, why), None
    texts = _modules(folder, task)
    placed = {file.removesuffix(".py"): task_text.with_device(text) for file, text in texts.items()}
    # What a module imports stands before it: reference.py uses the others.
    order = sorted(placed, key=lambda module: (module == "reference", module == "task", module))
    doc = str(task.get("description") or name).strip().replace("\\", "\\\\").replace('"""', "'''")
    text = _PROBLEM.format(
        doc=doc, data=_DATA, buffers=task_text.buffers(texts["reference.py"]),
        sources=made.literal({module: placed[module] for module in order}),
        cases=made.literal(_cases(task)),
    )  # fmt: skip
    helpers = {file: task_text.with_device(text, fixed=True) for file, text in texts.items()}
    return made.problem(NAME, name, text), helpers


def _why_not(folder: Path, task: dict[str, Any]) -> str:
    """Why a task cannot be judged; "" where it can."""
    if task.get("multi_gpu") or any("world_size" in case for case in _listed(task)):
        return "a task over several GPUs (world_size); one GPU is judged at a time"
    if task.get("lang", "py") != "py":
        return f"lang {task['lang']!r}: submissions that are whole programs; Python ones are judged"
    reference = folder / "reference.py"
    if not reference.is_file():
        return "there is no reference.py"
    text = reference.read_text()
    missing = [
        name for name in ("generate_input", "ref_kernel", "check_implementation")
        if not re.search(rf"^(def {name}\b|{name}\s*=)", text, re.M)
    ]  # fmt: skip
    if missing:
        return f"reference.py has no {' and no '.join(missing)}"
    if not _compares(text):
        return (
            "check_implementation asks for properties, not for the reference's values: a task "
            "whose right answers differ (a factorisation, say) has no one truth to be judged by"
        )
    if not _listed(task):
        return "task.yml has neither tests nor benchmarks"
    return ""


def _compares(text: str) -> bool:
    """Whether `check_implementation` holds outputs against `ref_kernel`."""
    tree = ast.parse(text)
    for node in tree.body:
        named = isinstance(node, ast.FunctionDef) and node.name == "check_implementation"
        assigned = isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == "check_implementation" for t in node.targets
        )
        if named or assigned:
            return any(isinstance(n, ast.Name) and n.id == "ref_kernel" for n in ast.walk(node))
    return False


def _listed(task: dict[str, Any]) -> list[dict[str, Any]]:
    return [*(task.get("tests") or []), *(task.get("benchmarks") or [])]


def _cases(task: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Every case once, by name; the one that is ranked last, which is what a task's score is by
    default, stands first: the first is timed."""
    named: dict[str, dict[str, Any]] = {}
    benchmarks = task.get("benchmarks") or []
    for kind, cases in (("benchmark", benchmarks[-1:]), ("test", task.get("tests") or []),
                        ("benchmark", benchmarks[:-1])):  # fmt: skip
        for case in cases:
            sizes = {key: value for key, value in case.items() if key != "seed"}
            if sizes in named.values():
                continue
            words = ",".join(f"{key}={value}" for key, value in sizes.items())
            named[f"{kind} {words}"] = sizes
    return named


def _modules(folder: Path, task: dict[str, Any]) -> dict[str, str]:
    """Name -> text of the Python modules that a task lists, but the harness and the submission."""
    found = {}
    for entry in task.get("files") or []:
        name, source = str(entry["name"]), str(entry["source"])
        if source == _SUBMISSION or name in _HARNESS or not name.endswith(".py"):
            continue
        path = folder / source
        if not path.is_file():
            raise UsageError(f"{folder / 'task.yml'} lists {source!r}, which is not there")
        found[name] = path.read_text()
    if "reference.py" not in found:
        found["reference.py"] = (folder / "reference.py").read_text()
    return found


def _submissions(folder: Path, candidates: Path | None, one: bool) -> dict[str, str]:
    """Name -> text."""
    if candidates is None:
        own = folder / "submission.py"
        return {"submission": own.read_text()} if own.is_file() else {}
    if candidates.is_file():
        text = candidates.read_text()
        return {candidates.stem: text} if one or _leaderboard(text) == folder.name else {}
    if not candidates.is_dir():
        raise UsageError(f"no submission {str(candidates)!r}: give a .py file or a folder of them")
    found = {p.stem: p.read_text() for p in sorted((candidates / folder.name).glob("*.py"))}
    for path in sorted(candidates.glob("*.py")):
        text = path.read_text()
        if path.name.startswith(f"{folder.name}__"):
            found[path.stem.removeprefix(f"{folder.name}__")] = text
        elif _leaderboard(text) in (folder.name, folder.name.removesuffix("_py")):
            found[path.stem] = text
    return found


def _leaderboard(text: str) -> str:
    match = _LEADERBOARD.search(text)
    return match[1] if match else ""
