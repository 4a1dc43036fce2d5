"""A store with a session and its records, served in this process or by a server of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

from kernelproof import session
from kernelproof.types import Rules

RULES = Rules(
    level="quick", submit_level="quick", seeds=1, baselines=("eager",), timing_seconds=0.2,
    rounds=3, call_timeout=10.0, budget=9,
)  # fmt: skip
EVIL = "<script>alert('owned')</script>"
RIGHT = f'''"""{EVIL}"""
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x, z, alpha, beta, valid):
        y = x.clone()
        y[:, :valid] = (alpha * x[:, :valid].float() + beta * z[:, :valid].float()).to(x.dtype)
        return y
'''
WRONG = RIGHT.replace("beta * z", "beta * x")
RAISES = RIGHT.replace("y = x.clone()", f'raise ValueError("{EVIL}")')


@dataclasses.dataclass(frozen=True)
class Shop:
    """A store with one session of three attempts: wrong, raising, right and timed."""

    url: str
    session: str
    record: str


def made(url: str) -> Shop:
    one = session.start("axpby", RULES, store=url).session.id
    assert session.check(one, WRONG, store=url).status == "wrong"
    assert session.check(one, RAISES, store=url).status != "pass"
    found = session.bench(one, RIGHT, store=url)
    assert found.status == "pass", found.message
    return Shop(url, one, found.record_id)


@contextlib.contextmanager
def serving(url: str, *options: str) -> Iterator[str]:
    """`kernelproof serve` on a free port; its address."""
    command = [sys.executable, "-m", "kernelproof", "serve", "--port", "0", "--store", url]
    process = subprocess.Popen(
        [*command, *options], stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"http://[\d.]+:\d+", line)
        assert found, line + process.stderr.read()
        yield found[0]
    finally:
        process.terminate()
        process.wait(20)


def get(address: str) -> str:
    with urllib.request.urlopen(address, timeout=60) as answer:
        return str(answer.read().decode())
