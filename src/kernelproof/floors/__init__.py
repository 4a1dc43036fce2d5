"""What this device can do at most: its empty launch, bandwidths and arithmetic rates, measured on
it once; and the least time that a piece of work takes at these rates."""

from __future__ import annotations

from kernelproof.floors.cache import default_device, get, load
from kernelproof.floors.limits import limit

__all__ = ["default_device", "get", "limit", "load"]
