"""The flag ``--update-baselines``, which a project's own conftest may have, too."""

from __future__ import annotations

import pytest

UPDATE = "--update-baselines"
update_key = pytest.StashKey["pytest.Parser | None"]()
"""Present when ``--update-baselines`` was given; None where it is certain whose flag that is."""

TOO_LATE = (
    "--update-baselines is also defined by a conftest that was found during collection, too late "
    "for pytest to give it the flag. Say which one is meant: --portability --update-baselines for "
    "pytest-portability's; for the project's move the option into the root conftest, or name the "
    "conftest's directory on the command line"
)


def takes(parser: pytest.Parser, flag: str) -> bool:
    """Whether a parser knows a flag."""
    try:
        return flag not in parser.parse_known_and_unknown_args([flag])[1]
    except (pytest.UsageError, SystemExit):
        return True  # it wants an argument
