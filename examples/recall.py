"""Train a two-layer gated linear attention model on recall, and generate from it step by step.

A sequence lists pairs of a key and a value, then asks for the values of the keys in another order:
``a 7 b 3 ... b 3 a 7 ...``. The model learns to write each pair into the state of its recurrence
and to read it back. Training runs the recurrence over whole sequences; generation runs the step
function, whose state has one size however long the sequence is, and gives the same logits.

Usage: python examples/recall.py [training steps]
"""

import sys
import time

import torch
from torch import nn
from torch.nn import functional

from kernelproof.ops.gated_recurrence import gated_recurrence, gated_recurrence_step

SYMBOLS, PAIRS = 16, 8  # keys are the tokens 0 .. 15, values 16 .. 31
WIDTH, HEADS, KEY, VALUE = 64, 2, 16, 32


class Layer(nn.Module):
    """Gated linear attention with a gate on the key axis, then a small network."""

    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.project = nn.Linear(WIDTH, HEADS * (3 * KEY + VALUE))
        self.merge = nn.Linear(HEADS * VALUE, WIDTH, bias=False)
        self.network = nn.Sequential(
            nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.SiLU(), nn.Linear(2 * WIDTH, WIDTH)
        )

    def parts(self, x):
        """q, k, v and the gate of each head: columns of one product, none of them copied."""
        heads = self.project(self.norm(x)).unflatten(-1, (HEADS, 3 * KEY + VALUE))
        q, k, gate, v = heads.split([KEY, KEY, KEY, VALUE], dim=-1)
        return functional.normalize(q, dim=-1), functional.normalize(k, dim=-1), v, gate

    def finish(self, x, y):
        x = x + self.merge(y.flatten(-2))
        return x + self.network(x)

    def forward(self, x):
        q, k, v, gate = self.parts(x)
        y, state = gated_recurrence(q, k, v, gate_k=torch.sigmoid(gate + 4), return_state=True)
        return self.finish(x, y), state

    def step(self, x, state):
        """One token; ``state`` is updated in place."""
        q, k, v, gate = self.parts(x)
        y = gated_recurrence_step(q, k, v, state, gate_k=torch.sigmoid(gate + 4))
        return self.finish(x, y)


class Model(nn.Module):
    """Tokens (B, T) to logits (B, T, 2 * SYMBOLS). Each place sees its own token and the one
    before it, so that a value comes with its key."""

    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(2 * SYMBOLS, WIDTH)
        self.before = nn.Embedding(2 * SYMBOLS + 1, WIDTH)  # the last one: nothing
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.read = nn.Sequential(nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 2 * SYMBOLS))

    def forward(self, tokens):
        nothing = tokens.new_full((tokens.shape[0], 1), 2 * SYMBOLS)
        x = self.token(tokens) + self.before(torch.cat((nothing, tokens[:, :-1]), dim=1))
        states = []
        for layer in self.layers:
            x, state = layer(x)
            states.append(state)
        return self.read(x), states

    def step(self, token, before, states):
        x = self.token(token) + self.before(before)
        for layer, state in zip(self.layers, states, strict=True):
            x = layer.step(x, state)
        return self.read(x)


def sequences(count):
    """(count, 4 * PAIRS) tokens: the pairs, then the same pairs in another order."""
    keys = torch.rand(count, SYMBOLS).argsort(dim=1)[:, :PAIRS]
    values = torch.randint(SYMBOLS, 2 * SYMBOLS, (count, PAIRS))
    pairs = torch.stack((keys, values), dim=-1)
    order = torch.rand(count, PAIRS).argsort(dim=1)
    asked = pairs.gather(1, order.unsqueeze(-1).expand_as(pairs))
    return torch.cat((pairs, asked), dim=1).flatten(1)


def answers(logits, tokens):
    """Logits at the keys that are asked for, and the values that belong there."""
    return logits[:, 2 * PAIRS :: 2], tokens[:, 2 * PAIRS + 1 :: 2]


def train(model, steps):
    optimiser = torch.optim.AdamW(model.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 4e-3, total_steps=steps)
    began = time.perf_counter()
    for step in range(steps):
        tokens = sequences(64)
        logits, wanted = answers(model(tokens)[0], tokens)
        loss = functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if step == 0:
            first = loss.item()
    seconds = time.perf_counter() - began
    print(f"{steps} training steps in {seconds:.0f} s: loss {first:.2f} -> {loss.item():.2f}")
    return first, loss.item()


@torch.no_grad()
def recall(model, count=200):
    """Share of right answers that the model gives, choosing each token by itself."""
    tokens = sequences(count)
    _, states = model(tokens[:, : 2 * PAIRS])  # the prompt, at once
    before, right = tokens[:, 2 * PAIRS - 1], 0
    for place in range(2 * PAIRS, 4 * PAIRS, 2):
        asked = tokens[:, place]
        answer = model.step(asked, before, states)[:, SYMBOLS:].argmax(-1) + SYMBOLS
        model.step(answer, asked, states)
        right += (answer == tokens[:, place + 1]).sum().item()
        before = answer
    return right / (count * PAIRS)


@torch.no_grad()
def difference(model):
    """Between the logits of whole sequences and those of a prompt and then steps, the largest."""
    tokens = sequences(4)
    whole, _ = model(tokens)
    _, states = model(tokens[:, :5])
    apart = [
        model.step(tokens[:, t], tokens[:, t - 1], states) - whole[:, t]
        for t in range(5, tokens.shape[1])
    ]
    return torch.stack(apart).abs().max().item()


if __name__ == "__main__":
    torch.set_num_threads(1)  # at this size more of them only wait for one another
    torch.manual_seed(0)
    model = Model()
    first, last = train(model, int(sys.argv[1]) if len(sys.argv) > 1 else 300)
    print(f"answers recalled in generation: {recall(model):.0%} (by chance {1 / SYMBOLS:.0%})")
    apart = difference(model)
    print(f"largest difference between logits of steps and of whole sequences: {apart:.1e}")
    assert last < first and apart < 1e-4
