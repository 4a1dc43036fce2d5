"""The shipped operators in place of the PyTorch they replace, on whatever device there is."""

import torch

from kernelproof.ops.gated_recurrence import gated_recurrence
from kernelproof.ops.int8_attention import int8_attention
from kernelproof.ops.mla_kv import mla_kv

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

# Latent attention: keys and values of 4 heads from a latent of rank 48, one fused kernel.
hidden = torch.randn(2, 10, 256, device=device)
w_down = torch.randn(256, 48, device=device) / 16
w_up_k, w_up_v = torch.randn(2, 48, 4 * 32, device=device) / 7
kv = mla_kv(hidden, w_down, w_up_k, w_up_v, kv_heads=4)
latent = hidden @ w_down
expected = torch.stack(
    ((latent @ w_up_k).unflatten(-1, (4, 32)), (latent @ w_up_v).unflatten(-1, (4, 32))), dim=2
)
print("mla_kv", tuple(kv.shape), "largest difference", f"{(kv - expected).abs().max():.1e}")

# Gated linear attention, exact gates (0 and negative ones too), with the final state.
q, k, v = torch.randn(3, 2, 50, 4, 24, device=device)
gate = torch.tanh(torch.randn(2, 50, 4, 24, device=device))
y, state = gated_recurrence(q, k, v, gate_v=gate, return_state=True)
head, tail = slice(0, 30), slice(30, 50)
first, carried = gated_recurrence(
    q[:, head], k[:, head], v[:, head], gate_v=gate[:, head], return_state=True
)
second = gated_recurrence(
    q[:, tail], k[:, tail], v[:, tail], gate_v=gate[:, tail], initial_state=carried
)
split = torch.cat((first, second), dim=1)
print("gated_recurrence", tuple(y.shape), "in two parts", f"{(y - split).abs().max():.1e}")

# Causal attention on int8 tensors with one scale a head; grouped heads.
q8 = torch.randint(-127, 128, (2, 72, 8, 32), dtype=torch.int8, device=device)
k8, v8 = torch.randint(-127, 128, (2, 2, 72, 2, 32), dtype=torch.int8, device=device)
q_scale = torch.full((8,), 0.02, device=device)
kv_scale = torch.full((2,), 0.01, device=device)
out = int8_attention(q8, k8, v8, q_scale, kv_scale, kv_scale)
print("int8_attention", tuple(out.shape), out.dtype)
