"""The sandbox image's recipe: what goes into the build, and what must not go into the image."""

import gzip
import io
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from agentsvc.cli import cli
from agentsvc.cli.sandbox_image import default_name, find_recipe
from agentsvc.cli.sandbox_image.recipe import CONTAINERFILE, LOCKS, find_certificates, find_indexes
from tests.cli.test_doctor import answering
from tests.wheels import write_wheel


def test_the_image_is_called_what_no_registry_has() -> None:
    assert default_name().startswith("localhost/agentsvc-sandbox:1.")


def test_the_context_has_the_recipe_the_locks_and_the_certificates_only(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "own.crt").write_text("one")
    (tmp_path / "other.pem").write_text("not one")
    certificates = find_certificates(tmp_path)
    assert certificates == {"below-own.crt": b"one"}
    recipe = find_recipe({"PIP_INDEX_URL": "https://user:pa55@index.example/simple"})
    packed = gzip.decompress(recipe.context())
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        names = archive.getnames()
    assert names == ["Containerfile", "build.txt", "agent.txt", *recipe.certificates]
    assert b"pa55" not in packed
    assert find_certificates(tmp_path / "absent") == {}


def test_indexes_are_those_of_pip_and_uv_that_a_build_can_reach() -> None:
    told = {
        "UV_INDEX_URL": "https://uv.example/simple",
        "PIP_INDEX_URL": "https://pip.example/simple",
        "PIP_FIND_LINKS": "/opt/wheels https://links.example/",
    }
    pip = {"extra-index-url": "file:///opt/simple\nhttps://more.example/simple"}
    assert find_indexes(told, pip) == {
        "INDEX": "https://uv.example/simple",
        "MORE_INDEXES": "https://more.example/simple",
        "FIND_LINKS": "https://links.example/",
    }
    assert find_indexes({}, {}) == {}


def test_pips_own_files_are_read_and_may_be_broken(tmp_path: Path) -> None:
    file = tmp_path / "pip.conf"
    file.write_text("[install]\nindex-url = https://company.example/simple\n")
    recipe = find_recipe({"PIP_CONFIG_FILE": str(file), "https_proxy": "http://proxy.example:3128"})
    assert recipe.arguments["INDEX"] == "https://company.example/simple"
    assert recipe.arguments["https_proxy"] == "http://proxy.example:3128"
    file.write_text("no section\n")
    assert "company" not in str(find_recipe({"PIP_CONFIG_FILE": str(file)}).arguments)


def test_an_image_is_the_same_as_long_as_what_goes_into_it_is() -> None:
    first = find_recipe({})
    assert find_recipe({"PIP_INDEX_URL": "https://x.example/"}).fingerprint == first.fingerprint
    assert find_recipe({}, base="other:1").fingerprint != first.fingerprint
    other = msgspec.structs.replace(first, locks={**first.locks, "agent.txt": b""})
    assert other.fingerprint != first.fingerprint


def test_where_packages_come_from_is_said_in_a_stage_that_is_left_behind() -> None:
    stages = CONTAINERFILE.read_text().split("\nFROM ")
    assert [name for name in ("INDEX", "MORE_INDEXES", "FIND_LINKS") if name in stages[-1]] == []
    assert "ARG INDEX=" in stages[-2]


@pytest.mark.timeout(180)
def test_a_build_refuses_a_file_with_another_hash(tmp_path: Path) -> None:
    """What the recipe runs to install, below another directory, with packages that are at hand."""
    script = re.search(
        r"^RUN (python3 -m venv .*?[^\\])$", CONTAINERFILE.read_text(), re.MULTILINE | re.DOTALL
    )
    assert script is not None
    lock = tmp_path / "lock"
    lock.mkdir()
    wheels = [write_wheel(tmp_path, name) for name in ("builder", "agent")]
    entries = [
        f"{one.name.split('-')[0]}==1.0 --hash=sha256:{sha256(one.read_bytes()).hexdigest()}"
        for one in wheels
    ]
    for file, entry in zip(LOCKS, entries, strict=True):
        (lock / file.name).write_text(entry)

    def install() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-c", script[1].replace("/opt/", f"{tmp_path}/")],
            capture_output=True,
            text=True,
            check=False,
            env={
                "HOME": str(tmp_path),
                "PATH": f"{Path(sys.base_prefix) / 'bin'}:{os.defpath}",
                "PIP_NO_INDEX": "1",
                "FIND_LINKS": str(tmp_path),
            },
        )

    good = install()
    assert good.returncode == 0, good.stderr
    assert len(list(tmp_path.glob("agent-server/lib/python*/site-packages/agent.py"))) == 1
    assert list(tmp_path.glob("agent-server/lib/python*/site-packages/builder*")) == []
    shutil.rmtree(tmp_path / "agent-server")
    (lock / "agent.txt").write_text(entries[1].replace(entries[1][-8:], "0" * 8))
    bad = install()
    assert bad.returncode != 0
    assert "DO NOT MATCH THE HASHES" in bad.stderr
    assert list(tmp_path.glob("agent-server/lib/python*/site-packages/agent*")) == []


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["images", *arguments])


@pytest.mark.parametrize("verb", ["build", "list"])
def test_an_engine_that_does_not_answer_is_an_error_with_a_remedy(
    tmp_path: Path, verb: str
) -> None:
    result = run(verb, "--engine", f"unix://{tmp_path}/absent.sock")
    assert result.exit_code == 1
    assert "error: the container engine does not respond" in result.output
    assert "hint: start Docker or Podman" in result.output


def test_an_address_that_is_none_is_an_error_with_a_remedy() -> None:
    result = run("list", "--engine", "nonsense")
    assert result.exit_code == 1
    assert "error: no container engine found\nhint: start Docker or Podman" in result.output


def test_an_engine_that_ends_in_the_middle_is_an_error_with_a_remedy() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"
    known = b'{"ApiVersion": "1.44"}'

    def answer(asked: bytes) -> bytes:
        is_first = b"/version" in asked
        return head + (
            b"Content-Length: 22\r\n\r\n" + known if is_first else b"Content-Length: 9\r\n\r\n["
        )

    with socket.create_server(("127.0.0.1", 0)) as listener, answering(listener, answer):
        result = run("list", "--engine", f"http://127.0.0.1:{listener.getsockname()[1]}")
    assert result.exit_code == 1
    assert "error: the container engine does not respond" in result.output


@pytest.mark.parametrize("answer", [b"HTTP/1.1 404 No\r\n\r\n{}", b"\0"])
def test_what_is_no_engine_is_an_error_with_a_remedy(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        answer = answer.replace(b"No\r\n", b"No\r\nContent-Type: application/json\r\n")
        with answering(listener, answer):
            result = run("list", "--engine", address)
    assert result.exit_code == 1
    assert (
        "error: the address is not that of a container engine\nhint: start Docker" in result.output
    )
