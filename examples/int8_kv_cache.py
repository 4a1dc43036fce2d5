"""A small language model that keeps its keys and values as int8: what that does to the perplexity,
and text written from the quantised cache. Trains for some seconds on the text of the licence."""

import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from kernelproof.ops.int8_attention import int8_attention, quantize_int8

LAYERS, HEADS, KV_HEADS, DIM, CONTEXT = 2, 4, 2, 16, 64
WIDTH = HEADS * DIM

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
text = Path(__file__).parents[1].joinpath("LICENSE").read_text()
letters = sorted(set(text))
tokens = torch.tensor([letters.index(c) for c in text], device=device)
training, held_out = tokens[: len(tokens) * 9 // 10], tokens[len(tokens) * 9 // 10 :]


class Cache:
    """Keys and values of one layer as int8 with a scale for each token and head."""

    def __init__(self, batch: int) -> None:
        shape = (batch, CONTEXT, KV_HEADS)
        self.values = torch.zeros(2, *shape, DIM, dtype=torch.int8, device=device)
        self.scales = torch.ones(2, *shape, device=device)
        self.length = 0

    def append(self, k: torch.Tensor, v: torch.Tensor) -> None:
        new = slice(self.length, self.length + k.shape[1])
        for i, x in enumerate((k, v)):
            self.values[i, :, new], self.scales[i, :, new] = quantize_int8(x, "token")
        self.length = new.stop

    def bytes(self) -> int:
        return self.values.nbytes + self.scales.nbytes


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.project = nn.Linear(WIDTH, (HEADS + 2 * KV_HEADS) * DIM)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor, cache: Cache | None, accuracy: str) -> torch.Tensor:
        heads = self.project(self.norm(x)).unflatten(-1, (-1, DIM))  # (B, S, heads, D)
        q, k, v = heads.split((HEADS, KV_HEADS, KV_HEADS), dim=2)
        if cache is None:
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            y = y.transpose(1, 2)
        else:
            cache.append(k, v)
            lens = torch.full((len(x),), cache.length, dtype=torch.int32, device=device)
            q8, q_scale = quantize_int8(q, "token")
            y = int8_attention(
                q8, *cache.values, q_scale, *cache.scales, accuracy=accuracy, kv_lens=lens
            )
        x = x + self.out(y.flatten(2))
        return x + self.mlp(self.norm_2(x))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(letters), WIDTH)
        self.place = nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, len(letters))

    def forward(
        self, ids: torch.Tensor, caches: list[Cache] | None = None, accuracy: str = "strict"
    ) -> torch.Tensor:
        start = caches[0].length if caches else 0
        x = self.embed(ids) + self.place.weight[start : start + ids.shape[1]]
        for n, layer in enumerate(self.layers):
            x = layer(x, caches[n] if caches else None, accuracy)
        return self.head(x)


def caches(batch: int) -> list[Cache]:
    return [Cache(batch) for _ in range(LAYERS)]


def train(model: Model, steps: int = 120) -> None:
    optimiser = torch.optim.AdamW(model.parameters(), lr=6e-3)
    for _ in range(steps):
        starts = torch.randint(len(training) - CONTEXT - 1, (16, 1), device=device)
        batch = training[starts + torch.arange(CONTEXT + 1, device=device)]
        logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


@torch.no_grad()
def perplexity(model: Model, accuracy: str | None) -> float:
    """Of the held-out text, in pieces of one context; None is attention in floats."""
    count = (len(held_out) - 1) // CONTEXT
    pieces = held_out[: count * CONTEXT].view(count, CONTEXT)
    targets = held_out[1 : count * CONTEXT + 1].view(count, CONTEXT)
    logits = model(pieces) if accuracy is None else model(pieces, caches(count), accuracy)
    return math.exp(F.cross_entropy(logits.flatten(0, 1), targets.flatten()).item())


@torch.no_grad()
def generate(model: Model, prompt: str, count: int) -> str:
    """The likeliest letters after ``prompt``, one at a time from an int8 cache."""
    kept = caches(1)
    ids = torch.tensor([[letters.index(c) for c in prompt]], device=device)
    out = prompt
    for _ in range(count):
        ids = model(ids, kept, "high")[:, -1:].argmax(-1)
        out += letters[int(ids)]
    full = 2 * LAYERS * CONTEXT * KV_HEADS * DIM * 4
    print(f"cache: {sum(c.bytes() for c in kept)} bytes, {full} in fp32")
    return out


model = Model().to(device)
train(model)
plain = perplexity(model, None)
print(f"perplexity with attention in fp32: {plain:.4f}")
for tier in ("strict", "high", "fast"):
    found = perplexity(model, tier)
    print(f'the same from the int8 cache, accuracy "{tier}": {found:.4f} ({found - plain:+.4f})')
    assert abs(found / plain - 1) < 0.02, "int8 keys and values should not change the model"
print(generate(model, "You may reproduce and distribute ", 30).replace("\n", " "))
