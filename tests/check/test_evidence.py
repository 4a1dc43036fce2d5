"""What is made of the tripwires' report and of a profile."""

from __future__ import annotations

from kernelproof.check import evidence
from kernelproof.check.guards import Guards
from kernelproof.types import LibraryUse, Run, Verdict

QUIET = {"patched": [], "seen": [], "opened": [], "threads": 0, "settings": []}
PASSED = Verdict(status="pass", proof=True, compat=True, evidence="cpu", device="cpu", limit=12.0)


def test_a_replaced_function_makes_a_cheat() -> None:
    checks = evidence.tripped({**QUIET, "patched": ["time.time"] * 9}, "p.py")
    verdict = evidence.with_checks(PASSED, checks)
    assert (verdict.status, verdict.proof, verdict.compat) == ("cheat", False, False)
    assert "time.time" in verdict.message and "5 more" in verdict.message


def test_a_look_around_is_a_note() -> None:
    report = {**QUIET, "seen": ["a.py:3 forks"], "opened": ["/x/p.py"], "threads": 2}
    checks = evidence.tripped(report, "/problems/p.py")
    assert [c.outcome for c in checks] == ["pass", "note", "note", "note"]
    assert "problem's source" in checks[2].message and "2 Python thread" in checks[3].message
    assert evidence.with_checks(PASSED, checks).status == "pass"


def test_a_verdict_that_failed_stays_what_it_was() -> None:
    wrong = PASSED.model_copy(update={"status": "wrong", "proof": False, "message": "why"})
    checks = evidence.tripped({**QUIET, "patched": ["time.time"]}, "p.py")
    assert evidence.with_checks(wrong, checks).message == "why"


def test_who_claims_own_kernels_is_named_for_a_librarys() -> None:
    profile = {"seconds": 1.0, "library": 0.8, "names": ["aten::mm"]}
    use = evidence.library_use(profile, "cpp-c")
    assert use == LibraryUse(share=0.8, names=("aten::mm",), claims="cpp-c")
    assert evidence.library_check(use, forbidden=False).outcome == "note"
    assert evidence.library_check(use, forbidden=True).outcome == "fail"
    honest = use.model_copy(update={"claims": "pytorch"})
    assert evidence.library_check(honest, forbidden=False).outcome == "pass"
    little = use.model_copy(update={"share": 0.05})
    assert evidence.library_check(little, forbidden=True).outcome == "pass"
    assert evidence.library_use({"seconds": 0.0, "library": 0.0, "names": []}, "cpp-c") is None


def test_the_check_of_emulated_memory_tells_its_findings_and_not_the_values() -> None:
    guards = Guards("cpu")
    run = Run(case="odd", seed=1, status="wrong", message="case odd: y[0] is nan")
    seen = {"errors": ["k.cu:3: race"], "notes": [], "launches": 1, "apart": []}
    found = guards.emulated("odd", run, seen)
    check = guards.checks["races, bounds and initialisation (emulated)"]
    assert check.message == "case odd: k.cu:3: race"
    assert found.message == "case odd: y[0] is nan; k.cu:3: race"
