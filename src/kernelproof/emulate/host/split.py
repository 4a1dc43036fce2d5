"""One CUDA C++ source as two: what the device runs, and what the host runs.

Both keep every line where it was, so that messages of compilers and findings name the user's lines.
The device text loses host functions and headers that NVRTC cannot read. The host text has stubs
in place of kernels, and launches are calls of those:

    scale<T><<<grid, block>>>(x, n)   ->   (configure(line, grid, block), scale<T>(x, n))
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator

from kernelproof.emulate.host.heads import (
    callee_at,
    closing_of,
    launch_end,
    name_of,
    parameters,
    parameters_at,
    template_names,
)
from kernelproof.emulate.host.tokens import (
    Item,
    Token,
    closing,
    items,
    opens_launch,
    tokens,
    without_template,
)
from kernelproof.errors import UnsupportedError

# Of headers between angle brackets, NVRTC reads those that are for the device; the beginning of the
# device's text stands for the others. Quoted ones that are not found beside the source are kept.
_HOST_HEADERS = re.compile(
    r"""\#\s*include\s*(?:<(?!cuda_fp|cuda_bf16|mma\.h|cooperative_groups|cuda_pipeline|cuda/|cub/
    |math_constants)|"(?:torch/|ATen/|c10/|pybind11/|cuda_runtime|cuda\.h))""",
    re.VERBOSE,
)
_HOST_NAMES = ("torch", "at", "c10", "py", "pybind11", "ATen")
# What lives on the device only; the host compiler knows nothing of it.
_DEVICE_NAMES = ("nvcuda", "wmma", "cooperative_groups", "cg", "cub")
_DEVICE_HEADERS = re.compile(
    r"#\s*include\s*[<\"](mma\.h|cooperative_groups|cuda_pipeline|cuda/|cub/|cooperative_groups/)"
)
_LIBRARIES = re.compile(
    r"#\s*include\s*[<\"]((?:cublas|cudnn|cufft|curand|cusparse|cusolver|cutlass|cute|thrust)\w*)"
)
_SWAPPED = {
    "is_cuda": "is_cpu", "is_cpu": "is_cuda", "kCUDA": "kCPU", "kCPU": "kCUDA",
}  # fmt: skip
_NO_BODY = "{ __builtin_trap(); }"


@dataclasses.dataclass
class Sides:
    device: str
    host: str


def split(text: str, file: str) -> Sides:
    """Raises UnsupportedError for what cannot be taken over, with its line."""
    return _Splitter(text, file).sides()


def host_only(text: str) -> str:
    """A source without kernels, for the host's compiler."""
    splitter = _Splitter(text, "")
    splitter.words()
    return _edited(text, splitter.host)


def line_of(text: str, at: int) -> int:
    """The line of a place in the text, as the `#line` directives before it number it."""
    before = text[:at]
    found = list(re.finditer(r"^[ \t]*#[ \t]*line[ \t]+(\d+)[^\n]*\n", before, re.M))
    if not found:
        return before.count("\n") + 1
    return int(found[-1][1]) + before[found[-1].end() :].count("\n")


class _Splitter:
    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file
        self.code = tokens(text)
        self.device: list[tuple[int, int, str]] = []
        self.host: list[tuple[int, int, str]] = []
        self.variables = 0

    def sides(self) -> Sides:
        self._refuse()
        self._namespace(0, len(self.code))
        self.words()
        return Sides(_edited(self.text, self.device), _edited(self.text, self.host))

    def unsupported(self, what: str, at: int) -> UnsupportedError:
        return UnsupportedError(
            f"{self.file}:{line_of(self.text, at)}: {what}; run this candidate on a GPU"
        )

    def _refuse(self) -> None:
        code = [t for t in self.code if t.kind != "space"]
        for token in code:
            library = _LIBRARIES.match(token.text) if token.kind == "directive" else None
            if library:
                raise self.unsupported(f"{library[1]} is not emulated", token.start)
        for one, other in itertools.pairwise(code):
            if one.text == "]" and other.text in ("__device__", "__host__"):
                raise self.unsupported("device lambdas are not taken over", other.start)

    # ---- items

    def _namespace(self, first: int, stop: int) -> None:
        for item in items(self.code, first, stop):
            if item.kind == "directive":
                self._directive(item)
            elif item.kind == "namespace" and item.body:
                self._namespace(item.body[0] + 1, item.body[1])
            elif item.kind == "function":
                self._function(item)
            elif item.kind == "type":
                self._type(item)
            else:
                self._statement(item)

    def _directive(self, item: Item) -> None:
        if _HOST_HEADERS.match(item.head[0].text.strip()):
            self._drop(self.device, item)
        elif _DEVICE_HEADERS.match(item.head[0].text.strip()):
            self._drop(self.host, item)

    def _function(self, item: Item) -> None:
        assert item.body is not None
        first, last = item.body
        if item.has("__global__"):
            self._kernel(item)
            return
        if not item.has("__device__", "constexpr"):
            self._drop(self.device, item)
            return
        if item.has("constexpr", "__host__"):
            if _mentions(item.head, _HOST_NAMES):
                self._drop(self.device, item)
        elif _mentions(item.head, _DEVICE_NAMES):
            self._drop(self.host, item)
        else:
            self._body(first, last, _NO_BODY)

    def _body(self, first: int, last: int, text: str) -> None:
        """Replace the braces at ``first`` and ``last`` of the host's text, and what they hold."""
        start, stop = self.code[first].start, self.code[last].end
        self.host.append((start, stop, text + "\n" * self.text.count("\n", start, stop)))

    def _kernel(self, item: Item) -> None:
        assert item.body is not None
        for token in self.code[item.body[0] : item.body[1]]:
            if opens_launch(token):
                raise self.unsupported("launches by kernels are not emulated", token.start)
        head = without_template(item.head)
        open_at = parameters_at(head)
        if open_at < 0:
            raise self.unsupported("this kernel's parameters are not understood", item.start)
        names = []
        for number, part in enumerate(parameters(head[open_at + 1 : closing_of(head, open_at)])):
            name, insert_at = name_of(part)
            if not name:
                name = f"unnamed_{number}"
                self.host.append((insert_at, insert_at, f" {name}"))
            pack = any(t.text == "..." for t in part)
            names.append(f"{name}..." if pack else name)
        template = template_names(item.head)
        listed = ", ".join(n.removesuffix("...") for n in names)
        texts = f'__PRETTY_FUNCTION__, "{listed}", "{", ".join(template)}"'
        arguments = ", ".join(["KERNELPROOF_UNIT", texts, *names])
        self._body(*item.body, f"{{ ::kernelproof::enter({arguments}); }}")

    def _type(self, item: Item) -> None:
        inside = range(item.body[0], item.body[1]) if item.body else range(0)
        if any(self.code[n].kind == "word" and self._is_host_name(n) for n in inside):
            self._drop(self.device, item)
        if _mentions(item.head, _DEVICE_NAMES):
            self._drop(self.host, item)
        elif item.body and not item.has("enum"):
            self._members(*item.body)

    def _members(self, first: int, last: int) -> None:
        for member in items(self.code, first + 1, last):
            if member.kind == "type" and member.body and not member.has("enum"):
                self._members(*member.body)
            elif member.kind == "function" and member.body:
                on_device = member.has("__device__") and not member.has("__host__", "constexpr")
                if on_device:
                    self._body(*member.body, _NO_BODY)

    def _is_host_name(self, n: int) -> bool:
        word, after = self.code[n].text, self.code[n + 1].text if n + 1 < len(self.code) else ""
        return word in _HOST_NAMES and after == "::"

    def _statement(self, item: Item) -> None:
        if _mentions(item.head, _HOST_NAMES) or (
            item.has("using") and item.has("namespace") and item.has("std")
        ):
            self._drop(self.device, item)
        elif _mentions(item.head, _DEVICE_NAMES):
            self._drop(self.host, item)
        elif item.has("__device__", "__constant__") and not item.has("__global__", "extern"):
            self._variable(item)
        elif not self._for_both(item):
            self._drop(self.device, item)

    def _for_both(self, item: Item) -> bool:
        """Whether the device may need a statement that is not marked for it."""
        if item.has("using", "typedef", "constexpr", "const", "struct", "class", "enum", "union",
                    "template", "static_assert", "__global__", "__device__", "extern"):  # fmt: skip
            return not item.has("std") or item.has("constexpr", "template")
        return False

    def _variable(self, item: Item) -> None:
        """Let the host know where its copy of a device variable lies."""
        head = without_template(item.head)
        if any(t.text == "(" for t in head[:3]) or item.has("template"):
            return
        name = ""
        for token in head:
            if token.kind == "mark" and token.text in ("=", "[", "{", ";"):
                break
            name = token.text if token.kind == "word" else name
        marks = {t.text for t in head if t.kind == "mark"}
        if not name or ("(" in marks and "=" not in marks):
            return  # a declaration of a function
        self.variables += 1
        self.host.append(
            (item.end, item.end,
             f" static ::kernelproof::Variable kernelproof_variable_{self.variables}"
             f'(KERNELPROOF_UNIT, "{name}", &{name}, sizeof({name}));')
        )  # fmt: skip

    def _drop(self, side: list[tuple[int, int, str]], item: Item) -> None:
        side.append((item.start, item.end, "\n" * self.text.count("\n", item.start, item.end)))

    # ---- launches and words of the host's part

    def words(self) -> None:
        """Edit launches, and what names a device."""
        gone = sorted((start, stop) for start, stop, _ in self.host if stop > start)
        for n, token in enumerate(self.code):
            if any(start <= token.start < stop for start, stop in gone):
                continue
            if token.kind == "directive" and "define" in token.text[:12]:
                self._macro(token)
            elif token.kind == "word":
                self._word(n, token)
            elif token.kind == "string" and re.fullmatch(r'"cuda(:\d+)?"', token.text):
                self.host.append((token.start, token.end, '"cpu"'))
            elif opens_launch(token):
                self.host += self._launch(self.code, n, 0)

    def _word(self, n: int, token: Token) -> None:
        if token.text in _SWAPPED:
            self.host.append((token.start, token.end, _SWAPPED[token.text]))
        elif token.text in ("CUDA", "CPU"):
            before = "".join(t.text for t in self.code[max(0, n - 14) : n] if t.kind != "space")
            if before.endswith("DeviceType::") or re.search(r"LIBRARY_IMPL\([\w$]+,$", before):
                other = "CPU" if token.text == "CUDA" else "CUDA"
                self.host.append((token.start, token.end, other))

    def _macro(self, token: Token) -> None:
        inner = tokens(token.text.replace("#", " ", 1))
        for n, one in enumerate(inner):
            if opens_launch(one):
                edits = self._launch(inner, n, token.start)
                self.host += edits
            elif one.kind == "word" and one.text in _SWAPPED:
                at = token.start + one.start
                self.host.append((at, at + len(one.text), _SWAPPED[one.text]))

    def _launch(self, code: list[Token], n: int, base: int) -> Iterator[tuple[int, int, str]]:
        start = callee_at(code, n)
        if start < 0:
            raise self.unsupported("this launch is not understood", base + code[n].start)
        stop, after = launch_end(code, n + 1)
        opening = after
        while opening < len(code) and code[opening].kind == "space":
            opening += 1
        if opening >= len(code) or code[opening].text != "(":
            raise self.unsupported("this launch is not understood", base + code[n].start)
        last = closing(code, opening, len(code))
        callee = "".join(t.text for t in code[start:n]).strip()
        line = line_of(self.text, base + code[n].start)
        lines = "\n" * sum(t.text.count("\n") for t in code[start:n]) if not base else ""
        yield (
            base + code[start].start,
            base + code[n].end,
            (f"(::kernelproof::configure({line}, {lines}"),
        )
        yield (
            base + code[stop].start,
            base + code[after - 1].end,
            f"), {callee.replace(chr(10), ' ')}",
        )
        yield base + code[last].end, base + code[last].end, ")"


def _mentions(head: list[Token], names: tuple[str, ...]) -> bool:
    """Whether a name of ``names`` is used as a namespace."""
    for n, token in enumerate(head):
        if token.kind == "word" and token.text in names:
            after = head[n + 1].text if n + 1 < len(head) else ""
            before = head[n - 1].text if n else ""
            if after == "::" or before == "namespace" or (after == "" and before == "namespace"):
                return True
    return False


def _edited(text: str, edits: list[tuple[int, int, str]]) -> str:
    """``text`` with the edits; one inside of another is left out."""
    out, at = [], 0
    for start, stop, new in sorted(edits, key=lambda e: (e[0], -e[1])):
        if start < at:
            continue
        out += [text[at:start], new]
        at = stop
    return "".join([*out, text[at:]])
