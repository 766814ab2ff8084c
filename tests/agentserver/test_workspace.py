"""The place where an agent works, prepared by a real shell and cloned from a real git server."""

import asyncio
import os
import stat
from collections.abc import AsyncIterable, AsyncIterator
from pathlib import Path

import pytest

from agentsvc.agentserver.client import AgentServer
from agentsvc.agentserver.responses import CommandResult
from agentsvc.base.errors import StartRefused
from agentsvc.base.values import Secret
from agentsvc.conversations.starting.workspace import Clone, Workspace
from agentsvc.domain.orders import Provider
from tests.git_server import GitServer, run_git

FILES = {
    "README.md": "Hello",
    ".openhands/setup.sh": "echo ran >>setup.log\nsleep 0.2\n",
    ".openhands/pre-commit.sh": "#!/bin/sh\necho ours >>.git/checked\n",
}


class Shell(AgentServer):
    """An agent server whose commands run here, in a home directory of its own."""

    def __init__(self, home: Path) -> None:
        self.directory = home
        self.commands: list[str] = []

    async def home(self) -> str:
        return str(self.directory)

    async def upload(
        self,
        path: str,
        data: bytes | AsyncIterable[bytes],
        *,
        time_limit: float | None = None,
    ) -> None:
        del time_limit
        if not isinstance(data, bytes):
            data = b"".join([part async for part in data])
        await asyncio.to_thread(Path(path).write_bytes, data)

    async def run_command(
        self, command: str, *, cwd: str | None = None, time_limit: float
    ) -> CommandResult:
        self.commands.append(command)
        env = {"HOME": str(self.directory), "PATH": "/usr/local/bin:/usr/bin:/bin"}
        process = await asyncio.create_subprocess_exec(
            "bash",
            "-c",
            command,
            cwd=cwd or self.directory,
            env={**env, "TMPDIR": str(self.directory)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(time_limit):
            stdout, stderr = await process.communicate()
        return CommandResult(
            exit_code=process.returncode or 0, stdout=stdout.decode(), stderr=stderr.decode()
        )


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    (tmp_path / "home").mkdir()
    return Shell(tmp_path / "home")


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[GitServer]:
    async with GitServer(tmp_path / "served") as server:
        branches = {"feature": {"feature.txt": "new"}}
        await server.add_repository("acme/app", FILES, branches=branches)
        yield server


def clone_of(server: GitServer, name: str = "acme/app", branch: str | None = None) -> Clone:
    return Clone(
        repository=name,
        url=server.url(name),
        branch=branch,
        work_branch="openhands-workspace-1",
        is_full=False,
        time_limit=8,
    )


def token_of(server: GitServer) -> dict[Provider, tuple[str, Secret]]:
    return {Provider.GITLAB: (f"http://{server.host}", server.token)}


async def cloned(shell: Shell, server: GitServer, branch: str | None = None) -> Workspace:
    workspace = Workspace(shell, f"{shell.directory}/project/app")
    await workspace.set_credentials(token_of(server))
    await workspace.clone(clone_of(server, branch=branch))
    return workspace


def line_count(file: Path) -> int:
    return len(file.read_text().splitlines())


async def test_a_repository_is_cloned_with_the_token_on_a_branch_of_its_own(
    shell: Shell, server: GitServer
) -> None:
    workspace = await cloned(shell, server)
    place = Path(workspace.project_dir)
    assert (place / "README.md").read_text() == "Hello"
    assert (await run_git("branch", "--show-current", cwd=place)).strip() == "openhands-workspace-1"


async def test_a_branch_that_is_asked_for_is_worked_on(shell: Shell, server: GitServer) -> None:
    workspace = await cloned(shell, server, branch="feature")
    place = Path(workspace.project_dir)
    assert (place / "feature.txt").exists()
    assert (await run_git("branch", "--show-current", cwd=place)).strip() == "feature"


async def test_the_token_is_in_one_private_file_and_in_no_command_and_no_remote(
    shell: Shell, server: GitServer
) -> None:
    workspace = await cloned(shell, server)
    token = server.token.reveal()
    assert not any(token in command for command in shell.commands)
    assert token not in (await run_git("remote", "-v", cwd=Path(workspace.project_dir)))
    holders = [
        file for file in shell.directory.rglob("*") if file.is_file() and token in text_of(file)
    ]
    assert holders == [shell.directory / ".config/agentsvc/git-credentials"]
    assert stat.S_IMODE(holders[0].stat().st_mode) == 0o600
    assert stat.S_IMODE(holders[0].parent.stat().st_mode) == 0o700


def text_of(file: Path) -> str:
    return file.read_bytes().decode(errors="replace")


async def test_without_tokens_git_is_told_of_none(shell: Shell) -> None:
    await Workspace(shell, str(shell.directory)).set_credentials({})
    assert list(shell.directory.iterdir()) == []


async def test_a_token_that_was_removed_leaves_a_reused_sandbox(
    shell: Shell, server: GitServer
) -> None:
    workspace = await cloned(shell, server)
    await workspace.set_credentials({})
    assert list((shell.directory / ".config/agentsvc").iterdir()) == []
    again = Workspace(shell, f"{shell.directory}/again")
    with pytest.raises(StartRefused, match="was refused"):
        await again.clone(clone_of(server))


async def test_a_clone_that_is_there_is_left_as_it_is(shell: Shell, server: GitServer) -> None:
    workspace = await cloned(shell, server)
    readme = Path(workspace.project_dir) / "README.md"
    readme.write_text("changed")
    await workspace.clone(clone_of(server))
    assert readme.read_text() == "changed"


async def test_what_a_broken_clone_left_is_cleared_away(shell: Shell, server: GitServer) -> None:
    part = shell.directory / "project/app.part"
    part.mkdir(parents=True)
    (part / "half").write_text("half")
    workspace = await cloned(shell, server)
    assert not (Path(workspace.project_dir) / "half").exists()


async def test_of_two_clones_at_once_the_second_waits_and_finds_the_work_done(
    shell: Shell, server: GitServer
) -> None:
    workspace = Workspace(shell, f"{shell.directory}/project/app")
    await workspace.set_credentials(token_of(server))
    await asyncio.gather(*(workspace.clone(clone_of(server)) for _ in range(3)))
    assert (Path(workspace.project_dir) / "README.md").exists()


@pytest.mark.parametrize(
    ("name", "branch", "has_token", "cause"),
    [
        ("acme/app", "nope", True, "Branch `nope` does not exist"),
        ("acme/none", None, True, "was not found"),
        ("acme/app", None, False, "was refused"),
    ],
)
async def test_real_failures_of_a_clone_are_told_apart(
    shell: Shell, server: GitServer, *, name: str, branch: str | None, has_token: bool, cause: str
) -> None:
    workspace = Workspace(shell, f"{shell.directory}/project/app")
    if has_token:
        await workspace.set_credentials(token_of(server))
    with pytest.raises(StartRefused, match=cause):
        await workspace.clone(clone_of(server, name, branch))


async def test_a_host_that_cannot_be_reached_is_told(shell: Shell, server: GitServer) -> None:
    await server.stop()
    with pytest.raises(StartRefused, match="cannot be reached from the sandbox"):
        await Workspace(shell, f"{shell.directory}/app").clone(clone_of(server))


async def test_the_set_up_script_runs_once_also_when_it_is_asked_for_at_once(
    shell: Shell, server: GitServer
) -> None:
    workspace = await cloned(shell, server)
    done = await asyncio.gather(*(workspace.run_setup_script(8) for _ in range(2)))
    assert done == [None, None]
    assert await workspace.run_setup_script(8) is None
    assert line_count(Path(workspace.project_dir) / "setup.log") == 1


async def test_a_set_up_script_that_fails_is_quoted_and_may_run_again(shell: Shell) -> None:
    place = shell.directory / "project"
    (place / ".openhands").mkdir(parents=True)
    (place / ".openhands/setup.sh").write_text("echo no network >&2\nexit 7\n")
    workspace = Workspace(shell, str(place))
    await workspace.make_empty({})
    expected = ".openhands/setup.sh ended with exit code 7:\nno network"
    assert await workspace.run_setup_script(8) == expected
    assert await workspace.run_setup_script(8) == expected


async def test_what_a_set_up_script_leaves_running_does_not_block_the_next(
    shell: Shell,
) -> None:
    place = shell.directory / "project"
    (place / ".openhands").mkdir(parents=True)
    (place / ".openhands/setup.sh").write_text("sleep 3 >/dev/null 2>&1 &\nexit 1\n")
    workspace = Workspace(shell, str(place))
    await workspace.make_empty({})
    for _ in range(2):
        problem = await workspace.run_setup_script(2)
        assert problem is not None
        assert "exit code 1" in problem


async def test_the_hook_runs_beside_the_one_that_was_there(shell: Shell, server: GitServer) -> None:
    workspace = await cloned(shell, server)
    place = Path(workspace.project_dir)
    own = place / ".git/hooks/pre-commit"
    own.write_text("#!/bin/sh\necho own >>.git/checked\n")
    own.chmod(0o755)
    for _ in range(2):  # a restart may install it again
        assert await workspace.install_hooks() is None
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.com")
    (place / "new.txt").write_text("new")
    await run_git("add", "new.txt", cwd=place)
    await run_git(*identity, "commit", "-q", "-m", "New", cwd=place)
    assert (place / ".git/checked").read_text().split() == ["own", "ours"]


async def test_without_scripts_nothing_is_run_or_installed(shell: Shell) -> None:
    workspace = Workspace(shell, f"{shell.directory}/project")
    await workspace.make_empty({})
    assert await workspace.run_setup_script(8) is None
    assert await workspace.install_hooks() is None
    assert not (Path(workspace.project_dir) / ".git/hooks/pre-commit").exists()


async def test_an_empty_workspace_is_a_repository_and_making_it_again_changes_nothing(
    shell: Shell,
) -> None:
    workspace = Workspace(shell, f"{shell.directory}/a project")
    for _ in range(2):
        await workspace.make_empty({})
    assert (Path(workspace.project_dir) / ".git").is_dir()
    # It is the sandbox's own, which git trusts by itself.
    assert not (shell.directory / ".gitconfig").exists()


async def test_a_workspace_of_somebody_else_is_one_that_git_trusts(shell: Shell) -> None:
    if os.geteuid() != 0:
        pytest.skip("giving a directory away takes root")
    place = shell.directory / "a project"
    place.mkdir()
    os.chown(place, 12345, 12345)
    workspace = Workspace(shell, str(place))
    for _ in range(2):
        await workspace.make_empty({})
    config = (shell.directory / ".gitconfig").read_text()
    assert config.count("a project") == 1


async def test_set_up_and_hooks_are_looked_for_where_there_may_be_any(shell: Shell) -> None:
    for name, is_bare in (("new", True), ("old", False)):
        place = shell.directory / name
        (place / "src" if is_bare else place / ".openhands").mkdir(parents=True)
        workspace = Workspace(shell, str(place))
        await workspace.make_empty({})
        count = len(shell.commands)
        assert await workspace.run_setup_script(8) is None
        assert await workspace.install_hooks() is None
        assert (len(shell.commands) == count) is is_bare


async def test_many_conversations_of_a_sandbox_set_up_git_at_once(
    shell: Shell, server: GitServer
) -> None:
    workspaces = [Workspace(shell, f"{shell.directory}/{number}") for number in range(5)]

    async def set_up(workspace: Workspace) -> None:
        await workspace.make_empty(token_of(server))
        await workspace.set_identity("Ada's", "ada@example.com")

    await asyncio.gather(*(set_up(workspace) for workspace in workspaces))
    config = (shell.directory / ".gitconfig").read_text()
    assert all((Path(workspace.project_dir) / ".git").is_dir() for workspace in workspaces)
    assert "name = Ada's" in config
    credentials = (shell.directory / ".config/agentsvc/git-credentials").read_text()
    assert credentials == f"http://oauth2:{server.token.reveal()}@{server.host}\n"


async def test_an_identity_is_set_only_where_there_is_one(shell: Shell) -> None:
    await Workspace(shell, str(shell.directory)).set_identity(None, "")
    assert shell.commands == []
