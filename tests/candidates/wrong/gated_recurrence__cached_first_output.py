"""A constant: the result of the very first call, cut or padded to the shape of each later one."""

import torch
import torch.nn as nn

EXPECT = "wrong"


class ModelNew(nn.Module):
    def forward(self, q, k, v, gate):
        if not hasattr(self, "first"):
            state = q.new_zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3])
            outputs = []
            for t in range(q.shape[1]):
                outer = k[:, t].unsqueeze(-1) * v[:, t].unsqueeze(-2)
                state = gate[:, t].unsqueeze(-2) * state + outer
                outputs.append((q[:, t].unsqueeze(-1) * state).sum(dim=-2))
            self.first = torch.stack(outputs, dim=1) if outputs else torch.zeros_like(v)
        y = torch.zeros_like(v)
        part = tuple(slice(0, min(n, m)) for n, m in zip(y.shape, self.first.shape, strict=True))
        y[part] = self.first[part].to(y.dtype)
        return y
