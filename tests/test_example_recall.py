"""examples/recall.py learns, and generates step by step with the logits of whole sequences."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kernelproof.importing import import_file

EXAMPLE = Path(__file__).parents[1] / "examples" / "recall.py"


def test_recall_is_learned_and_steps_agree(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    example = import_file(EXAMPLE, "recall")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    try:
        model = example.Model()
        first, last = example.train(model, 50)
        assert last < 0.8 * first
        assert "50 training steps" in capsys.readouterr().out
        assert not example.difference(model) > 1e-5
        assert example.recall(model, 20) > 1 / example.SYMBOLS

        step = example.gated_recurrence_step
        monkeypatch.setattr(
            example, "gated_recurrence_step", lambda *a, gate_k: step(*a, gate_k=gate_k * 0.9)
        )
        assert example.difference(model) > 1e-3  # another recurrence is seen
    finally:
        torch.set_num_threads(threads)
