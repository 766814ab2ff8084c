"""Repositories cloned with a token, and that no secret is where it should not be."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import pytest
import pytest_asyncio

from agentsvc.base.values import Secret, new_id
from tests.git_server import GitServer
from tests.live.client import LiveClient
from tests.live.events import errors, outputs
from tests.live.installation import Installation, command_line, secret
from tests.live.scripts import run

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="session"),
]

FILES = {
    "README.md": "# App\n",
    "AGENTS.md": "The maintainer is called Ada; greet her.\n",
    ".openhands/setup.sh": "echo set up >>setup.log\n",
    ".openhands/pre-commit.sh": "#!/bin/sh\necho checked >>.git/checked\n",
    ".openhands/skills/deploy.md": "---\nname: deploy\ntriggers: [deployment]\n---\nUse the green button.\n",
}


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def repository(git_server: GitServer) -> str:
    """Return the name of a repository with a set-up script, a hook, skills and a branch."""
    branches = {"feature": {"feature.txt": "new\n"}}
    await git_server.add_repository("acme/app", FILES, branches=branches)
    return "acme/app"


def provider(server: GitServer, token: Secret | None = None) -> dict[str, Any]:
    """Return settings with a token for the git server, which stands for a provider."""
    host = f"http://{server.host}"
    known = {"token": (token or server.token).reveal(), "host": host}
    return {"secrets_store": {"provider_tokens": {"gitlab": known}}}


async def test_a_repository_is_cloned_and_set_up(
    client: LiveClient,
    shared: Installation,
    git_server: GitServer,
    repository: str,
) -> None:
    identity = {"git_user_name": "Grace", "git_user_email": "grace@example.com"}
    await client.save_settings(**provider(git_server), **identity)
    async with Watch(lambda: _command_lines_with(git_server.token)) as watch:
        conversation_id = await client.start_conversation(
            run("git commit --allow-empty -qm x && git log -1 --format='%an %ae'", "git remote -v")
            + "\nPrepare the deployment.",
            selected_repository=repository,
            selected_branch="feature",
            git_provider="gitlab",
        )
        seen = await client.wait_for_execution(conversation_id, "finished")
    assert watch.looks > 30
    assert watch.found == []
    assert git_server.users[-1] == "oauth2"

    events = await client.events(conversation_id)
    url = git_server.url(repository)
    identity_seen, remotes = outputs(events)
    assert identity_seen == "Grace grace@example.com"
    assert remotes.split() == ["origin", url, "(fetch)", "origin", url, "(push)"]
    sandbox = shared.sandbox_dir(seen["sandbox_id"])
    work = sandbox / "workspace" / "app"
    # git itself trusts no repository of another user, as that of a sandbox is.
    assert (work / ".git" / "HEAD").read_text() == "ref: refs/heads/feature\n"
    assert (work / "feature.txt").exists()
    assert (work / "setup.log").read_text() == "set up\n"
    assert (work / ".git" / "checked").read_text() == "checked\n"

    prompt = str(client.asked("Prepare the deployment")[0])
    assert "The maintainer is called Ada" in prompt
    assert "Use the green button." in prompt

    token = git_server.token.reveal()
    assert token not in str(events)
    assert token not in shared.log
    assert kept_in(token, sandbox, shared.temp_dirs()) == {credentials_of(sandbox)}
    assert token.encode() not in shared.database_bytes()


async def test_without_a_branch_the_agent_works_on_one_of_its_own(
    client: LiveClient,
    git_server: GitServer,
    repository: str,
    sandbox_id: str,
) -> None:
    await client.save_settings(**provider(git_server))
    conversation_id = await client.start_conversation(
        run("git branch --show-current", "ls"),
        selected_repository=git_server.url(repository),
        sandbox_id=sandbox_id,
    )
    await client.wait_for_execution(conversation_id, "finished")
    branch, files = outputs(await client.events(conversation_id))
    assert branch == f"openhands-workspace-{conversation_id[:8]}"
    assert "README.md" in files
    assert "feature.txt" not in files


@pytest.mark.parametrize(
    "case",
    [
        ({"selected_repository": "acme/app"}, "wrong-token", "Access to acme/app"),
        (
            {"selected_repository": "acme/app", "selected_branch": "no-such"},
            None,
            "Branch `no-such` does not exist in acme/app",
        ),
        ({"selected_repository": "acme/none"}, None, "Repository acme/none"),
    ],
)
async def test_a_start_says_why_a_repository_cannot_be_cloned(
    client: LiveClient,
    git_server: GitServer,
    repository: str,
    sandbox_id: str,
    case: tuple[dict[str, str], str | None, str],
) -> None:
    order, token, cause = case
    await client.save_settings(**provider(git_server, Secret(token) if token else None))
    task = await client.start_task(run("ls"), sandbox_id=sandbox_id, git_provider="gitlab", **order)
    ended = await client.end_of_start(task["id"])
    assert ended["status"] == "ERROR"
    assert ended["detail"].startswith(cause)
    assert "at stage PREPARING_REPOSITORY" in ended["detail"]
    assert "git said:" in ended["detail"]
    assert (token or git_server.token.reveal()) not in ended["detail"]

    [shown] = (await client.get("/api/conversations?limit=1")).json()["results"]
    assert shown["status"] == "ERROR"
    [error] = errors(await client.events(shown["conversation_id"]))
    assert (error["code"], error["detail"]) == ("StartFailed", ended["detail"])


async def test_no_secret_is_seen_by_anyone_but_the_command_that_uses_it(
    client: LiveClient,
    shared: Installation,
    sandbox_id: str,
) -> None:
    custom, ordered, token = secret("custom"), secret("ordered"), secret("token")
    await client.save_settings(
        secrets_store={
            "custom_secrets": {"DEPLOY_KEY": {"secret": custom.reveal(), "description": "Deploys"}},
            "provider_tokens": {"github": {"token": token.reveal()}},
        },
    )
    used = shared.at_home(f"used-{new_id()}")
    conversation_id = await client.start_conversation(
        run(
            f'echo "$DEPLOY_KEY" | tee -a {used}',
            f'echo "$GITHUB_TOKEN" | tee -a {used}',
            f'echo "$ORDER_KEY" | tee -a {used}',
        ),
        sandbox_id=sandbox_id,
        secrets={"ORDER_KEY": ordered.reveal()},
    )
    await client.wait_for_execution(conversation_id, "finished")
    values = [one.reveal() for one in (custom, token, ordered)]
    assert used.read_text().split() == values
    used.path.unlink()
    events = await client.events(conversation_id)
    assert outputs(events) == ["<secret-hidden>"] * 3

    filters = f"conversation_id__eq={conversation_id}"
    found = await client.get(f"/api/v1/app-conversations/start-tasks/search?{filters}")
    [task] = found.json()["items"]
    assert task["request"]["secrets"] == {"ORDER_KEY": "**********"}
    settings = (await client.get("/api/settings")).text
    for value in [*values, client.model.key.reveal(), shared.key.reveal()]:
        assert value not in str(events)
        assert value not in str(task)
        assert value not in settings
        assert value not in shared.log
        assert value.encode() not in shared.database_bytes()
    sandbox = shared.sandbox_dir(sandbox_id)
    for value in [custom.reveal(), ordered.reveal(), client.model.key.reveal()]:
        assert value not in str(client.model.requests)
        assert files_with(value, [sandbox, *shared.temp_dirs()]) == []
    assert token.reveal() not in str(client.model.requests)
    assert kept_in(token.reveal(), sandbox, shared.temp_dirs()) == {credentials_of(sandbox)}


# What the tests share


class Watch[T]:
    """Looks all the time for what is not to be; `found` is all that was seen of it."""

    def __init__(self, look: Callable[[], list[T]]) -> None:
        self.looks = 0
        self.found: list[T] = []
        self._see = look
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.get_running_loop().create_task(self._look())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _look(self) -> None:
        while True:
            self.found += self._see()
            self.looks += 1
            await asyncio.sleep(0.01)


def _command_lines_with(wanted: Secret) -> list[bytes]:
    """Return the command lines of processes in which a secret is."""
    lines = [command_line(int(folder.name)) for folder in Path("/proc").glob("[0-9]*")]
    return [line for line in lines if wanted.reveal().encode() in line]


def credentials_of(sandbox: Path) -> Path:
    """Return where git finds tokens: the one file that may hold any."""
    return sandbox / "home" / ".config" / "agentsvc" / "git-credentials"


def kept_in(text: str, sandbox: Path, others: list[Path]) -> set[Path]:
    """Return the files with a text; those in checkpoints as the files that they are copies of."""
    checkpoints = sandbox / "checkpoints"
    return {
        sandbox.joinpath(*path.relative_to(checkpoints).parts[1:])
        if path.is_relative_to(checkpoints)
        else path
        for path in files_with(text, [sandbox, *others])
    }


def files_with(text: str, roots: list[Path]) -> list[Path]:
    """Return the files below some directories in which a text is found."""
    return sorted(path for root in roots for path in _files(root) if text.encode() in _read(path))


def _files(root: Path) -> Iterator[Path]:
    for folder, _, names in root.walk():
        yield from (folder / name for name in names)


def _read(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""
