"""Causes: which changed fact explains how much of a loss."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One mechanism that explains part of a difference.

    Attributes:
        kind: one of the strings in ``KINDS``.
        share: fraction of the lost time (or memory, or error) it explains; None where no time is known.
        summary: one line, such as ``BiasGelu ×2 no longer fused: now Add ×2 + Gelu ×2``.
        evidence: facts a person can check, one sentence each.
    """

    kind: str
    summary: str
    share: float | None = None
    evidence: tuple[str, ...] = ()


KINDS = (
    "fusion",
    "fallback",
    "precision",
    "kernel",
    "launches",
    "layout",
    "options",
    "host",
    "machine",
    "memory",
    "data",
    "graph",
    "weights",
    "quantization",
    "interface",
    "nondeterminism",
    "toolchain",
    "unexplained",
)
