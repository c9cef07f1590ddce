"""The benchmark of long sessions, where pytest does not get as far as an item."""

from __future__ import annotations

from pathlib import Path

import endurance
import pytest


def test_a_run_that_ends_before_its_first_item_shows_what_pytest_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endurance, "CONFTEST", "import no_such_module")
    with pytest.raises(SystemExit, match="No module named 'no_such_module'"):
        endurance.run(tmp_path, items=1, every=1)
