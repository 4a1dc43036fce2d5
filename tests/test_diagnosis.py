"""Compilers' errors at their lines in the candidate's sources."""

from __future__ import annotations

from kernelproof import diagnosis

CPP = "\n".join(f"line {n}" for n in range(1, 31))
GCC = """/tmp/build/scan.cpp: In function 'void scan()':
/tmp/build/scan.cpp:22:5: error: expected ';' before 'for'
   22 |     for (;;) {
      |     ^~~
/tmp/build/scan.cpp:9:1: warning: unused
/tmp/build/scan.cpp:30:2: fatal error: nothing.h: No such file or directory"""
NVRTC = """source.cu(4): error: expected a ";"
    if (i < n) y[i] = 1;
    ^

source.cu(3): warning #177-D: variable "i" was declared but never referenced
"""


def test_gcc() -> None:
    first, second = diagnosis.errors("", GCC, {"candidate.py": "x", "scan.cpp": CPP})
    assert (first.file, first.line, first.column) == ("scan.cpp", 22, 5)
    assert first.message == "expected ';' before 'for'"
    assert first.context == tuple(
        f"{'>' if n == 22 else ' '} {n:4d} | line {n}" for n in range(20, 25)
    )
    assert second.line == 30 and second.context[-1] == ">   30 | line 30"


def test_a_kernel_in_a_string_is_found_by_its_line() -> None:
    text = 'KERNEL = r"""\nvoid f() {\n  int i\n  if (i < n) y[i] = 1;\n}\n"""\n'
    (found,) = diagnosis.errors("", NVRTC, {"mine.py": text})
    assert (found.file, found.line) == ("mine.py", 4)
    assert found.message == 'expected a ";" (line 4 of the text that is compiled as source.cu)'
    twice = {"mine.py": text, "other.py": text}
    (found,) = diagnosis.errors("", NVRTC, twice)
    assert (found.file, found.line, found.context) == ("source.cu", 4, ("> if (i < n) y[i] = 1;",))


def test_nvcc_and_python() -> None:
    nvcc = 'a/kernel.cu(2): catastrophic error: cannot open source file "x.h"\n'
    (found,) = diagnosis.errors("", nvcc, {"a/kernel.cu": "one\ntwo\n"})
    assert found.line == 2 and found.context == ("     1 | one", ">    2 | two")
    (found,) = diagnosis.errors("m.py:1: expected ':'", "def f()", {"m.py": "def f()\n"})
    assert (found.file, found.line, found.message) == ("m.py", 1, "expected ':'")


def test_what_is_no_error_of_a_compiler() -> None:
    assert diagnosis.errors("m.py does not link", "ld: cannot find -lx\n", {"m.py": "x"}) == ()
    many = "\n".join(f"a.cpp:{n}:1: error: e{n}" for n in range(50))
    assert len(diagnosis.errors("", many, {"a.cpp": CPP})) == 8
