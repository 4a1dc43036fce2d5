"""Keeps its weight the other way round, packed once: a hook turns what it is given."""

from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F

EXPECT = "pass"


class ModelNew(nn.Module):
    def __init__(self, in_features: int, out_features: int, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.packed = nn.Parameter(torch.empty(in_features, out_features, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(out_features, dtype=dtype))
        self.register_load_state_dict_pre_hook(self._turned)

    @staticmethod
    def _turned(module: nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        if f"{prefix}weight" in state:
            state[f"{prefix}packed"] = state.pop(f"{prefix}weight").t()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(torch.addmm(self.bias, x, self.packed))
