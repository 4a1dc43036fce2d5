"""``python -m kernelproof``."""

from kernelproof.cli import main

main()
