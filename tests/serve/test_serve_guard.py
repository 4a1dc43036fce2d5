"""Who may ask what of the pages."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from kernelproof.errors import UsageError
from kernelproof.serve import Access, application

TOKEN = "a-token-of-enough-length"
OPEN = "0.0.0.0"
STORE = ""


@pytest.fixture(scope="module", autouse=True)
def _store(tmp_path_factory: pytest.TempPathFactory) -> None:
    global STORE
    STORE = f"sqlite:///{tmp_path_factory.mktemp('guard') / 's.sqlite'}"


def client(access: Access, name: str = "127.0.0.1") -> Any:
    made = application(STORE, access)
    return TestClient(made, base_url=f"http://{name}:8000", follow_redirects=False)


def test_an_address_that_others_reach_needs_a_token() -> None:
    with pytest.raises(UsageError, match=r"--host 0\.0\.0\.0: whoever reaches this address would"):
        Access(OPEN)
    with pytest.raises(UsageError, match="and run code on this machine; give a token"):
        Access("192.168.1.5", allow_submit=True)
    with pytest.raises(UsageError, match="--token has 5 characters; at least 16"):
        Access("127.0.0.1", "short")
    Access("::1")


@pytest.mark.parametrize(
    ("host", "asked", "answered"),
    [
        ("127.0.0.1", "127.0.0.1:8000", True),
        ("127.0.0.1", "localhost:9000", True),
        ("127.0.0.1", "LOCALHOST.", True),
        ("::1", "[::1]:8000", True),
        ("127.0.0.1", "evil.example", False),
        ("127.0.0.1", "evil.example:8000", False),
        ("127.0.0.1", "127.0.0.1.evil.example", False),
        ("127.0.0.1", "10.0.0.7", False),
        ("127.0.0.1", "", False),
        ("127.0.0.1", "bench.example", True),
        (OPEN, "10.0.0.7:8000", True),
        (OPEN, "[fe80::1]:8000", True),
        (OPEN, "evil.example", False),
    ],
)
def test_only_its_own_names_are_answered(host: str, asked: str, answered: bool) -> None:
    access = Access(host, TOKEN, names=("bench.example",))
    headers = {"authorization": f"Bearer {TOKEN}", "host": asked}
    code = client(access).get("/sessions", headers=headers).status_code
    assert code == (200 if answered else 421)


def test_a_token_is_asked_for_everywhere() -> None:
    one = client(Access(OPEN, TOKEN), "10.0.0.7")
    for path in ("/", "/static/live.js", "/records/abcd.json", "/nothing"):
        answer = one.get(path)
        assert answer.status_code == 401 and "?token=TOKEN" in answer.text
    assert one.get("/?token=another-of-enough-length").status_code == 401
    assert one.get("/", headers={"authorization": f"Basic {TOKEN}"}).status_code == 401
    assert one.get("/", headers={"cookie": f"kernelproof={TOKEN}"}).status_code == 401
    assert one.get("/", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_a_token_in_an_address_becomes_a_cookie() -> None:
    one = client(Access(OPEN, TOKEN), "10.0.0.7")
    answer = one.get(f"/sessions?a=1&token={TOKEN}&b=2")
    assert answer.status_code == 303 and answer.headers["location"] == "/sessions?a=1&b=2"
    kept = answer.headers["set-cookie"]
    assert TOKEN not in kept and "HttpOnly" in kept and "SameSite=lax" in kept
    assert one.get("/sessions").status_code == 200
    # Two slashes would lead to another machine.
    away = one.get(f"http://10.0.0.7:8000//evil.example/?token={TOKEN}")
    assert away.headers["location"] == "/evil.example/"


def test_a_cookie_of_another_run_is_of_no_use() -> None:
    old = Access(OPEN, TOKEN)
    one = client(Access(OPEN, TOKEN), "10.0.0.7")
    assert one.get("/", headers={"cookie": f"kernelproof={old.cookie}"}).status_code == 401


def test_read_only_unless_asked() -> None:
    one = client(Access())
    for path in ("/sessions", "/sessions/abcd/calls", "/"):
        answer = one.post(path, json={"problem": "axpby"})
        assert answer.status_code == 403 and "--allow-submit" in answer.text
    assert one.put("/sessions").status_code == 405


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:8001"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_nothing_is_taken_from_another_site(headers: dict[str, str]) -> None:
    one = client(Access(allow_submit=True))
    answer = one.post("/sessions", json={"problem": "axpby"}, headers=headers)
    assert answer.status_code == 403, answer.text
    assert one.post("/sessions", json={"problem": "none"}).status_code == 400


def test_every_answer_tells_the_browser_what_it_may_do() -> None:
    one = client(Access())
    for path in ("/", "/nothing", "/static/style.css"):
        headers = one.get(path, headers={"accept": "text/html"}).headers
        rule = headers["content-security-policy"]
        assert "default-src 'none'" in rule and "script-src 'self'" in rule
        assert "unsafe" not in rule and "frame-ancestors 'none'" in rule
        assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "path",
    [
        "/static/app.py", "/static/..%2fapp.py", "/static/../guard.py", "/static//etc/passwd",
        "/static/%2e%2e/%2e%2e/cli.py", "/records/..%2f..", "/records/%25", "/sessions/_",
        "/problems/..%2f..%2fpyproject", "/sessions/zzzz",
    ],
)  # fmt: skip
def test_nothing_else_has_an_address(path: str) -> None:
    answer = client(Access()).get(path)
    assert answer.status_code == 404 and "import" not in answer.text
