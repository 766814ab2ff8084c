from pathlib import Path

import pytest

from agentsvc.base.errors import StartFailed
from agentsvc.config.data_directory import DataDirectory


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def test_a_new_data_directory_is_for_its_owner_only(tmp_path: Path) -> None:
    places = DataDirectory(path=tmp_path / "a" / "b")
    places.prepare()
    assert mode_of(places.path) == 0o700


@pytest.mark.parametrize("content", [[], ["agentsvc.db", "other"]])
def test_an_empty_directory_or_one_of_ours_is_closed_to_others(
    tmp_path: Path, content: list[str]
) -> None:
    tmp_path.chmod(0o755)
    for name in content:
        (tmp_path / name).touch()
    DataDirectory(path=tmp_path).prepare()
    assert mode_of(tmp_path) == 0o700


def test_a_directory_with_things_of_others_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").touch()
    tmp_path.chmod(0o755)
    DataDirectory(path=tmp_path).prepare()
    assert mode_of(tmp_path) == 0o755


def test_a_directory_others_can_write_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").touch()
    tmp_path.chmod(0o1777)
    with pytest.raises(StartFailed, match="others can write to the data directory"):
        DataDirectory(path=tmp_path).prepare()
    assert mode_of(tmp_path) == 0o1777


def test_a_file_in_the_place_of_the_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartFailed) as caught:
        DataDirectory(path=tmp_path / "file" / "data").prepare()
    assert str(tmp_path / "file" / "data") in caught.value.message
    assert caught.value.hint


def test_each_backend_has_a_directory_of_its_own(tmp_path: Path) -> None:
    assert DataDirectory(path=tmp_path).backends == tmp_path / "backends"
