"""A fake of coremltools 9.0, as far as it is used: its calls, answered from a file."""

import enum


class ComputeUnit(enum.Enum):
    """Units that a model may use."""

    ALL = 1
    CPU_AND_GPU = 2
    CPU_ONLY = 3
    CPU_AND_NE = 4
