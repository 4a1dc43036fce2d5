"""Seeding of torch's generators."""

from __future__ import annotations

import torch


def seed_all(seed: int) -> None:
    """As `torch.manual_seed`, which where there is no GPU records a stack trace at each call, for
    the generator that a GPU would have, and takes longer than the draw."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)
