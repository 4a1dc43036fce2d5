"""How often the timing's answers are right, and its intervals true: simulated rounds, no clock.

    python benchmarks/timing_answers.py [--runs 1000]

Writes results/timing-answers.json. Two contestants take exp(noise) each; noise is normal or a
first-order autoregression; both drift by 10 %; outliers take a fifth longer. A run looks at the
rounds as the protocol does, and ends as it does.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import numpy as np

from kernelproof.timing.protocol import _NEXT_LOOK as NEXT
from kernelproof.timing.protocol import Budget
from kernelproof.timing.stats import Estimate, estimate

RESULTS = Path(__file__).resolve().parents[1] / "results" / "timing-answers.json"
TRUE = (1.0, 0.98, 1.02, 1.3, 50.0)
# Noise of a round, correlation of neighbours, share of outliers.
NOISE = (
    (0.002, 0, 0),
    (0.005, 0, 0),
    (0.005, 0.3, 0),
    (0.005, 0, 0.05),
    (0.02, 0, 0),
    (0.06, 0, 0),
)


def noise(draw: np.random.Generator, count: int, spread: float, r: float) -> np.ndarray:
    values = spread * draw.standard_normal(count)
    for i in range(1, count):
        values[i] = r * values[i - 1] + math.sqrt(1 - r * r) * values[i]
    return values


def run(
    draw: np.random.Generator, true: float, spread: float, r: float, outliers: float
) -> tuple[Estimate, int]:
    budget = Budget()
    both = np.exp([noise(draw, budget.rounds, spread, r) for _ in range(2)])
    both *= 1 + 0.1 * np.linspace(0, 1, budget.rounds)
    both[draw.random(both.shape) < outliers] *= 1.2
    ratios = true * both[0] / both[1]
    early = estimate(ratios[: budget.far])
    if early.far and early.narrow:
        return early, budget.far
    look = budget.least
    while not (found := estimate(ratios[:look])).narrow and look < budget.rounds:
        look = min(budget.rounds, max(look + 1, round(look * NEXT)))
    return found, look


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1000)
    runs = parser.parse_args().runs
    rows = []
    for number, (true, kind) in enumerate((t, k) for t in TRUE for k in NOISE):
        draw = np.random.default_rng(number)
        found = [run(draw, true, *kind) for _ in range(runs)]
        answers = [one.answer for one, _ in found]
        row = {
            "true": true, "noise": kind[0], "correlation": kind[1], "outliers": kind[2],
            "runs": runs,
            "covered": sum(one.low <= true <= one.high for one, _ in found) / runs,
            "rounds": float(np.mean([rounds for _, rounds in found])),
            "answers": {a: answers.count(a) / runs for a in sorted(set(answers))},
        }  # fmt: skip
        rows.append(row)
        print(json.dumps(row))
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
