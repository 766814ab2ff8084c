"""What comes back from a sandbox into a directory: all of it, and no repository."""

from pathlib import Path

import pytest

from agentsvc.cli.run.files import apply_changes, find_changes

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
def test_a_bare_repository_is_neither_made_nor_changed_nor_deleted(
    tmp_path: Path, place: str
) -> None:
    parts = [f"{place}{part}" for part in ("HEAD", "config", "objects/x", "refs/x")]
    found = dict.fromkeys(["src/file", *parts], DATA)
    kept = ["src/file"] if place else []
    assert [*find_changes(tmp_path, found, {})[0]] == kept
    # Nor where it is here already, and is sent with the other files, or not.
    sent = dict.fromkeys(["src/file", *parts], "its checksum")
    assert find_changes(tmp_path, {}, sent) == ({}, kept)
    for part in parts:
        (tmp_path / part).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / part).touch()
    assert find_changes(tmp_path, {f"{place}config": DATA}, {}) == ({}, [])


def test_names_that_no_file_can_have_are_changes_as_others(tmp_path: Path) -> None:
    found = {"n" * 300 + "/file": DATA, "head/objects": DATA}
    assert find_changes(tmp_path, found, {"gone": "its checksum"}) == (found, ["gone"])
