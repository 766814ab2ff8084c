"""The list of changed files that git itself makes, of real repositories."""

import asyncio
import subprocess
from pathlib import Path

import pytest

from agentsvc.agentserver.git_listing import changes_command, read_changes
from tests.git_server import run_git

NAMES = ("a b.txt", "ü.txt", 'say "hi".txt', "tab\there.txt", "back\\slash", "new\nline", "plain")


def listed(path: Path, ref: str | None = None) -> list[tuple[str, str]]:
    command = ["sh", "-c", changes_command(str(path), ref)]
    ran = subprocess.run(command, capture_output=True, encoding="ascii", check=True)
    return [(change.status, change.path) for change in read_changes(ran.stdout)]


async def commit(path: Path, *names: str) -> None:
    for name in names:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(name)
    await run_git("add", "-A", cwd=path)
    author = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    await run_git(*author, "commit", "-q", "-m", "more", cwd=path)


@pytest.fixture
async def repository(tmp_path: Path) -> Path:
    path = tmp_path / "it's here"
    path.mkdir()
    await run_git("init", "-q", "-b", "main", cwd=path)
    return path


async def test_names_are_what_they_are(repository: Path) -> None:
    await commit(repository, *NAMES)
    for name in NAMES:
        (repository / name).write_text("other")
    for name in NAMES:
        (repository / f"new {name}").touch()
    expected = [("UPDATED", name) for name in NAMES] + [("ADDED", f"new {name}") for name in NAMES]
    found = await asyncio.to_thread(listed, repository)
    assert found == sorted(expected, key=lambda change: change[1])


async def test_what_was_moved_or_is_another_kind_of_file_is_told(repository: Path) -> None:
    await commit(repository, "a", "b", "c d")
    (repository / "a").rename(repository / "z")
    (repository / "b").unlink()
    (repository / "b").symlink_to("z")
    found = await asyncio.to_thread(listed, repository)
    assert found == [("DELETED", "a"), ("UPDATED", "b"), ("ADDED", "z")]


async def test_a_directory_has_its_own_changes(repository: Path) -> None:
    await commit(repository, "a", "sub/b c")
    (repository / "a").write_text("other")
    (repository / "sub/b c").write_text("other")
    assert await asyncio.to_thread(listed, repository / "sub") == [("UPDATED", "b c")]


async def test_repositories_below_are_listed_as_their_own(repository: Path) -> None:
    await commit(repository, "a")
    inner = repository / "in ner"
    inner.mkdir()
    await run_git("init", "-q", "-b", "other", cwd=inner)
    await commit(inner, "b c")
    (inner / "b c").write_text("other")
    (repository / "new").touch()
    expected = [("UPDATED", "in ner/b c"), ("ADDED", "new")]
    assert await asyncio.to_thread(listed, repository) == expected
    # One that has no such ref is left out.
    assert await asyncio.to_thread(listed, repository, "main") == [("ADDED", "new")]


async def test_it_is_compared_with_what_is_asked_for(repository: Path) -> None:
    assert await asyncio.to_thread(listed, repository) == []
    await commit(repository, "a")
    await run_git("checkout", "-q", "-b", "work", cwd=repository)
    await commit(repository, "b c")
    # What was committed on the way stays visible.
    assert await asyncio.to_thread(listed, repository) == [("ADDED", "b c")]
    assert await asyncio.to_thread(listed, repository, "HEAD") == []
    assert await asyncio.to_thread(listed, repository, "main") == [("ADDED", "b c")]
    with pytest.raises(subprocess.CalledProcessError):
        await asyncio.to_thread(listed, repository, "nowhere")


async def test_a_branch_that_has_moved_on_is_not_compared_with(repository: Path) -> None:
    await commit(repository, "a")
    await run_git("checkout", "-q", "-b", "work", cwd=repository)
    await commit(repository, "b c")
    await run_git("checkout", "-q", "main", cwd=repository)
    await commit(repository, "d")
    await run_git("checkout", "-q", "work", cwd=repository)
    (repository / "e f").touch()
    assert await asyncio.to_thread(listed, repository) == [("ADDED", "e f")]


async def test_the_remote_tells_its_own_branch(repository: Path, tmp_path: Path) -> None:
    await commit(repository, "a")
    await run_git("branch", "-m", "main", "trunk", cwd=repository)
    clone = tmp_path / "clone"
    await run_git("clone", "-q", str(repository), str(clone), cwd=tmp_path)
    await run_git("checkout", "-q", "-b", "work", cwd=clone)
    await commit(clone, "b c")
    assert await asyncio.to_thread(listed, clone) == [("ADDED", "b c")]
    # It is asked where a clone does not say so.
    await run_git("remote", "set-head", "origin", "-d", cwd=clone)
    assert await asyncio.to_thread(listed, clone) == [("ADDED", "b c")]
    await run_git("branch", "-q", "main", cwd=clone)
    await commit(clone, "d")
    assert await asyncio.to_thread(listed, clone) == [("ADDED", "b c"), ("ADDED", "d")]


async def test_where_no_repository_is_nothing_has_changed(tmp_path: Path) -> None:
    assert await asyncio.to_thread(listed, tmp_path) == []
