"""Value families: what they keep, and the bugs that they show."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kernelproof import problem
from kernelproof.check import Plan, check, families, spreading

X = torch.randn(6, 40, generator=torch.Generator().manual_seed(1))
SQUARE = torch.randn(20, 20, generator=torch.Generator().manual_seed(2))


def first(name: str, *inputs: torch.Tensor) -> list[torch.Tensor]:
    return next(iter(families.varied(name, list(inputs), 5)))


@pytest.mark.parametrize(
    ("x", "kind"),
    [
        (X, "real"),
        (X.abs(), "positive"),
        (torch.softmax(X, dim=-1), "fixed"),
        (torch.softmax(X, dim=0), "fixed"),
        (X.sign(), "fixed"),
        (torch.linspace(-1, 1, 50), "ordered"),
        (torch.tensor(0.3), "ordered"),
        (torch.triu(torch.rand(2, 9, 9)), "ordered"),
        (torch.tril(torch.rand(40, 50)), "ordered"),
        (torch.triu(torch.tril(torch.randn(12, 12), 1), -1), "ordered"),
        (SQUARE + SQUARE.T, "ordered"),
        (SQUARE @ SQUARE.T, "ordered"),
        (SQUARE - SQUARE.T, "ordered"),
        (SQUARE, "real"),
        (SQUARE.relu(), "positive"),
        (torch.randn(2, 2) @ torch.eye(2), "real"),
        (torch.arange(9), "integer"),
        (X > 0, "integer"),
        (torch.empty(0, 3), "fixed"),
        (torch.tensor([1.0, torch.inf, 2.0]), "fixed"),
        (torch.complex(X, X), "fixed"),
    ],
)
def test_what_an_input_may_become_is_read_from_how_it_was_drawn(x: torch.Tensor, kind) -> None:
    assert families.kind(x) == kind


def test_scaled_numbers_keep_their_digits_and_sign() -> None:
    assert torch.equal(first("large", X)[0] / families.LARGE, X)
    assert torch.equal(first("tiny", X)[0] / families.TINY, X)
    assert bool((first("zeros", X.abs())[0] >= 0).all())
    assert first("tiny", X.half())[0].dtype == torch.float16


def test_each_family_is_what_it_says() -> None:
    zeros = first("zeros", X)[0]
    assert 0.2 < float((zeros == 0).double().mean()) < 0.5
    assert torch.equal(zeros[zeros != 0], X[zeros != 0])
    a, b = first("sparse", X, X)
    assert (a != 0).sum(dim=1).tolist() == [1] * 6 and torch.equal(b, X)
    y = first("cancellation", X)[0]
    assert float(y.sum(dim=1).abs().max()) < 0.05 * float(y.abs().sum(dim=1).min())
    rows = first("constant rows", X)[0]
    assert bool((rows == rows[:, :1]).all()) and bool((rows != 0).all())
    assert torch.equal(rows.cumsum(dim=1)[:, -1], 40 * rows[:, 0])
    nan = first(families.NAN, X)[0]
    assert int(nan.isnan().sum()) == 1 and int(nan.isinf().sum()) == 1
    assert X.isfinite().all()


def test_two_numbers_change_places() -> None:
    made = first("exchanged", X)[0]
    moved = made != X
    assert int(moved.sum()) == 2 and torch.equal(made.flatten().sort()[0], X.flatten().sort()[0])
    assert made.flatten()[int(X.argmin())] == X.max()
    view = X.t()[3:]
    assert first("exchanged", view)[0].shape == view.shape and int((X != X).sum()) == 0


def test_a_result_that_is_kept_by_a_few_elements_or_by_a_sum(tmp_path: Path) -> None:
    reference = load(tmp_path, "return torch.cumsum(x, dim=-1)")
    for fingerprint in (
        lambda x: (float(x[0, 0]), float(x[-1, -1])),
        lambda x: int(x.contiguous().view(torch.int32).sum()),
    ):
        kept: dict = {}

        def cached(x, kept=kept, fingerprint=fingerprint):
            key = tuple(x.shape), fingerprint(x)
            if key not in kept:
                kept[key] = torch.cumsum(x, dim=-1)
            return kept[key].clone()

        verdict = judged(reference, cached)
        assert verdict.status == "wrong" and "default [exchanged]" in verdict.message
        assert "kept between calls" in verdict.message


def test_the_last_inputs_are_left_out_in_turn() -> None:
    versions = list(families.varied("large", [X, X, X], 5))
    assert [[bool(torch.equal(t, X)) for t in v] for v in versions] == [
        [False, False, False], [False, False, True], [False, True, True],
    ]  # fmt: skip


@pytest.mark.parametrize("x", [torch.softmax(X, dim=-1), X > 0, torch.empty(0)])
def test_a_family_that_changes_nothing_has_no_version(x: torch.Tensor) -> None:
    assert list(families.varied("large", [x], 5)) == []


def test_integers_take_observed_values_only_and_all_of_them() -> None:
    target = torch.randint(0, 9, (400,), generator=torch.Generator().manual_seed(2))
    target[::5] = -100
    made = first("integers", target)[0]
    assert set(made.tolist()) == set(target.tolist()) and made.dtype == torch.int64
    skewed = torch.tensor([[0] * 90 + [127, 3, -128, 0]], dtype=torch.int8)
    made = first("integers", skewed)[0]
    assert {127, -128} <= set(made.flatten().tolist()) and int((made == 0).sum()) < 60


def test_order_and_uniqueness_of_integers_are_kept() -> None:
    for kept in (torch.arange(9), torch.tensor([0, 3, 3, 7]), torch.ones(5, 5).tril().bool()):
        assert list(families.varied("integers", [kept], 5)) == []
    places = torch.randperm(30, generator=torch.Generator().manual_seed(3))
    made = first("integers", places)[0]
    assert sorted(made.tolist()) == list(range(30)) and made.tolist() != places.tolist()


def test_only_weights_of_one_number_are_changed() -> None:
    state = {
        "weight": torch.ones(20), "bias": torch.zeros(20), "running_var": torch.full((20,), 2.0),
        "drawn": X, "steps": torch.zeros(3, dtype=torch.int64), "one": torch.tensor(1.0),
    }  # fmt: skip
    made = families.weights(state, 5)
    assert made is not None and list(made) == list(state)
    changed = {name for name in state if not torch.equal(made[name], state[name])}
    assert changed == {"weight", "bias", "running_var"}
    assert bool((made["running_var"] >= 1).all()) and bool((made["running_var"] <= 3).all())
    assert families.weights({"drawn": X}, 5) is None


def test_fit_to_judge_by() -> None:
    nan = torch.tensor([1.0, torch.nan])
    assert families.meaningful("large", [X, torch.arange(3), "text"])
    assert not families.meaningful("large", [X, nan])
    assert families.meaningful(families.NAN, [nan])
    assert not families.meaningful(families.NAN, [nan[1:]])
    truth = X.double()
    assert not families.ill_conditioned(truth, X, truth * 1e-6)
    assert families.ill_conditioned(truth, X, truth * 1e-2)
    assert not families.ill_conditioned(truth * 0, X * 0, truth)


def test_numbers_are_excused_only_where_the_reference_has_none() -> None:
    value = torch.tensor([[1.0, torch.nan, torch.inf, 2.0], [1.0, 2.0, 3.0, 4.0]])
    got = torch.tensor([[7.0, 3.0, torch.nan, torch.nan], [1.0, torch.nan, torch.inf, 4.0]])
    same, lost = families.excused(got, value)
    # Nothing finite is excused, in any row, and no NaN in a row that has none.
    assert same[0, 0] == 7 and same[1, 1].isnan() and same[1, 2].isinf()
    assert same[0, 1].isnan() and same[0, 2].isinf() and same[0, 3] == 2
    assert lost == 1
    assert families.excused(got.double(), value)[0].dtype == torch.float64


class Local:
    """A candidate in this process: a function of the inputs and of the state."""

    def __init__(self, function, weights: str = "by name (strict)") -> None:
        self.function = function
        self.weights = weights
        self.state: dict[str, torch.Tensor] = {}

    def construct(self, args, kwargs, seed, state) -> str:
        self.state = state
        return self.weights

    def call(self, inputs, seed, poison, repeats):
        facts = {"mutated": [], "views_input": [], "reused": [], "devices": ["cpu"]}
        out = self.function(*inputs, **self.state)
        return [{"output": out, **facts} for _ in range(repeats)]


def load(folder: Path, body: str, inputs: str = "torch.randn(8, 33)", init: str = ""):
    path = folder / "p.py"
    path.write_text(
        f"import torch\nclass Model(torch.nn.Module):\n{init}"
        f"    def forward(self, x, *rest):\n        {body}\n"
        f"def get_inputs(): return [{inputs}]\n"
    )
    return problem.load(path)


def judged(reference, function, level="default", **options):
    return check(reference, Local(function, **options), Plan(seeds=(1, 2), level=level))


def softmax_without_maximum(x):
    e = x.exp()
    return e / e.sum(dim=-1, keepdim=True)


def test_a_kernel_that_is_right_for_small_values_only(tmp_path: Path) -> None:
    reference = load(tmp_path, "return torch.softmax(x, dim=-1)")
    verdict = judged(reference, softmax_without_maximum)
    assert verdict.status == "wrong" and "case default [large]: " in verdict.message
    assert judged(reference, softmax_without_maximum, level="quick").status == "pass"
    assert judged(reference, lambda x: torch.softmax(x.double(), -1).float()).status == "pass"


NORM = (
    "    def __init__(self):\n        super().__init__()\n        self.n = torch.nn.LayerNorm(33)\n"
)


def layer_norm(x, **state):
    return torch.nn.functional.layer_norm(x, [33], state.get("n.weight"), state.get("n.bias"))


def test_a_kernel_that_ignores_a_weight_of_ones(tmp_path: Path) -> None:
    reference = load(tmp_path, "return self.n(x)", init=NORM)

    def ignoring(x, **state):
        return layer_norm(x, **{"n.bias": state["n.bias"]})

    verdict = judged(reference, ignoring)
    assert verdict.status == "wrong" and "case default [weights]: " in verdict.message
    verdict = judged(reference, layer_norm)
    assert verdict.status == "pass", verdict.message
    assert "default [weights]" in {run.name for run in verdict.runs}


def test_a_candidate_without_weights_is_not_blamed_and_that_is_said(tmp_path: Path) -> None:
    reference = load(tmp_path, "return self.n(x)", init=NORM)
    verdict = judged(
        reference, lambda x, **state: layer_norm(x), weights="same seed only: 0 tensors"
    )
    assert verdict.status == "pass"
    assert any("weights as initialised only" in note for note in verdict.notes)


def test_the_reference_has_its_own_weights_again_afterwards(tmp_path: Path) -> None:
    reference = load(tmp_path, "return self.n(x)", init=NORM)
    seen: list[float] = []

    def watching(x, **state):
        seen.append(float(state["n.weight"][0]))
        return layer_norm(x, **state)

    assert judged(reference, watching, level="thorough").status == "pass"
    assert set(seen[:4]) == {1.0} and len(set(seen)) == 2


def test_nan_that_spreads_is_wrong_and_nan_that_is_lost_is_a_note(tmp_path: Path) -> None:
    reference = load(
        tmp_path, "return torch.where(rest[0], x, 0).relu()",
        inputs="torch.randn(8, 33), torch.rand(8, 33) < 0.3",
    )  # fmt: skip
    verdict = judged(reference, lambda x, keep: (x * keep).relu())
    assert verdict.status == "wrong" and "[NaN and infinity]" in verdict.message
    losing = judged(reference, lambda x, keep: torch.where(keep, x, 0).nan_to_num().relu())
    assert losing.status == "pass"


def test_what_the_reference_does_not_bear_is_left_out_and_named(tmp_path: Path) -> None:
    reference = load(tmp_path, "return x.exp().exp()")
    verdict = judged(reference, lambda x: x.exp().exp())
    assert verdict.status == "pass"
    (note,) = [n for n in verdict.notes if "without" in n]
    assert note.startswith("case default without large")
    assert "default [large]" not in {run.name for run in verdict.runs}


def test_ties_are_left_out_where_the_output_is_an_index(tmp_path: Path) -> None:
    reference = load(tmp_path, "return x.argmax(dim=-1)")
    last = judged(reference, lambda x: 32 - x.flip(-1).argmax(dim=-1))
    assert last.status == "pass", last.message
    assert {run.name for run in last.runs} >= {"default [large]", "default [offset]"}


def test_thorough_is_families_by_layouts_and_other_sizes(tmp_path: Path) -> None:
    path = tmp_path / "sized.py"
    path.write_text(
        "import torch\nrows = 40\ncolumns = 70\nclass Model(torch.nn.Module):\n"
        "    def forward(self, x): return x.cumsum(-1)\n"
        "def get_inputs(): return [torch.randn(rows, columns)]\n"
    )
    verdict = judged(problem.load(path), lambda x: x.cumsum(-1), level="thorough")
    cases = {run.name for run in verdict.runs}
    assert verdict.status == "pass", verdict.message
    assert {"default [large, transposed]", "default [rows=1]", "default [columns=65]"} <= cases

    def whole_tiles_only(x):
        y = x.cumsum(-1)
        return y if x.shape[0] % 8 == 0 else y * 0

    verdict = judged(problem.load(path), whole_tiles_only, level="thorough")
    assert verdict.status == "wrong" and "[rows=1]" in verdict.message
    assert judged(problem.load(path), whole_tiles_only).status == "pass"


def test_variants_end_when_their_time_is_over(tmp_path: Path) -> None:
    reference = load(tmp_path, "return x * 2")
    plan = Plan(seeds=(1,), level="default", extra_seconds=0.0)
    verdict = check(reference, Local(lambda x: x * 2), plan)
    assert verdict.status == "pass" and len(verdict.runs) == 1
    assert any("the time for variants (0 s) was over" in note for note in verdict.notes)


def test_a_kernel_may_rely_on_the_kind_of_a_matrix(tmp_path: Path) -> None:
    drawn = "torch.triu(torch.rand(16, 16)), (lambda s: s + s.T)(torch.rand(16, 16))"
    reference = load(tmp_path, "return torch.tril(x) @ rest[0]", inputs=drawn)
    verdict = judged(reference, lambda x, s: x.diagonal()[:, None] * s.T)
    assert verdict.status == "pass", verdict.message
    assert {run.name for run in verdict.runs} >= {"default [large]", "default [transposed]"}
    assert judged(reference, lambda x, s: x @ s).status == "wrong"


def test_nan_may_spread_where_numbers_cancel(tmp_path: Path) -> None:
    inputs = "torch.randn(8, 33), torch.randn(33, 17).tril()"
    reference = load(tmp_path, "return (x @ rest[0]).relu()", inputs=inputs)

    def two_rows_at_once(x, w):
        both, apart = (x[::2] + x[1::2]) @ w, (x[::2] - x[1::2]) @ w
        return torch.stack((both + apart, both - apart), dim=1).flatten(0, 1).relu() / 2

    verdict = judged(reference, two_rows_at_once)
    assert verdict.status == "pass", verdict.message
    (found,) = [c for c in verdict.checks if c.name == "NaN and infinity propagate"]
    assert found.outcome == "note" and "cancels" in found.message

    def others_times_zero(x, w):
        return x.matmul(w).relu() + 0 * x.sum()

    assert "[NaN and infinity]" in judged(reference, others_times_zero).message


def test_what_hangs_on_the_numbers_where_nan_was() -> None:
    x = torch.tensor([[1.0, torch.nan, 3.0], [torch.inf, 5.0, 6.0]])
    ordinary = spreading.finite([x, 2], 0)
    assert torch.isfinite(ordinary[0]).all() and ordinary[1] == 2 and ordinary[0][0, 1] in x
    assert spreading.finite([x], 0, 4.0)[0][1, 0] == 24
    got, value = torch.tensor([1.0, torch.nan, torch.nan]), torch.tensor([1.0, 2.0, torch.inf])
    where = spreading.places(got, value)
    assert where.tolist() == [False, True, False]
    assert spreading.filled(got, value)[1] == 2 and spreading.filled(got, value)[2].isnan()
    assert spreading.places(value, value) is None and spreading.places(3, value) is None
    one, two = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.5, 3.0])
    assert spreading.felt([where], [one], [one], [two])
    assert not spreading.felt([where], [one], [one], [one])
    # What differs between two calls with the same numbers tells nothing.
    assert not spreading.felt([where], [one], [two], [two])
