"""Where a model lies in an installed package.

The package is never imported: one of those used here changes the number of threads of the whole
process when it is.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path


def file_of(package: str, path: str) -> Path:
    """The path of a file in an installed package."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        msg = f"{package} is not installed; see conftest_examples/requirements.txt"
        raise ModuleNotFoundError(msg)
    return Path(spec.submodule_search_locations[0]) / path
