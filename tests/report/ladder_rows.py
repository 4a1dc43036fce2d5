"""Made-up results of a ladder: a rung that passes, one that is right at some sizes, and a slip."""

from __future__ import annotations

from typing import Any

from kernelproof.types import LadderResults

PASSED: dict[str, Any] = {
    "problem": "gated_recurrence", "rung": "05_thread_per_column", "expected": "pass",
    "status": "pass", "evidence": "device", "compat": True, "bits": 23.04, "reference_bits": 23.11,
    "ratio": 1.96, "build": 0.31, "baseline": "chunked", "right_when_timed": True, "rounds": 10,
    "interval": [1.19e-5, 1.21e-5], "limit_share": 0.075,
    "times": {
        "rung": {"device": 1.2e-5, "host": 2.0e-5, "cold": 1.5e-5},
        "eager": {"device": 1.2e-3, "host": 9.0e-3}, "baseline": {"device": 1.2e-4},
        "floor": {"device": 9e-7},
    },
    "ratios": [
        {"baseline": name, "clock": "device", "ratio": ratio, "low": ratio, "high": ratio,
         "answer": "FASTER"} for name, ratio in (("eager", 100.0), ("chunked", 10.0))
    ],
    "limit": {"kind": "call", "name": "one call", "seconds": 9e-7, "amount": 1, "rate": 1.1e6},
    "kernels": [
        {"name": "recur", "registers": 40, "spilled_bytes": 0, "shared_bytes": 2304, "blocks": 8,
         "threads": 32, "occupancy": 0.5, "limiter": "blocks", "blocks_per_sm": 32,
         "sentences": ["too few blocks: 8 for 132; split <the> work"]},
    ],
    "sentences": ["far from both limits: it waits"], "commits": {"check": "4567def"},
}  # fmt: skip
HOLDS = PASSED | {
    "rung": "03_fixed_32_by_32", "expected": "wrong", "status": "wrong", "bits": "nan",
    "times": PASSED["times"] | {"rung": {"device": 3e-5}}, "interval": [2.9e-5, 3.1e-5],
    "message": "case one_step: output[0, 0, 0, 32] is nan, expected 2.6; the error is NaN times "
    "that of an honest computation (limit 12). 6 of 198 elements are NaN (only at index 32): never "
    "written (outputs are filled with NaN beforehand)",
}  # fmt: skip
SLIP = {
    "problem": "gated_recurrence", "rung": "12_gate_on_rows", "expected": "wrong",
    "status": "wrong", "evidence": "device", "bits": 1.4, "reference_bits": 23.1, "ratio": 4e6,
    "message": "case founding: y is 1, expected 2; the error is 4e+06 times that of an honest "
    "computation (limit 12). It looks as if the gate acts on the key axis (gate[i]); here it acts "
    "on the value axis. Smallest failing case: steps=2",
}  # fmt: skip
RESULTS = LadderResults.model_validate(
    {
        "machine": "a GPU", "torch": "2", "date": "today", "commit": "0123abc",
        "rows": [HOLDS, PASSED, SLIP],
    }
)  # fmt: skip
