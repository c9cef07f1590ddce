"""Every rendering of one made-up run with every kind of verdict, whole, as it was.

``REWRITE_GOLDENS=1 pytest tests/test_goldens.py`` renews the files; their diff is what a user of
the reports will see. The HTML page has a test of its own.
"""

from __future__ import annotations

import json as standard_json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from varied import varied

from pytest_portability.report import Report, ci, document, json, markdown, terminal

GOLDENS = Path(__file__).parent / "goldens"


def github(report: Report) -> str:
    places = {
        entry.nodeid: (Path("/checkout/tests/test_minilm.py"), 12) for entry in report.entries
    }
    environment = {"GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": "/checkout"}
    return "\n".join(ci.github(report, places, environment)) + "\n"


def as_json(report: Report) -> str:
    """With the first window of each repeat alone: they are many, and alike."""
    tables = standard_json.loads(json.render(report))
    for item in tables["items"]:
        item["windows"] = [repeat[:1] for repeat in item["windows"]]
    return standard_json.dumps(tables, indent=1, ensure_ascii=False) + "\n"


RENDERED: dict[str, Callable[[Report], str]] = {
    "report.json": as_json,
    "report.md": lambda report: markdown.render(document.of(json.tables(report), "")),
    "report.txt": lambda report: "\n".join(terminal.lines(report)) + "\n",
    "narrow.txt": lambda report: "\n".join(terminal.lines(report, 80)) + "\n",
    "failures.txt": lambda report: "\n".join(map(terminal.failure, report.entries)) + "\n",
    "annotations.txt": github,
}


@pytest.mark.parametrize("name", RENDERED)
def test_a_report_is_as_it_was(name: str) -> None:
    text = RENDERED[name](varied())
    if os.environ.get("REWRITE_GOLDENS"):
        (GOLDENS / name).write_text(text, encoding="utf-8")
    assert text == (GOLDENS / name).read_text(encoding="utf-8")
