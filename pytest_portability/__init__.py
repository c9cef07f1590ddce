"""A pytest plugin for performance-portability regression tests of models."""

from __future__ import annotations
