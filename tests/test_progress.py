"""What a command shows while it works, where no terminal is."""

from __future__ import annotations

from kernelproof import progress


def test_of_many_cases_a_log_has_one_in_some_seconds_and_of_stages_each(
    monkeypatch, capsys
) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with progress.Shown() as told:
        for number in range(5):
            now = number * 0.7
            told(f"check case_{number}", number, 5)
        for what in ("prepare eager", "prepare mine", "time", "time", "check what was timed"):
            told(what, 0, 1)
        told("mla_kv cpu: check one", 0, 1)
        told("mla_kv cpu: check two", 0, 1)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "check case_0 ...", "check case_3 ...", "prepare eager ...", "prepare mine ...", "time ...",
        "check what was timed ...", "mla_kv cpu: check one ...",
    ]  # fmt: skip
