"""Classes of instructions and loops, from a disassembler's text."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kernelproof.errors import UnsupportedError
from kernelproof.inspect import sass, tools
from kernelproof.inspect.compile import Compiled

TEXT = """
\t.target\tsm_90a
\t.section\t.text.first,"ax",@progbits
\t.sectioninfo\t@"SHI_REGISTERS=20"
first:
.text.first:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_2:
        /*0010*/                   LDG.E.128.CONSTANT R4, desc[UR4][R2.64] ;
.L_x_1:
        /*0020*/              @!P0 FFMA R4, R4, R5, R6 ;
        /*0030*/              @P1  BRA `(.L_x_1) ;
        /*0040*/                   STS.U16 [R4], R5 ;
        /*0050*/              @UP0 BRA `(.L_x_2) ;
        /*0060*/                   STG.E desc[UR4][R2.64], R4 ;
        /*0070*/                   EXIT ;
.L_x_3:
        /*0080*/                   BRA `(.L_x_3);
        /*0090*/                   NOP;
\t.section\t.debug_frame,"",@progbits
\t.section\t.text.second,"ax",@progbits
        /*0000*/                   EXIT ;
"""


def test_widths_predicates_and_nested_loops() -> None:
    found = sass.mixes(TEXT)
    assert list(found) == ["first", "second"]
    first = found["first"]
    assert (first.total, first.loops) == (9, 2)
    assert first.counts == {"FFMA": 1, "LDG.128": 1, "STG.32": 1, "STS.16": 1}
    assert first.in_loops == {"total": 5, "FFMA": 1, "LDG.128": 1, "STS.16": 1}
    assert found["second"].counts == {}


@pytest.mark.parametrize(
    ("opcode", "name"),
    [("LDG.E.64", "LDG.64"), ("LD.E", "LD.32"), ("LDG.E.U8.CONSTANT", "LDG.8"), ("STL", "STL.32"),
     ("LDGSTS.E.BYPASS.LTC128B.128", "LDGSTS.128"), ("UTMALDG.2D", "UTMALDG"),
     ("HGMMA.64x64x16.F32", "HGMMA"), ("SYNCS.ARRIVE.TRANS64", "MBARRIER"), ("MOV", ""),
     ("BAR.SYNC.DEFER_BLOCKING", "BAR"), ("IMMA.16832.S8.S8", "IMMA"), ("DFMA", "DFMA")],
)  # fmt: skip
def test_classes(opcode: str, name: str) -> None:
    assert sass.kind(opcode) == name


def test_tensor_core_classes() -> None:
    tensor = ["HMMA", "HGMMA", "IMMA", "IGMMA", "QGMMA", "DMMA", "BMMA", "QMMA", "OMMA", "UTCHMMA"]
    assert all(sass.is_tensor(name) for name in tensor)
    assert not any(sass.is_tensor(name) for name in ["FFMA", "HFMA2", "DFMA", "IMAD", "LDG.128"])


def test_another_form_of_text_is_no_empty_mix() -> None:
    with pytest.raises(RuntimeError, match="no instructions"):
        sass.mixes(TEXT.replace("/*", "<").replace("*/", ">"))
    with pytest.raises(RuntimeError, match="no instructions"):
        sass.mixes("")


def test_without_a_disassembler_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "find", lambda tool: None)
    with pytest.raises(UnsupportedError, match="pip install nvidia-cuda-nvdisasm"):
        sass.disassemble(b"")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a", "sm_120a"])
def test_the_disassemblers_text_is_read(zoo: Callable[..., Compiled], arch: str) -> None:
    if tools.find("nvdisasm") is None:
        pytest.skip("no nvdisasm: pip install nvidia-cuda-nvdisasm")
    found = sass.mixes(sass.disassemble(zoo(arch).cubin))
    assert len(found) == 14
    assert found["wide"].in_loops["LDG.128"] == 1 and found["narrow"].in_loops["LDG.32"] == 1
    assert found["matmul_mma"].counts["HMMA"] > 0 and "HMMA" not in found["matmul"].counts
    assert found["named_barriers"].counts["BAR"] == 2 and found["doubled"].counts["DFMA"] > 0
    assert any(name.startswith("LDL") for name in found["local_array"].counts)


def test_a_broken_cubin_fails_in_the_disassembler() -> None:
    if tools.find("nvdisasm") is None:
        pytest.skip("no nvdisasm: pip install nvidia-cuda-nvdisasm")
    with pytest.raises(RuntimeError, match="nvdisasm"):
        sass.disassemble(b"\x7fELF" + bytes(100))
