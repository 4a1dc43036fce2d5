"""The state transposed, one matrix product per step for the output."""

import torch
import torch.nn as nn

EXPECT = "pass"


class ModelNew(nn.Module):
    def forward(self, q, k, v, gate):
        batch, length, heads, dim = q.shape
        lanes = batch * heads
        wide = [
            t.float().transpose(1, 2).reshape(lanes, length, t.shape[3]) for t in (q, k, v, gate)
        ]
        q_rows, k_rows, v_rows, gate_rows = wide
        columns = v.shape[3]
        state = q_rows.new_zeros(lanes, columns, dim)  # [lane, j, i]
        out = q_rows.new_empty(length, lanes, columns)
        for t in range(length):
            state.mul_(gate_rows[:, t].unsqueeze(2))
            state.baddbmm_(v_rows[:, t].unsqueeze(2), k_rows[:, t].unsqueeze(1))
            out[t] = torch.bmm(state, q_rows[:, t].unsqueeze(2)).squeeze(2)
        out = out.view(length, batch, heads, columns).permute(1, 0, 2, 3)
        return out.to(q.dtype).contiguous()
