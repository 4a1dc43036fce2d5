"""The parser: declarations, scopes, operands, lines."""

from __future__ import annotations

import pytest

from kernelproof.emulate.lower import flatten
from kernelproof.emulate.ptx import Address, Instruction
from kernelproof.emulate.ptx_parse import parse
from kernelproof.errors import CompileError, UnsupportedError

HEAD = '.version 8.0\n.target sm_80\n.address_size 64\n.file 1 "a.cu"\n'


def body(text: str, params: str = "") -> list[str | Instruction]:
    module = parse(f"{HEAD}.visible .entry k({params})\n{{\n{text}\n}}\n")
    return module.functions["k"].body


def test_text_without_a_version_is_refused() -> None:
    with pytest.raises(CompileError, match=r"no \.version"):
        parse("int main() {}")


def test_operands() -> None:
    load, move, compare, store = body(
        ".reg .b32 %r<9>; .reg .b64 %rd<3>; .reg .pred %p<3>;\n"
        "ld.global.v2.u32 {%r1, %r2}, [%rd1+-8];\n@!%p1 mov.u32 %r3, %tid.x;\n"
        "setp.eq.s32 %p1|%p2, %r1, 0x10;\nst.shared.u32 [%r4], %r3;"
    )
    assert isinstance(load, Instruction) and isinstance(move, Instruction)
    assert load.op == ("ld", "global", "v2", "u32")
    assert load.operands == [("%r1", "%r2"), Address("%rd1", -8)]
    assert (move.guard, move.negated) == ("%p1", True)
    assert isinstance(compare, Instruction) and compare.operands[0] == ("%p1", "%p2")
    assert isinstance(store, Instruction) and store.operands[0] == Address("%r4", 0)


def test_coordinates_of_a_tensor_map_stand_in_its_brackets() -> None:
    (copy,) = body(
        ".reg .b32 %r<9>; .reg .b64 %rd<3>;\n"
        "cp.async.bulk.tensor.2d.shared::cluster.global [%r1], [%rd1, {%r2, 3}], [%r4];"
    )
    assert isinstance(copy, Instruction)
    tensor = (Address("%rd1", 0), ("%r2", "3"))
    assert copy.operands == [Address("%r1", 0), tensor, Address("%r4", 0)]


def test_a_label_of_a_scope_is_its_own() -> None:
    loop = "{ .reg .pred p; L: setp.eq.u32 p, 0, 1; @p bra L; }\n"
    first, _, back, second, _, again = body(loop + loop)
    assert first != second
    assert isinstance(back, Instruction) and back.operands == [first]
    assert isinstance(again, Instruction) and again.operands == [second]


def test_a_kernel_may_declare_its_clusters() -> None:
    head = ".visible .entry k() .explicitcluster .reqnctapercluster 2, 1, 1\n{ ret; }\n"
    assert parse(HEAD + head).functions["k"].cluster == (2, 1, 1)
    assert parse(f"{HEAD}.visible .entry k()\n{{ ret; }}\n").functions["k"].cluster is None


def test_a_register_of_an_inner_scope_is_another() -> None:
    inner, outer = body(".reg .b32 %r<2>;\n{ .reg .b32 %r1; mov.u32 %r1, 1; }\nmov.u32 %r1, 2;")
    assert isinstance(inner, Instruction) and isinstance(outer, Instruction)
    assert inner.operands[0] != outer.operands[0] == "%r1"


def test_lines_of_inlined_functions_keep_their_callers() -> None:
    (i,) = body(
        ".reg .b32 %r<2>;\n.loc 1 20 3\n.loc 1 7 5, function_name $L__info0, inlined_at 1 20 3\n"
        "mov.u32 %r1, 1;"
    )
    assert isinstance(i, Instruction) and i.location is not None
    assert [str(at) for at in i.location.chain()] == ["a.cu:7", "a.cu:20"]


def test_variables_with_values() -> None:
    module = parse(
        f"{HEAD}.global .align 4 .u32 n = 3;\n"
        ".const .align 4 .f32 c[2] = {0f3F800000, 0f40000000};\n"
        ".extern .shared .align 16 .b8 s[];\n.global .align 8 .u64 p = n;\n"
    )
    v = module.variables
    assert v["n"].data == b"\3\0\0\0"
    assert v["c"].data == b"\0\0\x80\x3f\0\0\0\x40"
    assert (v["s"].size, v["s"].space) == (0, "shared")
    assert v["p"].names == ((0, "n"),)


def test_a_recursive_function_is_refused() -> None:
    text = (
        f"{HEAD}.func f() {{ call.uni f, (); ret; }}\n"
        ".visible .entry k() { call.uni f, (); ret; }\n"
    )
    with pytest.raises(UnsupportedError, match="recursive device function f"):
        flatten(parse(text), "k", False)


def test_a_missing_function_is_named() -> None:
    text = f"{HEAD}.extern .func g();\n.visible .entry k() {{ call.uni g, (); ret; }}\n"
    with pytest.raises(UnsupportedError, match="call of g at PTX line 6"):
        flatten(parse(text), "k", False)


def test_blocks_end_at_jumps_and_barriers() -> None:
    text = ".reg .pred %p<2>;\n@%p1 bra $A;\nbar.sync 0;\n$A:\n@%p1 bar.sync 0;\nret;"
    module = parse(f"{HEAD}.visible .entry k()\n{{\n{text}\n}}\n")
    blocks = flatten(module, "k", False).blocks
    ends = [b.end.op[0] if b.end else None for b in blocks]
    # The guarded barrier becomes a jump around a barrier.
    assert ends == ["bra", "bar", "bra", "bar", "ret", None]
    assert blocks[0].targets == [2, 1]
    assert blocks[2].targets == [4, 3]
