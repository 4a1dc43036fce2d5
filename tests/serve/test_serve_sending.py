"""Sessions opened and candidates judged over HTTP."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from shop import RIGHT, RULES, WRONG
from starlette.testclient import TestClient

from kernelproof import session
from kernelproof.serve import Access, application, calls
from kernelproof.types import CallAnswer, Started


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 's.sqlite'}"


@pytest.fixture
def pages(url: str) -> Iterator[Any]:
    made = application(url, Access(allow_submit=True))
    with TestClient(made, base_url="http://localhost", follow_redirects=False) as one:
        yield one


@pytest.fixture
def opened(url: str) -> str:
    return session.start("axpby", RULES, store=url).session.id


def fields(page: str) -> dict[str, str]:
    return dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page))


def test_a_session_by_json(pages: Any, url: str) -> None:
    answer = pages.post("/sessions", json={"problem": "axpby", "budget": 1})
    assert answer.status_code == 201, answer.text
    made = Started.model_validate_json(answer.text)
    path = f"/sessions/{made.session.id}/calls"
    broken = {"what": "compile", "candidate": RIGHT.replace("import torch.nn", "import (")}
    found = CallAnswer.model_validate_json(pages.post(path, json=broken).text)
    assert found.status == "compile_error" and found.session.left == 0 and found.record is None
    over = pages.post(path, json=broken)
    assert over.status_code == 400 and "has 0 of its 1 calls left" in over.text
    assert len(session.log(made.session.id, store=url).attempts) == 1


def test_a_session_by_forms(pages: Any, url: str) -> None:
    form = fields(pages.get("/problems/axpby").text)
    answer = pages.post("/sessions", data={**form, "budget": "2"})
    assert answer.status_code == 303
    path = answer.headers["location"]
    form = fields(pages.get(path).text)
    answer = pages.post(f"{path}/calls", data={**form, "what": "compile", "candidate": RIGHT})
    assert (answer.status_code, answer.headers["location"]) == (303, path)
    deadline = time.monotonic() + 60
    while "compiles" not in (text := pages.get(path).text) and "constructs" not in text:
        assert time.monotonic() < deadline, text
        if re.search(r'mark pass">pass', text):
            break
        time.sleep(0.1)
    # The next attempt begins with the last one.
    assert "class ModelNew(nn.Module)" in pages.get(path).text.partition("<textarea")[2]


def test_sources_beside_a_candidate(pages: Any, opened: str, url: str) -> None:
    path = f"/sessions/{opened}"
    form = {**fields(pages.get(path).text), "what": "compile", "candidate": RIGHT}
    answer = pages.post(f"{path}/calls", data=form, files={"files": ("note.h", b"// text\n")})
    assert answer.status_code == 303, answer.text
    assert session.source_of(opened, 1, store=url).files["note.h"] == "// text\n"
    for name, content, words in (
        ("x.bin", b"\xff\xfe", "is no text in UTF-8"), ("../x.h", b"\n", "leads out of"),
    ):  # fmt: skip
        answer = pages.post(f"{path}/calls", data=form, files={"files": (name, content)})
        assert answer.status_code == 400 and words in answer.text, answer.text


def test_a_form_of_another_run_is_not_taken(pages: Any, opened: str, url: str) -> None:
    other = TestClient(application(url, Access(allow_submit=True)), base_url="http://localhost")
    form = fields(other.get(f"/sessions/{opened}").text)
    answer = pages.post(f"/sessions/{opened}/calls", data={**form, "what": "check"})
    assert answer.status_code == 403 and "load it again" in answer.text
    answer = pages.post(f"/sessions/{opened}/calls", data={"what": "check", "candidate": WRONG})
    assert answer.status_code == 403
    assert not session.log(opened, store=url).attempts


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ({"what": "check", "candidate": "tests/x.py"}, 400, "text of a Python module"),
        ({"what": "check", "candidate": "/etc/passwd\n"}, 400, "text of a Python module"),
        ({"what": "erase", "candidate": RIGHT}, 400, "no call 'erase'; there are compile,"),
        ({"what": "check"}, 400, "candidate: Field required; the fields are"),
        ({"what": "check", "candidate": RIGHT, "store": "x"}, 400, "store: Extra inputs"),
        ({"what": "check", "candidate": RIGHT, "name": "../x"}, 400, "is not a Python name"),
        ([1], 400, "no object with fields"),
        ({"candidate": "x" * (calls.MOST_BYTES + 1)}, 413, "more than"),
    ],
)
def test_what_is_not_taken(pages: Any, opened: str, url: str, body, code, words) -> None:
    answer = pages.post(f"/sessions/{opened}/calls", json=body)
    assert (answer.status_code, words in answer.text) == (code, True), answer.text[:300]
    assert not session.log(opened, store=url).attempts


def test_only_problems_that_come_with_kernelproof(pages: Any, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("class Model: pass\n")
    answer = pages.post("/sessions", json={"problem": str(path)})
    assert answer.status_code == 400 and "comes with kernelproof; there are" in answer.text
    assert pages.post("/sessions", content=b"{", headers={"content-type": "application/json"}
                      ).status_code == 400  # fmt: skip
    assert pages.post("/sessions/ffff/calls", json={}).status_code == 400
