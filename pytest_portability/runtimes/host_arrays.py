"""Host arrays in the layout in which libraries read them."""

from __future__ import annotations

from typing import Any

import numpy as np


def contiguous(array: Any) -> Any:
    """The array if it lies in C order, else a copy that does; a scalar keeps its shape.

    Args:
        array: any shape, layout and dtype; the caller's.
    """
    plain = np.asarray(array)
    # Not ascontiguousarray, which makes a scalar one-dimensional.
    return plain if plain.flags.c_contiguous else plain.copy()


__all__ = ["contiguous"]
