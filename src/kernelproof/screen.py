"""A look at a candidate's sources, without running them. Its remarks inform; they decide nothing.

Each rule names what honest kernels do not need and known cheats use. A name in a comment or a
string of Python does not count; C and CUDA sources are searched as text without their comments.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from kernelproof.types import Candidate

# Call or attribute in Python, by its last names -> what it is there for.
_CALLS = {
    "gc.get_objects": "lists all objects of the process",
    "gc.get_referrers": "asks who holds an object",
    "sys._getframe": "reads the frames of its callers",
    "sys._current_frames": "reads the frames of all threads",
    "inspect.stack": "reads the frames of its callers",
    "inspect.currentframe": "reads the frames of its callers",
    "sys.settrace": "sets a trace function",
    "subprocess.run": "starts a process",
    "subprocess.Popen": "starts a process",
    "os.system": "starts a process",
    "os.fork": "forks",
    "threading.Thread": "starts a thread",
    "concurrent.futures.ThreadPoolExecutor": "starts threads",
    "ThreadPoolExecutor": "starts threads",
    "torch.are_deterministic_algorithms_enabled": "asks whether new memory is filled",
    "torch.autograd._profiler_enabled": "asks whether a profile is being taken",
    "torch.cuda.Stream": "uses a stream of its own",
    "torch.Tensor._make_subclass": "makes a tensor of another class",
    "torch.Tensor._make_wrapper_subclass": "makes a tensor of another class",
    "base64.b64decode": "decodes text that may be code",
    "marshal.loads": "decodes code",
    "socket.socket": "opens a connection",
    "urllib.request.urlopen": "opens a connection",
    "importlib.util.spec_from_file_location": "imports a file by path",
    "importlib.reload": "reloads a module",
    "exec": "runs text as code",
    "eval": "runs text as code",
}
# Assignments to an attribute of these, such as `time.perf_counter = ...`.
_FOREIGN = ("time", "torch", "gc", "sys", "os", "builtins", "nn", "kernelproof", "Tensor")
# Settings that are meant to be assigned.
_SETTINGS = re.compile(r"^torch\.(backends|set_|_dynamo\.config|_inductor\.config|compiler)")
_NATIVE = {
    r"/proc/(self|%d|\d)": "opens files of /proc",
    r"\bptrace\s*\(|process_vm_(readv|writev)": "reads the memory of a process",
    r"\bmprotect\s*\(": "changes the protection of memory",
    r"RTLD_NEXT": "puts itself before a library's function",
    r"\bcudaLaunchHostFunc\b|\bcuLaunchHostFunc\b": "runs host code from a stream",
    r"\bcudaStreamCreate\w*": "uses a stream of its own",
    r"accessPolicyWindow|cudaLimitPersistingL2CacheSize": "keeps data in L2 from call to call",
    r"\bstd::thread\b|\bstd::async\b|\bpthread_create\b": "starts a thread",
}
_NATIVE_SUFFIXES = {".cu", ".cuh", ".cpp", ".cc", ".c", ".h", ".hpp", ".inc"}
_MOST = 12


def notes(candidate: Candidate) -> list[str]:
    """Remarks such as "candidate.py:12: reads the frames of its callers (sys._getframe)"."""
    found: list[str] = []
    for name in candidate.sources:
        path = Path(candidate.folder) / name
        try:
            text = path.read_text(errors="replace")
        except OSError:
            continue  # deleted by the candidate, which the verdict says
        if path.suffix == ".py":
            found += [f"{name}:{line}: {words}" for line, words in python(text)]
        elif path.suffix in _NATIVE_SUFFIXES:
            found += [f"{name}:{line}: {words}" for line, words in native(text)]
    return list(dict.fromkeys(found))[:_MOST]


def python(text: str) -> Iterator[tuple[int, str]]:
    """(line, remark) of a Python source; nothing where it does not parse."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = _dotted(node.func)
            words = _CALLS.get(name) or _CALLS.get(".".join(name.split(".")[-2:]))
            if words:
                yield node.lineno, f"{words} ({name})"
            elif name == "setattr" and node.args and _foreign(_dotted(node.args[0]) + ".x"):
                yield node.lineno, f"replaces something of {_dotted(node.args[0])}"
        elif isinstance(node, (ast.Assign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                name = _dotted(target)
                if isinstance(target, ast.Attribute) and _foreign(name):
                    yield node.lineno, f"replaces {name}"
                elif isinstance(target, ast.Attribute) and target.attr == "__code__":
                    yield node.lineno, "replaces the code of a function"
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from _imports(node)
        elif isinstance(node, ast.ExceptHandler) and node.type is None:
            yield node.lineno, "takes another way after any error (except:)"
        elif isinstance(node, ast.ClassDef) and node.name == "ModelNew":
            for base in node.bases:
                if _dotted(base).split(".")[-1] == "Model":
                    yield node.lineno, "inherits from the reference"


def native(text: str) -> Iterator[tuple[int, str]]:
    """(line, remark) of a C, C++ or CUDA source."""
    plain = re.sub(r"/\*.*?\*/", lambda m: "\n" * m[0].count("\n"), text, flags=re.DOTALL)
    for number, line in enumerate(plain.splitlines(), 1):
        code = line.split("//")[0]
        for pattern, words in _NATIVE.items():
            if match := re.search(pattern, code):
                yield number, f"{words} ({match[0].strip(' (')})"


def _imports(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[int, str]]:
    names = [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        names = [f"{node.module}.{name}" for name in names]
    for name in names:
        parts = name.split(".")
        if parts[:2] in (["kernelproof", "worker"], ["kernelproof", "check"],
                         ["kernelproof", "timing"], ["kernelproof", "problem"]):  # fmt: skip
            yield node.lineno, f"imports what judges it ({name})"
        elif parts[0] in ("reference", "unittest"):
            yield node.lineno, f"imports {name}"


def _foreign(name: str) -> bool:
    parts = name.split(".")
    return len(parts) > 1 and parts[0] in _FOREIGN and not _SETTINGS.match(name)


def _dotted(node: ast.AST) -> str:
    """Such as "torch.cuda.Event.record"; "" for what is no plain name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join(reversed([*parts, node.id]))
