"""Candidates whose launches are written in C++, on a machine without a GPU.

The host part of a `.cu` source is compiled by the C++ compiler, with kernels replaced by stubs that
hand their arguments to the emulator; the device part goes to PTX. See docs/emulate.md.
"""
