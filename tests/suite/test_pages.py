"""A run as text and as a page, from results that were made by hand."""

from __future__ import annotations

from html.parser import HTMLParser

from test_numbers import FOUR, result, run

from kernelproof.report import suite_page, suites
from kernelproof.suite import commands, numbers, runs
from kernelproof.types import Harness, SuiteState


def state(results, left: int = 0) -> SuiteState:
    devices = numbers.by_device(run(), results)
    return SuiteState(run=run(), results=tuple(results), left=left, devices=devices)


class Texts(HTMLParser):
    """The text of each cell."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.tags: list[str] = []
        self.feed(page)
        self.cells = [cell.strip() for cell in self.cells]

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_data(self, data) -> None:
        if self.cells:
            self.cells[-1] += data


def test_the_page_has_the_numbers_and_the_items() -> None:
    evil = result("<script>x</script>", status="wrong", message="<b>no</b>", proof=False)
    made = suite_page.render(state([*FOUR, evil], left=1))
    found = Texts(made)
    assert "script" not in found.tags and "b" in found.tags  # the only <b> is the page's own
    assert "<script>x</script>" in found.cells and "<b>no</b>" in found.cells
    rows = [found.cells[n : n + 5] for n in range(len(found.cells))]
    assert ["eager", "1", "0.400", "0.200", "1"] in rows
    assert "kernelproof suite run --resume r1" in made and "<polyline" in made
    assert found.cells.count("FASTER") == 1


def test_the_picture_begins_at_the_share_that_passes() -> None:
    picture = suite_page._picture(FOUR, 4)
    first = picture.split('class="line" points="')[1].split()[0].split(",")
    height = suite_page._HEIGHT - suite_page._TOP - suite_page._FOOT
    assert float(first[1]) == round(suite_page._TOP + height * (1 - 3 / 4), 1)
    assert suite_page._picture(FOUR[3:], 4) == ""


def test_the_text_tells_numbers_definitions_and_items() -> None:
    text = suites.shown(state(FOUR))
    assert "gpu: 4 items: 3 pass, 1 wrong; 3 pass compat" in text
    assert any(line.split() == ["eager", "1", "0.500", "0.250", "1"] for line in text.splitlines())
    assert "as KernelBench defines it" in text and "counts as 1" in text
    assert "SLOWER" in text and "left" not in text
    short = suites.shown(state(FOUR[3:], left=3), items=False)
    assert "3 of 4 left: kernelproof suite run --resume r1" in short and "KernelBench" not in short
    two = suites.shown(state([*FOUR, result("x", device="another gpu")]))
    assert "another gpu: 1 item: 1 pass" in two


def test_a_result_in_one_line() -> None:
    one = FOUR[0].model_copy(update={"attempts": 3, "place": "gpu 1"})
    assert suites.line(one) == "twice: pass, 500 ms, eager/this 2.00x [1.90, 2.10] FASTER, " \
        "after 2 lost, on gpu 1"  # fmt: skip
    bad = one.model_copy(update={"status": "wrong", "message": "x\n" + 200 * "y"})
    assert suites.line(bad).endswith(", on gpu 1: x " + 98 * "y" + "...")


def test_what_the_harness_would_say_is_shown_where_there_is_one() -> None:
    said = Harness(accepted=False, word="incorrect", reasons=("it copies no weights",))
    one = FOUR[0].model_copy(update={"harness": said})
    text = suites.shown(state([one, *FOUR[1:]]))
    assert "its harness" in text and "incorrect" in text
    assert "its harness" not in suites.shown(state(FOUR))
    found = Texts(suite_page.render(state([one, *FOUR[1:]])))
    assert "incorrect" in found.cells and "its harness: it copies no weights" in found.cells


def test_problems_without_a_candidate_are_told_together(capsys) -> None:
    gone = [result(f"level1/{n}", status="missing", proof=False, attempts=0) for n in range(1, 31)]
    text = suites.shown(state([FOUR[0], *gone]))
    assert "30 problems without a candidate: level1/1, level1/2" in text and ", ..." in text
    assert text.count("missing") == 1  # among the statuses
    page = suite_page.render(state([FOUR[0], *gone]))
    assert "30 problems without a candidate" in page and "level1/30" in page
    cells = Texts(page).cells
    assert "level1/30" not in cells and "twice" in cells and "its harness" not in cells
    assert "answer" in cells and "answer" not in Texts(suite_page.render(state(FOUR[3:]))).cells
    with commands.Shown() as shown:
        for number, one in enumerate([*gone, FOUR[0]], 1):
            shown.told(one, number, 31)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "30 problems without a candidate: missing" and len(lines) == 2
    assert lines[1].startswith("[31/31] twice: pass")


def test_numbers_in_names_are_in_order() -> None:
    names = ["level1/9", "level1/10", "level1/10/1", "level2/1", "a", "level1/9/2"]
    assert sorted(names, key=runs.by_name) == [
        "a", "level1/9", "level1/9/2", "level1/10", "level1/10/1", "level2/1"
    ]  # fmt: skip


def test_two_runs_in_words() -> None:
    a, b = state(FOUR), state([result("twice", (9.0, 8.9, 9.1, "FASTER")), *FOUR[1:]])
    text = suites.compared(numbers.compare(a, b))
    assert any(line.split()[:2] == ["twice", "faster"] for line in text.splitlines())
    assert "3 items alike, 1 of them by status only" in text
    assert "nothing differs" in suites.compared(numbers.compare(a, a))


def test_the_rate_and_the_time_left() -> None:
    assert commands.rate(10, 50.0, 20) == "12 a minute, 100 s left"
    assert commands.rate(10, 50.0, 60) == "12 a minute, 5 min left"
    assert commands.rate(0, 50.0, 60) == ""


def test_only_options_that_are_not_the_usual_are_kept() -> None:
    assert commands.given(seeds=5, level="quick", device=None) == {"level": "quick"}
