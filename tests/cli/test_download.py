"""Files that commands fetch from a server."""

import json
import os
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from agentsvc.base.values import Secret, new_id
from agentsvc.cli import CommandFailed, cli
from agentsvc.cli.client import Api
from agentsvc.cli.run.files import upload_directory
from tests.cli.test_doctor import answering

ID = new_id()
CUT = (
    b"Content-Length: 9\r\n\r\nPK",
    b"Transfer-Encoding: chunked\r\n\r\n9\r\nPK",
    b"Transfer-Encoding: chunked\r\n\r\n2\r\nPK\r\n",
)


def export(group: str, output: str, sent: bytes) -> Result:
    """Export a conversation of a server that sends this for its file."""

    def answer(asked: bytes) -> bytes:
        is_file = b"/download" in asked or b"/page" in asked
        return b"HTTP/1.1 200 OK\r\n" + (
            sent if is_file else b"\r\n" + json.dumps([{"id": ID}]).encode()
        )

    with socket.create_server(("127.0.0.1", 0)) as listener, answering(listener, answer):
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        arguments = [group, "export", ID, "--output", output, "--url", url, "--key", "key"]
        return CliRunner().invoke(cli, arguments)


@pytest.mark.parametrize("sent", CUT)
@pytest.mark.parametrize("group", ["conversations", "share"])
def test_half_a_file_is_told_and_takes_no_place(group: str, sent: bytes, tmp_path: Path) -> None:
    file = tmp_path / "talk"
    for former in (b"former", None):
        if former is None:
            file.unlink()
        else:
            file.write_bytes(former)
        result = export(group, str(file), sent)
        assert result.exit_code == 1
        assert result.stderr.startswith("error: incomplete response from http://127.0.0.1:")
        assert [one.read_bytes() for one in tmp_path.iterdir()] == ([former] if former else [])


def test_half_a_refusal_of_files_that_are_sent_is_told(tmp_path: Path) -> None:
    def answer(asked: bytes) -> bytes:
        if b"/file/upload" in asked:
            return b"HTTP/1.1 413 Large\r\nContent-Length: 9\r\n\r\n{"
        found = [{"working_dir": "/w"}] if b"/sandboxes?" in asked else {}
        return b"HTTP/1.1 200 OK\r\n\r\n" + json.dumps(found).encode()

    conversation = {"sandbox_id": "s", "conversation_url": "/api/conversations/c"}
    with socket.create_server(("127.0.0.1", 0)) as listener, answering(listener, answer):
        api = Api(f"http://127.0.0.1:{listener.getsockname()[1]}", Secret("key"))
        with pytest.raises(CommandFailed, match="incomplete response from"):
            upload_directory(api, conversation, tmp_path)


@pytest.mark.parametrize("sent", CUT)
def test_half_a_file_on_standard_output_is_told(sent: bytes) -> None:
    assert export("conversations", "-", sent).exit_code == 1


@pytest.mark.parametrize("group", ["conversations", "share"])
def test_a_file_follows_a_link_and_goes_to_what_is_none(group: str, tmp_path: Path) -> None:
    file, link, pipe = tmp_path / "talk", tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(file)
    whole = b"Content-Length: 2\r\n\r\nPK"
    assert export(group, str(link), whole).exit_code == 0
    assert (link.is_symlink(), file.read_bytes()) == (True, b"PK")
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert export(group, str(pipe), whole).exit_code == 0
    assert (os.read(reader, 9), pipe.is_fifo()) == (b"PK", True)
    os.close(reader)
    assert export(group, "-", whole).stdout == "PK"
    refused = export(group, str(tmp_path / "no" / "talk"), whole)
    assert refused.stderr.startswith("error: the file cannot be written: No such file")
    link.unlink()
    link.symlink_to(link)
    refused = export(group, str(link), whole)
    assert refused.stderr.startswith("error: the file cannot be written: Too many levels")


def test_a_file_that_is_written_again_keeps_its_mode_and_its_other_names(tmp_path: Path) -> None:
    file, other = tmp_path / "talk", tmp_path / "other"
    file.write_bytes(b"former one")
    file.chmod(0o600)
    other.hardlink_to(file)
    assert export("conversations", str(file), b"Content-Length: 2\r\n\r\nPK").exit_code == 0
    assert (file.stat().st_mode & 0o777, other.read_bytes()) == (0o600, b"PK")
