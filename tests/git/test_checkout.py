"""What the server itself fetches of repositories, takes from sandboxes, and pushes."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from agentsvc.base.errors import (
    AgentsvcError,
    BadRequest,
    GitProviderUnavailable,
    NotAuthenticated,
    NotFound,
)
from agentsvc.base.values import Secret
from agentsvc.domain.orders import Provider
from agentsvc.git.checkout import Checkout, GitRemote
from agentsvc.settings.user_secrets import ProviderToken
from tests.git_server import GitServer, run_git

BRANCH = "agentsvc/issue-7-0123"
IDENTITY = ("-c", "user.name=Agent", "-c", "user.email=agent@example.com")


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[GitServer]:
    async with GitServer(tmp_path / "served") as server:
        await server.add_repository("octo/demo", {"README.md": "Hello"})
        yield server


def checkout_of(server: GitServer, directory: Path, name: str = "octo/demo") -> Checkout:
    token = ProviderToken(token=server.token)
    remote = GitRemote(provider=Provider.GITHUB, url=server.url(name), token=token)
    return Checkout(directory, remote, time_limit=20)


@pytest.fixture
async def checkout(server: GitServer, tmp_path: Path) -> AsyncIterator[Checkout]:
    async with checkout_of(server, tmp_path / "checkouts") as checkout:
        yield checkout
    assert list((tmp_path / "checkouts").iterdir()) == []


async def clone_in(sandbox: Path, checkout: Checkout) -> str:
    """Do what a sandbox does with a packed commit; return the commit."""
    head = await checkout.head()
    await checkout.fetch(head.commit)
    packed = b"".join([part async for part in await checkout.pack()])
    file = sandbox.with_suffix(".tar")
    await asyncio.to_thread(file.write_bytes, packed)
    await run_git("init", "--quiet", str(sandbox))
    await asyncio.to_thread(shutil.unpack_archive, file, sandbox / ".git", filter="data")
    await run_git("checkout", "--quiet", "-b", "work", head.commit, cwd=sandbox)
    return head.commit


async def bundle_of(sandbox: Path, base: str, files: Mapping[str, str]) -> bytes:
    for name, text in files.items():
        path = sandbox / name
        await asyncio.to_thread(path.parent.mkdir, parents=True, exist_ok=True)
        await asyncio.to_thread(path.write_text, text)
    await run_git("add", "--all", cwd=sandbox)
    await run_git(*IDENTITY, "commit", "--quiet", "-m", "Work", cwd=sandbox)
    bundle = sandbox.with_suffix(".bundle")
    await run_git("bundle", "create", str(bundle), "HEAD", f"^{base}", cwd=sandbox)
    return await asyncio.to_thread(bundle.read_bytes)


async def test_what_a_sandbox_has_committed_is_pushed_and_again_changes_nothing(
    server: GitServer, checkout: Checkout, tmp_path: Path
) -> None:
    sandbox = tmp_path / "sandbox"
    base = await clone_in(sandbox, checkout)
    assert (await checkout.head()).branch == "main"
    bundle = await bundle_of(sandbox, base, {"fix.txt": "fixed"})
    head = await checkout.take(bundle, base)
    for _ in range(2):
        await checkout.push(head, BRANCH)
    assert await checkout.take(bundle, base) == head
    url = server.url("octo/demo").replace("http://", f"http://x:{server.token.reveal()}@")
    assert f"{head}\trefs/heads/{BRANCH}" in await run_git("ls-remote", url)
    assert set(server.users) == {"x-access-token", "x"}
    # Somebody else has pushed to the branch since, or the agent has rewritten it.
    await run_git("reset", "--quiet", "--hard", base, cwd=sandbox)
    other = await checkout.take(await bundle_of(sandbox, base, {"other.txt": "x"}), base)
    with pytest.raises(BadRequest, match="other commits"):
        await checkout.push(other, BRANCH)


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({".github/workflows/ci.yml": "on: push"}, "a workflow of the host"),
        ({".GitLab-CI.yml": "job:"}, "a workflow of the host"),
        ({"Jenkinsfile": "node"}, "a workflow of the host"),
        ({".gitmodules": '[submodule "x"]\n\tpath = x\n\turl = file:///etc\n'}, "submodule"),
        ({"a\tb": "x"}, "name is not allowed"),
        ({"a\\b": "x"}, "name is not allowed"),
    ],
)
async def test_what_nobody_wants_pushed_is_refused(
    checkout: Checkout, tmp_path: Path, files: dict[str, str], why: str
) -> None:
    sandbox = tmp_path / "sandbox"
    base = await clone_in(sandbox, checkout)
    await bundle_of(sandbox, base, files)
    # That a later commit takes it back makes no difference.
    await run_git("rm", "--quiet", "-r", *files, cwd=sandbox)
    bundle = await bundle_of(sandbox, base, {"fine.txt": "x"})
    with pytest.raises(BadRequest, match=why):
        await checkout.take(bundle, base)


async def test_workflows_may_be_changed_where_that_is_allowed(
    checkout: Checkout, tmp_path: Path
) -> None:
    base = await clone_in(tmp_path / "sandbox", checkout)
    bundle = await bundle_of(tmp_path / "sandbox", base, {".github/workflows/ci.yml": "on: push"})
    assert await checkout.take(bundle, base, workflows=True)


async def test_a_submodule_without_a_file_of_its_own_is_refused(
    checkout: Checkout, tmp_path: Path
) -> None:
    base = await clone_in(tmp_path / "sandbox", checkout)
    link = f"160000,{base},sub"
    await run_git("update-index", "--add", "--cacheinfo", link, cwd=tmp_path / "sandbox")
    await run_git(*IDENTITY, "commit", "--quiet", "-m", "Link", cwd=tmp_path / "sandbox")
    bundle = tmp_path / "sandbox.bundle"
    await run_git("bundle", "create", str(bundle), "HEAD", f"^{base}", cwd=tmp_path / "sandbox")
    with pytest.raises(BadRequest, match="submodule"):
        await checkout.take(await asyncio.to_thread(bundle.read_bytes), base)


async def test_what_does_not_build_on_the_expected_commit_is_refused(
    checkout: Checkout, tmp_path: Path
) -> None:
    base = await clone_in(tmp_path / "sandbox", checkout)
    await run_git("checkout", "--quiet", "--orphan", "own", cwd=tmp_path / "sandbox")
    bundle = await bundle_of(tmp_path / "sandbox", base, {"x": "x"})
    with pytest.raises(BadRequest, match="not based on"):
        await checkout.take(bundle, base)
    with pytest.raises(BadRequest, match="not based on"):
        await checkout.take(b"# v2 git bundle\n\nno pack at all", base)


async def test_a_bundle_of_which_git_has_too_much_to_tell_is_refused(
    checkout: Checkout, tmp_path: Path
) -> None:
    sandbox, file = tmp_path / "sandbox", tmp_path / "tree"
    base = await clone_in(sandbox, checkout)
    name, mode = await run_git("rev-parse", "HEAD:README.md", cwd=sandbox), "100644"
    # A few KiB in all, and 16 ** 4 paths of 800 letters.
    for _ in range(4):
        entries = [(f"{mode} {one * 200}\0".encode(), name.strip()) for one in "abcdefghijklmnop"]
        tree = b"".join(head + bytes.fromhex(known) for head, known in entries)
        await asyncio.to_thread(file.write_bytes, tree)
        name = await run_git("hash-object", "-w", "-t", "tree", str(file), cwd=sandbox)
        mode = "40000"
    made = await run_git(
        *(*IDENTITY, "commit-tree", "-p", base, "-m", "Much", name.strip()), cwd=sandbox
    )
    await run_git("update-ref", "HEAD", made.strip(), cwd=sandbox)
    bundle = await bundle_of(sandbox, base, {"fine.txt": "x"})
    with pytest.raises(BadRequest, match="larger than 32 MiB"):
        await checkout.take(bundle, base)


async def test_a_hostile_sandbox_has_no_hook_run_here(checkout: Checkout, tmp_path: Path) -> None:
    sandbox, mark = tmp_path / "sandbox", tmp_path / "mark"
    base = await clone_in(sandbox, checkout)
    hooks = {f".git/hooks/{name}": f"#!/bin/sh\ntouch {mark}\n" for name in ("pre-push", "x")}
    attributes = {".gitattributes": "* filter=evil", "hooks/pre-push": f"touch {mark}"}
    head = await checkout.take(await bundle_of(sandbox, base, {**hooks, **attributes}), base)
    await checkout.push(head, BRANCH)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("name", "token", "kind"),
    [
        ("octo/none", None, NotFound),
        ("octo/demo", Secret("revoked"), NotAuthenticated),
    ],
)
async def test_why_a_repository_cannot_be_had_is_told(
    server: GitServer, tmp_path: Path, name: str, token: Secret | None, kind: type[AgentsvcError]
) -> None:
    if token:
        server.token, token = token, server.token
    async with checkout_of(server, tmp_path, name) as checkout:
        if token:
            server.token = token
            checkout.remote = GitRemote(
                provider=Provider.GITHUB,
                url=checkout.remote.url,
                token=ProviderToken(token=Secret("revoked")),
            )
        with pytest.raises(kind):
            await checkout.head()


async def test_a_host_that_is_down_is_told_and_a_commit_has_a_name(
    server: GitServer, checkout: Checkout
) -> None:
    with pytest.raises(BadRequest):
        await checkout.fetch("--upload-pack=x")
    await server.stop()
    with pytest.raises(GitProviderUnavailable):
        await checkout.head()
