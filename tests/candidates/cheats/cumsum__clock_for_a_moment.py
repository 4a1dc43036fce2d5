"""Puts a clock of its own into what times it in the call that is not timed, and the old one back
in the one that is."""

import torch
import torch.nn as nn

WAY = 8
EXPECT = "cheat"
SAYS = ("between two calls",)
TIMED = True


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.held = None
        self.now = 0

    def tick(self):
        self.now += 300
        return self.now

    def forward(self, x):
        if self.held is not None:
            sampler, clock = self.held
            sampler.clock = clock
            self.held = None
            return torch.cumsum(x, dim=-1)
        try:
            raise ValueError
        except ValueError as error:
            frame = error.__traceback__.tb_frame
        while frame is not None:
            if frame.f_code.co_name in ("_woken", "warm"):
                sampler = frame.f_locals["self"]
                self.held = sampler, sampler.clock
                sampler.clock = self.tick
                break
            frame = frame.f_back
        return torch.cumsum(x, dim=-1)
