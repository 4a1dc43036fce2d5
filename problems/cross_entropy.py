"""Cross entropy with ignored targets: a loss, one number.

    loss = sum_{r: target[r] != -100} (logsumexp(logits[r]) - logits[r, target[r]]) / #{such r}

Targets are int64.

Traps for kernel writers:

- Rows whose target is -100 count neither above nor below; reading ``logits[r, -100]`` is out of
  bounds.
- The result is 0-dimensional, not of shape (1,).
- Without the row's maximum ``exp`` overflows (the case ``large_logits``).
- A sum by atomics is right but differs from run to run; the verdict says so.
- Rounding: one wide sum over all rows. Add per-row losses in a tree, or in fp64.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits, target, ignore_index=-100)


def get_inputs(rows=100, classes=77, scale=3.0, ignored=0.2, dtype=torch.float32):
    logits = (scale * torch.randn(rows, classes)).to(dtype)
    target = torch.randint(classes, (rows,))
    target[torch.rand(rows) < ignored] = -100
    target[0] = classes - 1  # never all ignored: that would be 0 / 0
    return [logits, target]


CASES = {
    "default": {},
    "one_row": {"rows": 1, "classes": 33},
    "two_classes": {"rows": 65, "classes": 2},
    "none_ignored": {"rows": 48, "classes": 31, "ignored": 0.0},
    "mostly_ignored": {"rows": 129, "classes": 10, "ignored": 0.95},
    "large_logits": {"rows": 31, "classes": 65, "scale": 60.0},
    "vocabulary": {"rows": 24, "classes": 30_001},
}


def _log_softmax_gather(logits, target):
    kept = target != -100
    log_p = torch.log_softmax(logits, dim=-1)
    picked = log_p.gather(1, target.clamp(min=0).unsqueeze(1)).squeeze(1)
    return -torch.where(kept, picked, 0).sum() / kept.sum()


BASELINES = {"log_softmax + gather": _log_softmax_gather}


def FLOPS(rows=100, classes=77, scale=3.0, ignored=0.2, dtype=torch.float32):
    return 4 * rows * classes


def BYTES(rows=100, classes=77, scale=3.0, ignored=0.2, dtype=torch.float32):
    return rows * classes * dtype.itemsize + rows * 8
