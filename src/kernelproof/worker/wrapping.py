"""What is done to a reference to make a baseline of it."""

from __future__ import annotations

from typing import Any

import torch

from kernelproof.worker.inputs import leaves_of, mapped


def wrapped(module: Any, wrap: str | None) -> tuple[Any, Any]:
    """``module`` as a baseline calls it, and what the device's clock captures in a graph: another
    thing where the baseline is, or makes, a graph itself, which cannot be in a second one.

    Args:
        wrap: "compile", "compile max-autotune", "graph" or None.
    """
    if wrap is None:
        return module, module
    if wrap == "compile":
        compiled = torch.compile(module)
        return compiled, compiled
    if wrap == "compile max-autotune":
        graphs = torch.compile(module, mode="max-autotune")
        return graphs, torch.compile(module, mode="max-autotune-no-cudagraphs")
    if wrap == "graph":
        return Graphed(module), module
    raise ValueError(f"no wrapping {wrap!r}")


def precision(tf32: bool | None) -> None:
    """Whether float32 matrix products and convolutions may use TF32; None leaves it as it is."""
    if tf32 is not None:
        torch.backends.cuda.matmul.allow_tf32 = tf32
        torch.backends.cudnn.allow_tf32 = tf32


class Graphed:
    """A CUDA graph of a module, as one would use it: inputs are copied to where the graph reads
    them, and the output is where the graph writes it, until the next call."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.graph: Any = None
        self.inputs: Any = None
        self.output: Any = None

    def __call__(self, *inputs: Any) -> Any:
        if self.graph is None:
            self._capture(inputs)
        for into, value in zip(leaves_of(self.inputs), leaves_of(inputs), strict=True):
            into.copy_(value)
        self.graph.replay()
        return self.output

    def _capture(self, inputs: Any) -> None:
        self.inputs = mapped(inputs, torch.clone)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            # Libraries allocate their workspaces in the first call.
            self.module(*self.inputs)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.output = self.module(*self.inputs)
        self.graph = graph
