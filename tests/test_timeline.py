"""Stages of a command: counted where somebody asked for them, and free where nobody did."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from kernelproof import timeline


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> timeline.Timeline:
    found = timeline.Timeline()
    monkeypatch.setattr(timeline, "_timeline", found)
    return found


def stages(found: timeline.Timeline) -> dict[str, dict[str, object]]:
    return {str(row["stage"]): row for row in found.rows()}


def test_a_stage_is_counted_with_those_inside_it(noted: timeline.Timeline) -> None:
    with timeline.span("outer"):
        for _ in range(3):
            with timeline.span("inner"):
                pass
    rows = stages(noted)
    assert rows["inner"]["times"] == 3 and rows["outer"]["times"] == 1
    assert rows["outer"]["began"] <= rows["inner"]["began"]  # type: ignore[operator]
    assert rows["outer"]["seconds"] >= rows["inner"]["seconds"]  # type: ignore[operator]


def test_a_stage_that_fails_is_counted(noted: timeline.Timeline) -> None:
    with pytest.raises(ValueError), timeline.span("failing"):
        raise ValueError
    assert stages(noted)["failing"]["times"] == 1


def test_what_another_thread_does_is_beside_the_others(noted: timeline.Timeline) -> None:
    def work() -> None:
        with timeline.span("work"):
            pass

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    work()
    assert sorted((row["beside"], row["times"]) for row in noted.rows()) == [(False, 1), (True, 1)]


def test_marks_follow_each_other(noted: timeline.Timeline) -> None:
    timeline.mark("first")
    timeline.mark("second")
    rows = stages(noted)
    first, second = rows["first"], rows["second"]
    assert first["began"] == 0.0
    assert second["began"] >= first["seconds"]  # type: ignore[operator]


def test_time_begins_with_the_process() -> None:
    # The interpreter, pytest and torch have been started since.
    assert timeline.Timeline().now() > 0.05


def test_stages_are_told_as_text_or_in_a_file(
    noted: timeline.Timeline, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noted.stages[False, "check"] = [0.5, 1.25, 2]
    noted.stages[True, "start a worker"] = [0.25, 0.5, 1]
    noted.stages[False, "short"] = [0.5, 0.001, 1]
    noted.tell("1")
    said = capsys.readouterr().err
    assert "   0.50s    1.25s  check (2 times)" in said
    assert "   0.25s    0.50s  | start a worker\n" in said
    assert "short" not in said and "the whole command" in said
    noted.tell(str(tmp_path / "stages.json"))
    rows = json.loads((tmp_path / "stages.json").read_text())
    assert {"stage": "short", "began": 0.5, "seconds": 0.001, "times": 1, "beside": False} in rows


def test_nothing_is_noted_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KERNELPROOF_TIMELINE", raising=False)
    monkeypatch.setattr(timeline, "_timeline", None)
    timeline.begin()
    with timeline.span("unseen"):
        timeline.mark("unseen")
    assert timeline._timeline is None


def test_stages_of_another_process_are_added_where_they_belong(noted: timeline.Timeline) -> None:
    with timeline.span("outer"):
        began = timeline.moment()
        with timeline.during(True, time.monotonic() - 5.0) as rows:
            timeline.mark("wait")
            with timeline.span("work"):
                pass
        timeline.adopt(rows(), began)
    found = stages(noted)
    # Noted for the other alone, and shifted to where this one stood.
    assert set(found) == {"outer", "wait", "work"}
    assert found["wait"]["began"] == pytest.approx(began)
    assert found["wait"]["seconds"] >= 5.0  # type: ignore[operator]
    assert found["work"]["began"] >= began + 5.0  # type: ignore[operator]
    with timeline.during(False, 0.0) as rows, timeline.span("unseen"):
        pass
    assert rows() == [] and "unseen" not in stages(noted)
