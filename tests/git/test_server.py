"""The git server for tests is a real one and insists on its token."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.git_server import GitServer, run_git


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[GitServer]:
    async with GitServer(tmp_path / "served") as server:
        await server.add_repository(
            "octo/demo",
            {"README.md": "Hello", ".openhands/setup.sh": "true"},
            branches={"feature/x": {"x.txt": "x"}},
        )
        yield server


def with_token(url: str, token: str) -> str:
    return url.replace("http://", f"http://someone:{token}@")


async def test_a_repository_is_cloned_with_the_token(server: GitServer, tmp_path: Path) -> None:
    url = with_token(server.url("octo/demo"), server.token.reveal())
    await run_git("clone", "--depth", "1", url, str(tmp_path / "clone"))
    assert (tmp_path / "clone/README.md").read_text() == "Hello"
    assert set(server.users) == {"someone"}


async def test_a_branch_has_its_own_files(server: GitServer, tmp_path: Path) -> None:
    url = with_token(server.url("octo/demo"), server.token.reveal())
    await run_git("clone", "--branch", "feature/x", url, str(tmp_path / "clone"))
    assert (tmp_path / "clone/x.txt").exists()


@pytest.mark.parametrize("name", ["octo/demo", "octo/none"])
async def test_without_the_token_nothing_is_told(
    server: GitServer, tmp_path: Path, name: str
) -> None:
    for url in (server.url(name), with_token(server.url(name), "wrong")):
        with pytest.raises(RuntimeError, match=r"could not read Username|Authentication failed"):
            await run_git("clone", url, str(tmp_path / "clone"))
    assert server.users == []
    assert server.refused


async def test_an_unknown_repository_is_not_found(server: GitServer, tmp_path: Path) -> None:
    url = with_token(server.url("octo/none"), server.token.reveal())
    with pytest.raises(RuntimeError, match="not found"):
        await run_git("clone", url, str(tmp_path / "clone"))


async def test_a_commit_can_be_pushed(server: GitServer, tmp_path: Path) -> None:
    url = with_token(server.url("octo/demo"), server.token.reveal())
    clone = tmp_path / "clone"
    await run_git("clone", url, str(clone))
    await run_git("push", "origin", "HEAD:refs/heads/new", cwd=clone)
    assert "refs/heads/new" in await run_git("ls-remote", url)
