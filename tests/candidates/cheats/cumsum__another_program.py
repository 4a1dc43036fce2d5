"""Replaces its process by a program of its own, which answers in its place with a slow clock."""

import json
import os
import stat
import sys

import torch
import torch.nn as nn

WAY = 46
EXPECT = "cheat"
SAYS = ("its process runs another program",)
TIMED = True

PROGRAM = r"""
import json, os, socket, sys, time
now, began = time.perf_counter_ns, time.perf_counter_ns()
time.perf_counter_ns = lambda: began + (now() - began) * 3 // 4
sys.path[:] = json.loads(sys.argv[2])
import torch
from pathlib import Path
from kernelproof.importing import import_file
from kernelproof.worker import packing, wire
from kernelproof.worker.child import Host
from kernelproof.worker.tripwires import Tripwires
sock, path, host = socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[3]), Host()
host.path, host.tripwires = str(path), Tripwires(str(path.parent))
host.source = import_file(path, "candidate")
host.module = host.captured = host.source.ModelNew()
answer = {"import_seconds": 0.1, "construct_seconds": 0.1, "weights": "none", "alike": None}
while True:
    out = []
    wire.send(sock, {"answer": wire.encode(answer, out)}, out, waits=True)
    request, buffers = wire.receive(sock, trusting=True)
    answer = host.handle(request, packing.whole(buffers) if buffers else None)
"""

if not sys.argv[0].startswith("-c") or len(sys.argv) < 4 or sys.argv[3] != __file__:
    for fd in range(3, 64):
        try:
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                os.set_inheritable(fd, True)
                own = fd
        except OSError:
            continue
    words = [sys.executable, "-c", PROGRAM, str(own), json.dumps(sys.path), __file__]
    os.execv(sys.executable, words)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(x, dim=-1)
