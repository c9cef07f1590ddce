"""``python -m pytest_portability`` is ``pytest-portability``."""

from __future__ import annotations

import sys

from pytest_portability.cli import main

if __name__ == "__main__":
    sys.exit(main())
