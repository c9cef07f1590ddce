"""What was used last is kept."""

from __future__ import annotations

from pathlib import Path

from pytest_portability.recent import Recent, delete


def test_what_was_used_longest_ago_is_let_go_of() -> None:
    dropped: list[str] = []
    found: Recent[int, str] = Recent(2, dropped.append)
    found[1], found[2] = "a", "b"
    assert found[1] == "a"
    found[3] = "c"
    assert dropped == ["b"]
    assert [n in found for n in (1, 2, 3)] == [True, False, True]
    found[1] = "d"
    found[4] = "e"
    assert dropped == ["b", "c"]
    assert found[1] == "d"


def test_a_model_is_deleted_with_its_weights_and_without_its_neighbours(tmp_path: Path) -> None:
    for name in ("a.onnx", "a.onnx.data", "ab.onnx"):
        (tmp_path / name).touch()
    delete(tmp_path / "a.onnx")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["ab.onnx"]
    delete(tmp_path / "a.onnx")  # nothing is left to delete
