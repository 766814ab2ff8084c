"""The vault: what it seals opens with its key, in its place, and nowhere else."""

import logging
from pathlib import Path

import pytest

from agentsvc.base.errors import AgentsvcError, StartFailed
from agentsvc.storage.vault import Vault


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    return tmp_path / "master.key"


def test_what_is_sealed_opens_again(key_file: Path) -> None:
    vault = Vault.open(key_file)
    sealed = vault.seal(b"hunter2", "settings/u1")
    assert b"hunter2" not in sealed
    assert vault.unseal(sealed, "settings/u1") == b"hunter2"


def test_an_empty_value_can_be_sealed(key_file: Path) -> None:
    vault = Vault.open(key_file)
    assert vault.unseal(vault.seal(b"", "x"), "x") == b""


def test_two_seals_of_one_value_differ(key_file: Path) -> None:
    vault = Vault.open(key_file)
    assert vault.seal(b"same", "x") != vault.seal(b"same", "x")


def test_the_key_survives_a_restart(key_file: Path) -> None:
    sealed = Vault.open(key_file).seal(b"hunter2", "x")
    assert Vault.open(key_file).unseal(sealed, "x") == b"hunter2"


def test_a_new_key_file_is_for_its_owner_only(key_file: Path) -> None:
    Vault.open(key_file)
    assert key_file.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in key_file.parent.iterdir()] == [key_file.name]


def test_what_is_left_of_an_interrupted_start_does_not_matter(key_file: Path) -> None:
    key_file.with_name("master.key.new").write_text("half a k")
    Vault.open(key_file)
    assert [file.name for file in key_file.parent.iterdir()] == [key_file.name]


def test_a_sealed_value_does_not_open_in_another_context(key_file: Path) -> None:
    vault = Vault.open(key_file)
    sealed = vault.seal(b"hunter2", "settings/u1")
    with pytest.raises(AgentsvcError, match="damaged") as caught:
        vault.unseal(sealed, "settings/u2")
    assert "settings/u2" in caught.value.detail


@pytest.mark.parametrize("position", [-1, 10, 20])
def test_a_changed_value_does_not_open(key_file: Path, position: int) -> None:
    vault = Vault.open(key_file)
    sealed = bytearray(vault.seal(b"hunter2", "x"))
    sealed[position] ^= 1
    with pytest.raises(AgentsvcError, match="damaged"):
        vault.unseal(bytes(sealed), "x")


@pytest.mark.parametrize("length", [5, 10, 17, 20])
def test_a_value_cut_short_does_not_open(key_file: Path, length: int) -> None:
    vault = Vault.open(key_file)
    with pytest.raises(AgentsvcError, match="damaged"):
        vault.unseal(vault.seal(b"hunter2", "x")[:length], "x")


def test_another_key_is_recognised_as_such(key_file: Path, tmp_path: Path) -> None:
    sealed = Vault.open(key_file).seal(b"hunter2", "x")
    with pytest.raises(AgentsvcError, match="another master key"):
        Vault.open(tmp_path / "other.key").unseal(sealed, "x")


@pytest.mark.parametrize("text", [b"", b"short", b"!" * 43, b"\xff" * 43, b"A" * 44, b"A" * 42])
def test_a_file_that_holds_no_key_stops_the_start(key_file: Path, text: bytes) -> None:
    key_file.write_bytes(text)
    with pytest.raises(StartFailed, match="does not hold a key") as caught:
        Vault.open(key_file)
    assert str(key_file) in caught.value.message
    assert "backup" in caught.value.hint
    assert key_file.read_bytes() == text


def test_a_key_file_that_cannot_be_read_stops_the_start(key_file: Path) -> None:
    key_file.mkdir()
    with pytest.raises(StartFailed, match=r"cannot be read or created \(Is a directory\)"):
        Vault.open(key_file)


def test_a_key_file_that_cannot_be_made_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match="cannot be read or created"):
        Vault.open(tmp_path / "absent" / "master.key")


def test_a_key_file_others_can_read_is_reported(
    key_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Vault.open(key_file)
    key_file.chmod(0o644)
    with caplog.at_level(logging.WARNING):
        Vault.open(key_file)
    assert "master key file is readable by other users" in caplog.text


def test_the_key_is_not_logged_nor_shown(key_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        vault = Vault.open(key_file)
    text = key_file.read_text().strip()
    assert text not in caplog.text
    assert text not in repr(vault)
