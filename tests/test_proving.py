"""Proofs: made, read, edited, and judged again."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kernelproof
from kernelproof import candidate, proof_file, proving, sources
from kernelproof.errors import UsageError
from kernelproof.types import Proof, Request, Verification

FOLDER = Path(__file__).parent / "candidates"
RIGHT = FOLDER / "right" / "axpby__select.py"
WRONG = FOLDER / "wrong" / "rms_norm__centred.py"
QUICK = Request(level="quick", seeds=1, baselines=("eager",), rounds=3, seconds=0.2)
ONE = QUICK.model_copy(update={"cases": ("one_of_each",)})
OPERATOR = Path(kernelproof.__file__).parent / "ops" / "gated_recurrence"


@pytest.fixture(scope="module")
def made() -> Proof:
    return proving.prove("axpby", RIGHT, request=QUICK, seed=7)


def written(proof: Proof, folder: Path, edit: Callable[[Any], None] | None = None) -> Path:
    """The file of ``proof``; after ``edit`` of its content, with a hash that is right again."""
    path = folder / "proof.json"
    proof_file.write(proof, path)
    if edit is not None:
        body = json.loads(path.read_text())
        edit(body)
        body["sha256"] = proof_file.digest(body)
        path.write_bytes(proof_file.canonical(body))
    return path


def verified(path: Path, **how: Any) -> Verification:
    return proving.verify(path, **{"fresh": False, "timed": False, **how})


def test_a_proof_holds_it_all_and_is_verified(made: Proof, tmp_path: Path) -> None:
    assert made.candidate.files[RIGHT.name] == RIGHT.read_text()
    assert "def get_inputs" in made.problem.files["axpby.py"]
    timing = made.record.timing
    assert timing is not None and len(timing.candidate.host.samples) >= 3
    assert made.record.verdict.checks and made.record.seeds and made.record.environment.torch
    path = written(made, tmp_path)
    # As JSON: of a dtype in a case its name is kept.
    back = proof_file.read(path).proof
    assert back is not None and back.model_dump(mode="json") == made.model_dump(mode="json")
    found = verified(path, fresh=True, timed=True)
    assert found.answer == "SAME VERDICT", found.reasons
    assert [one.seeds for one in found.reruns] == ["same", "fresh"]
    same, fresh = (one.record.seeds for one in found.reruns)
    assert same == made.record.seeds != fresh
    assert "have the same error to the last bit" in found.reruns[0].notes[0]
    assert {one.name for one in found.times} == {RIGHT.stem, "eager"}


def test_every_byte_counts(made: Proof, tmp_path: Path) -> None:
    path = written(made, tmp_path)
    whole, draw = path.read_bytes(), random.Random(1)
    blanks = [i for i, byte in enumerate(whole) if byte in b" \n"]
    places = [*draw.sample(range(len(whole)), 150), *draw.sample(blanks, 30)]
    edits = [
        whole[:i] + bytes([whole[i] ^ 1 << draw.randrange(8)]) + whole[i + 1 :] for i in places
    ]
    edits += [whole[:i] + whole[i + 1 :] for i in places[-40:]]
    edits += [whole[:i] + b" " + whole[i:] for i in places[-40:]]
    edits += [whole + b"\n", whole[:-1], b"\xef\xbb\xbf" + whole, whole.replace(b"\n", b"\r\n")]
    for edit in edits:
        path.write_bytes(edit)
        try:
            assert proof_file.read(path).edited
        except UsageError as error:
            assert "no proof" in str(error)
    path.write_bytes(whole)
    assert not proof_file.read(path).edited


def test_a_key_given_twice_is_an_edit(made: Proof, tmp_path: Path) -> None:
    path = written(made, tmp_path)
    path.write_text(
        path.read_text().replace('{\n "candidate"', '{\n "format": 1,\n "candidate"', 1)
    )
    assert proof_file.read(path).edited


def _swap(body: Any, digests: bool) -> None:
    """The candidate gets another source, and with ``digests`` the digest of that everywhere."""
    files = body["candidate"]["files"]
    files[RIGHT.name] = files[RIGHT.name].replace("alpha=alpha", "alpha=1.0")
    assert files[RIGHT.name] != RIGHT.read_text()
    if digests:
        found = candidate.digest_of({name: text.encode() for name, text in files.items()})
        body["candidate"]["digest"] = body["record"]["candidate"]["digest"] = found


def test_another_source_is_noticed_whatever_hash_is_made_anew(made: Proof, tmp_path: Path) -> None:
    path = written(made, tmp_path)
    body = json.loads(path.read_text())
    _swap(body, digests=True)
    path.write_bytes(proof_file.canonical(body))
    found = verified(path)
    assert found.answer == "EDITED" and "its content has the hash" in found.reasons[0]
    found = verified(written(made, tmp_path, lambda body: _swap(body, digests=False)))
    assert found.answer == "EDITED"
    assert "its candidate is not the one of its verdict" in found.reasons[0]
    # Whoever makes everything anew has made another proof: only running it tells.
    found = verified(written(made, tmp_path, lambda body: _swap(body, digests=True)))
    assert found.answer == "DIFFERENT"
    assert "pass in the proof, wrong here" in found.reasons[0]


def test_another_version_is_noted(made: Proof, tmp_path: Path) -> None:
    def older(body: Any) -> None:
        body["record"]["environment"]["kernelproof"] = "0.0.9"

    found = verified(written(made, tmp_path, older))
    assert found.answer == "SAME VERDICT"
    assert any(note.startswith("kernelproof: 0.0.9 then") for note in found.notes)

    def newer(body: Any) -> None:
        body["kernelproof"], body["record"]["shadow"] = "9.1", 1

    found = verified(written(made, tmp_path, newer))
    assert found.answer == "NOT VERIFIED" and "made by kernelproof 9.1" in found.reasons[0]
    assert found.verified == ("the file is as it was written (hash)",)


def test_times_of_another_machine_are_not_compared(made: Proof, tmp_path: Path) -> None:
    def elsewhere(body: Any) -> None:
        body["record"]["environment"]["cpu"] = "another"

    found = verified(written(made, tmp_path, elsewhere), timed=True)
    assert found.answer == "SAME VERDICT" and not found.times
    assert found.no_times.startswith("they were taken on another, ")


def test_a_failure_has_a_proof_too(run_cli, tmp_path: Path) -> None:
    path = tmp_path / "proof.json"
    done = run_cli("prove", "rms_norm", str(WRONG), "-o", str(path), "--quick", "--case", "odd")
    assert done.returncode == 1 and "wrong: " in done.stdout, done.stderr
    done = run_cli("verify", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("SAME VERDICT: ")
    path.write_text(path.read_text() + " ")
    done = run_cli("verify", str(path), "--json")
    assert done.returncode == 1 and json.loads(done.stdout)["answer"] == "EDITED"
    for text, words in (("[1, 2]", "is JSON but no proof"), ("Hello", "not even JSON")):
        path.write_text(text)
        done = run_cli("verify", str(path))
        assert done.returncode == 2 and words in done.stderr


def test_a_problem_by_its_path_and_a_folder_with_cuda(tmp_path: Path) -> None:
    problem = tmp_path / "my_recurrence.py"
    shutil.copy(OPERATOR / "problem.py", problem)
    folder = tmp_path / "mine"
    shutil.copytree(FOLDER / "right" / "gated_recurrence__cuda_nvrtc", folder)
    (folder / "table.bin").write_bytes(b"\xff\x00\x01")
    proof = proving.prove(problem, folder, request=ONE)
    assert proof.record.verdict.evidence == "emulated" and proof.record.status == "pass"
    assert proof.candidate.is_folder and "kernel.cu" in proof.candidate.files
    assert list(proof.candidate.binary) == ["table.bin"]
    problem.unlink()
    shutil.rmtree(folder)
    found = verified(written(proof, tmp_path))
    assert found.answer == "SAME VERDICT", found.reasons
    found = verified(written(proof, tmp_path, _from_a_gpu))
    assert found.answer == "NOT VERIFIED"
    assert "its kernels were emulated, which is no such evidence" in found.reasons[0]
    assert "the verdict on a GPU" in found.unverified
    assert "the verdict with the proof's seeds, emulated" in found.verified


def _from_a_gpu(body: Any) -> None:
    body["record"]["verdict"] |= {"device": "cuda", "evidence": "device"}
    body["record"]["environment"]["gpu"] = "NVIDIA H200"


def test_a_gpus_verdict_on_what_cannot_be_emulated(made: Proof, tmp_path: Path) -> None:
    found = verified(written(made, tmp_path, _from_a_gpu))
    assert found.answer == "NOT VERIFIED" and not found.reruns
    assert "pytorch code cannot be emulated" in found.reasons[0]


def test_a_shipped_kernel_is_the_installed_one(tmp_path: Path) -> None:
    proof = proving.prove("gated_recurrence", "cpu", request=ONE)
    assert proof.candidate.shipped == "gated_recurrence/cpu.py"
    assert {"cpu.py", "kernel.cpp"} <= set(proof.candidate.files)
    found = verified(written(proof, tmp_path))
    assert found.answer == "SAME VERDICT", found.reasons
    assert "the installed kernel has the sources of the proof" in found.verified

    def other(body: Any) -> None:
        body["candidate"]["files"]["kernel.cpp"] += "// another\n"
        data = {name: text.encode() for name, text in body["candidate"]["files"].items()}
        digest = candidate.digest_of(data)
        body["candidate"]["digest"] = body["record"]["candidate"]["digest"] = digest

    found = verified(written(proof, tmp_path, other))
    assert found.answer == "NOT VERIFIED" and not found.reruns
    assert "another kernel.cpp in ops/gated_recurrence" in found.reasons[0]


def test_files_stay_in_their_folder(made: Proof, tmp_path: Path) -> None:
    for name in ("../out.py", "/out.py", "a/../../out.py"):
        bad = made.candidate.model_copy(update={"files": {name: "x"}})
        with pytest.raises(UsageError, match="leads out of"):
            sources.lay(bad, tmp_path / "in")
    with pytest.raises(UsageError, match="no plain name"):
        sources.lay(made.candidate.model_copy(update={"name": ".."}), tmp_path / "in")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_written_or_is_too_large_is_said(made: Proof, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot write"):
        proof_file.write(made, tmp_path / "none" / "proof.json")
    (tmp_path / "big").mkdir()
    (tmp_path / "big" / "candidate.py").write_text(RIGHT.read_text())
    with (tmp_path / "big" / "data").open("wb") as handle:
        handle.truncate(sources.MOST_BYTES + 1)
    with pytest.raises(UsageError, match="move what is no source out"):
        sources.of_candidate(candidate.load(tmp_path / "big"))
