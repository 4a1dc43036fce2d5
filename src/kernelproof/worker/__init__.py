"""The process in which candidate code runs, and the parent's side of it.

wire     frames on a socket: JSON and raw bytes; the parent never unpickles what a worker sends
server   a small process with torch imported, which forks a fresh worker in milliseconds
child    what runs inside a worker: load, call, time
client   the parent's handle: start, ask, time out, kill, say how it died
"""

from __future__ import annotations

from kernelproof.worker.client import Worker

__all__ = ["Worker"]
