"""Seeding of torch's generators."""

from __future__ import annotations


def seed_all(seed: int, cuda: bool | None = None) -> None:
    """As `torch.manual_seed`, which where there is no GPU records a stack trace at each call, for
    the generator that a GPU would have, and takes longer than the draw.

    ``cuda``: whether to seed the generators of GPUs; None for where there is one.
    """
    import torch

    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available() if cuda is None else cuda:
        torch.cuda.manual_seed_all(seed)
