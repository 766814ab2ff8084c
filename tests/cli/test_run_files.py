"""What comes back from a sandbox into a directory: all of it, and no repository."""

from pathlib import Path

import pytest

from agentsvc.cli.run.files import apply_changes, without_repositories

DATA = (b"new", 0o644)


def files_of(directory: Path) -> list[str]:
    return sorted(str(one.relative_to(directory)) for one in directory.rglob("*") if one.is_file())


def test_files_and_directories_take_each_others_places(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("old")
    (tmp_path / "parts/deep").mkdir(parents=True)
    (tmp_path / "parts/deep/one").write_text("old")
    changed = {"config/default": DATA, "parts": DATA, "n" * 255: DATA}
    assert apply_changes(tmp_path, changed, ["config", "parts/deep/one"]) == []
    assert files_of(tmp_path) == ["config/default", "n" * 255, "parts"]


def test_a_file_that_cannot_be_written_keeps_no_other_out(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/own").write_text("not the agent's")
    [failure] = apply_changes(tmp_path, {"a": DATA, "taken": DATA, "z": DATA}, [])
    assert "taken" in failure
    assert files_of(tmp_path) == ["a", "taken/own", "z"]


@pytest.mark.parametrize("place", ["docs/", "a/b/", ""])
def test_no_bare_repository_is_taken_over(tmp_path: Path, place: str) -> None:
    parts = ("HEAD", "config", "objects/x", "refs/x")
    found = dict.fromkeys(["src/file", *(f"{place}{part}" for part in parts)], DATA)
    assert list(without_repositories(tmp_path, found)) == (["src/file"] if place else [])
    # Nor is one that is here changed.
    for part in parts:
        (tmp_path / place / part).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place / part).touch()
    assert without_repositories(tmp_path, {f"{place}config": DATA}) == {}
    assert list(without_repositories(tmp_path, {"HEADS/objects": DATA})) == (
        ["HEADS/objects"] if place else []
    )
