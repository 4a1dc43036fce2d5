"""The pages as HTML: what they show, and that what candidates say is text."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

import pytest
from shop import EVIL, Shop
from starlette.testclient import TestClient

from kernelproof.serve import Access, application
from kernelproof.serve.pages import PAGES


@pytest.fixture(scope="module")
def pages(shop: Shop) -> Any:
    headers = {"accept": "text/html"}
    return TestClient(application(shop.url, Access()), base_url="http://localhost", headers=headers)


def test_a_record_is_found_from_the_board(pages: Any, shop: Shop) -> None:
    board = pages.get("/").text
    assert f'href="/records/{shop.record}"' in board and 'href="/problems/axpby"' in board
    record = pages.get(f"/records/{shop.record}").text
    assert "The candidate computes the same function." in record and "Time per call" in record
    assert json.loads(pages.get(f"/records/{shop.record}.json").text)["id"] == shop.record
    whole = pages.get(f"/records/{shop.record}/report.html")
    assert "plotly.js v" in whole.text and "unsafe-inline" in whole.headers[
        "content-security-policy"
    ]  # fmt: skip


def test_the_board_of_one_problem_and_baseline(pages: Any) -> None:
    assert "axpby" in pages.get("/?problem=axpby").text
    other = pages.get("/?problem=rms_norm&baseline=torch.compile").text
    assert "No timed record beside torch.compile yet" in other and "/records/" not in other


def test_problems_with_source_and_cases(pages: Any, shop: Shop) -> None:
    every = pages.get("/problems").text
    assert 'href="/problems/mla_kv"' in every
    one = pages.get("/problems/axpby").text
    for text in ("def get_inputs", "none_valid", "timed beside eager", shop.session):
        assert text in one
    assert "Open a session" not in one
    gone = pages.get("/problems/none")
    assert gone.status_code == 404 and "no problem &#39;none&#39;: neither" in gone.text


def test_the_ladder_of_a_session(pages: Any, shop: Shop) -> None:
    text = pages.get(f"/sessions/{shop.session}").text
    assert text.count('<tbody id="attempt-') == 3 and "the best so far: attempt 3" in text
    assert '<span class="plus">+' in text and "beta * x" in text
    assert f'href="/records/{shop.record}"' in text and "<form" not in text
    assert f'data-events="/sessions/{shop.session}/events"' in text
    assert pages.get(f"/sessions/{shop.session[:6]}").status_code == 200
    assert shop.session in pages.get("/sessions").text


def test_an_attempt_shows_its_sources_and_its_answer(pages: Any, shop: Shop) -> None:
    text = pages.get(f"/sessions/{shop.session}/attempts/1").text
    assert "class ModelNew" in text and "wrong" in text
    gone = pages.get(f"/sessions/{shop.session}/attempts/9")
    assert gone.status_code == 404 and "has no attempt 9; it has 3" in gone.text


def test_what_a_candidate_says_is_text(pages: Any, shop: Shop) -> None:
    paths = [f"/sessions/{shop.session}{rest}" for rest in ("", "/attempts/1", "/attempts/2")]
    shown = 0
    for path in [*paths, f"/records/{shop.record}", "/records", "/"]:
        text = pages.get(path).text
        assert EVIL not in text and "alert('" not in text
        shown += html.escape(EVIL) in text.replace("&#39;", "&#x27;")
    assert shown >= 2


def test_charts_run_by_a_nonce_that_is_new_each_time(pages: Any, shop: Shop) -> None:
    rules = [pages.get(f"/records/{shop.record}").headers["content-security-policy"]
             for _ in range(2)]  # fmt: skip
    assert "'nonce-" in rules[0] and rules[0] != rules[1]
    assert "script-src 'self' 'unsafe-eval' 'nonce-" in rules[0]


def test_a_program_gets_plain_words(pages: Any) -> None:
    answer = pages.get("/records/abcd", headers={"accept": "*/*"})
    assert answer.status_code == 404 and answer.text.startswith("no record begins with 'abcd'")


def test_an_empty_store_says_what_fills_it(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 's.sqlite'}"
    empty = TestClient(application(store, Access()), base_url="http://localhost")
    assert "kernelproof bench PROBLEM CANDIDATE" in empty.get("/").text
    assert "No records yet" in empty.get("/records").text
    assert "No sessions yet" in empty.get("/sessions").text


def test_every_page_has_its_template() -> None:
    from kernelproof.serve.app import TEMPLATES

    assert all((TEMPLATES / one.template).is_file() for one in PAGES)


def test_the_report_of_a_session(shop: Shop, run_cli: Any, tmp_path: Any) -> None:
    path = tmp_path / "s.html"
    words = ("report", "--session", shop.session, "-o", str(path), "--store", shop.url)
    done = run_cli(*words)
    assert done.returncode == 0, done.stderr
    text = path.read_text()
    assert "the best so far: attempt 3" in text and text.count('<section class="record"') == 3
    assert EVIL not in text and 'href="/' not in text and text.count("* plotly.js v") == 1
    assert run_cli(*words, "--ladder", "x.json").returncode == 2
