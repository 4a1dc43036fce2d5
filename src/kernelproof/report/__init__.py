"""Stage 8: render records as text or as one HTML page. Nothing is measured or judged here."""

from __future__ import annotations

from kernelproof.report.html import render
from kernelproof.report.text import detail, summary

__all__ = ["detail", "render", "summary"]
