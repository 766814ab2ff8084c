"""Preparing the place where an agent works: directories, git identity, clone, set-up script, hooks.

All of it happens inside the sandbox, through its agent server's shell. No command and no URL
carries a credential: git finds tokens through a credential file outside the workspace.
"""

from collections.abc import AsyncIterable, Mapping, Sequence
from shlex import quote
from typing import Any, Final
from urllib.parse import quote as url_quote
from urllib.parse import urlsplit

import msgspec

from agentsvc.agentserver import AgentServer, CommandResult
from agentsvc.base import Secret, StartRefused, reason_of, sha256
from agentsvc.domain import Provider, credentials

_STEP_SECONDS: Final = 30.0
_MAX_SHOWN: Final = 2000
_MAX_KEPT: Final = 100_000

# A start that goes on after a restart may find its own earlier command still at work.
_LOCK: Final = """
exec 9>"${{TMPDIR:-/tmp}}/agentsvc-{name}.lock" || exit $?
if command -v flock >/dev/null; then flock 9; fi
"""

_CLONE: Final = """
export GIT_TERMINAL_PROMPT=0 GIT_ASKPASS=/bin/true LC_ALL=C
if [ ! -e {target}/.git ]; then
  rm -rf {part} && mkdir -p {parent} && git clone {options} -- {url} {part} </dev/null || exit $?
  if [ -e {target} ]; then rmdir {target} || exit $?; fi
  mv {part} {target} || exit $?
fi
"""

_UNPACK: Final = """
forget_pack() {{ rm -f {file}; }}
trap forget_pack EXIT
if [ ! -e {target}/.git/agentsvc-commit ]; then
  mkdir -p {target} && cd {target} && git init -q || exit $?
  tar -xf {file} -C .git || exit $?
  git remote remove origin 2>/dev/null
  git remote add origin {url} && git update-ref refs/remotes/origin/{branch} {branch_commit} || exit $?
  git checkout -q -f -B {work_branch} {commit} || exit $?
  : >.git/agentsvc-commit
fi
"""

# In a copy all files look changed to git, which would write them anew, and all that was built of them
# would be built anew for that.
_UPDATE: Final = """
export GIT_TERMINAL_PROMPT=0 GIT_ASKPASS=/bin/true LC_ALL=C
if [ -e {target}/.git ] && [ ! -e {target}/.git/agentsvc-updated ]; then
  cd {target} || exit $?
  git remote remove origin 2>/dev/null
  git remote add origin {url} || exit $?
  if [ {depth} = 0 ] && [ -f .git/shallow ]; then deep=--unshallow; else deep="--depth {depth}"; fi
  git fetch $deep -- origin {source} </dev/null || exit $?
  git update-index -q --refresh >/dev/null
  git checkout -q -f -B {branch} FETCH_HEAD || exit $?
  : >.git/agentsvc-updated
fi
"""

# A submodule is brought in by a set-up, and shown as changed where it is at another commit.
_FINGERPRINT: Final = (
    "git ls-files -s -- {paths} && {{ git ls-files -s | grep '^160000 ' || true; }}"
)

_WORK_BRANCH: Final = (
    "git -C {target} rev-parse --verify -q {branch} || git -C {target} checkout -q -b {branch}"
)

# One command for all: each costs a start as long as all that it does.
_MAKE_EMPTY: Final = """
mkdir -p {target} && cd {target} || exit $?
git init -q || exit $?
if [ ! -O . ]; then
  git config --global --get-all safe.directory | grep -Fxq -- {target} ||
    git config --global --add safe.directory {target} || exit $?
fi
if [ ! -e .openhands ]; then echo {bare}; fi
"""
_BARE: Final = "agentsvc: nothing of its own"

# An agent server waits for all that may still write to a command; what a script leaves running may not.
# It notes the end of a command in a file, and nobody hears of one for which a full disk has no room.
_RUN: Final = """(
{{ head -c {room_bytes} /dev/urandom >{room}; }} 2>/dev/null
{command} </dev/null >{out} 2>&1 9>&-
code=$?
{said}
exit $code
) || exit $?
"""
_OUT: Final = '"${{TMPDIR:-/tmp}}/agentsvc-{name}.out"'
_SAID: Final = "rm -f {room}; tail -c {most} {out}; rm -f {out}"
_ROOM_BYTES: Final = 1024 * 1024

_SETUP: Final = """
[ -f .openhands/setup.sh ] || exit 0
[ -e .git/agentsvc-setup-done ] && exit 0
chmod +x .openhands/setup.sh
{run}
if [ -d .git ]; then : >.git/agentsvc-setup-done; fi
"""

_HOOK: Final = """
[ -f .openhands/pre-commit.sh ] || exit 0
chmod +x .openhands/pre-commit.sh
hooks=$(git rev-parse --git-path hooks) && mkdir -p "$hooks" || exit $?
if [ -e "$hooks/pre-commit" ] && ! grep -q openhands/pre-commit.sh "$hooks/pre-commit"; then
  mv "$hooks/pre-commit" "$hooks/pre-commit.local" || exit $?
fi
cat >"$hooks/pre-commit" <<'END'
#!/bin/sh
local_hook="$(dirname "$0")/pre-commit.local"
if [ -x "$local_hook" ]; then "$local_hook" "$@" || exit $?; fi
exec "$(git rev-parse --show-toplevel)/.openhands/pre-commit.sh" "$@"
END
chmod +x "$hooks/pre-commit"
"""

# Another conversation of the sandbox may have brought tokens that were removed since.
_FORGET: Final = 'rm -f "$HOME/.config/agentsvc/git-credentials"'

# Git refuses a change of its configuration while another conversation of the sandbox makes one.
_HOME_LOCK: Final = _LOCK.format(name="home")


class Clone(msgspec.Struct, frozen=True, kw_only=True):
    """Which repository to bring into the workspace, and how."""

    repository: str
    """As the caller named it; for messages."""
    url: str
    branch: str | None
    work_branch: str
    """Made where no branch was asked for."""
    is_full: bool
    time_limit: float


class Workspace:
    """The project directory of one conversation, inside its sandbox."""

    def __init__(self, agent: AgentServer, project_dir: str) -> None:
        self._agent = agent
        self.project_dir = project_dir
        self.is_bare = False
        """It is known to say nothing of itself: no set-up, no hooks."""

    async def set_identity(self, name: str | None, email: str | None) -> None:
        """Tell git in the sandbox who commits."""
        for key, value in (("user.name", name), ("user.email", email)):
            if value:
                command = f"git config --global -- {key} {quote(value)}"
                await self._must(_HOME_LOCK + command, "setting up git")

    async def set_credentials(self, hosts: Mapping[Provider, tuple[str, Secret]]) -> None:
        """Give git in the sandbox the tokens for these base URLs, and no others.

        They lie outside the workspace.
        """
        if not hosts:
            await self._must(_FORGET, "setting up git")
            return
        home = await self._agent.home()
        folder = f"{home}/.config/agentsvc"
        file = f"{folder}/git-credentials"
        # Whole or not at all: another conversation may clone with it at this moment.
        draft = f"{file}-{self._name()}"
        lines = [
            _credential_line(provider, base_url, token)
            for provider, (base_url, token) in hosts.items()
        ]
        await self._must(
            f"umask 077 && mkdir -p {quote(folder)} && chmod 700 {quote(folder)}"
            f" && : >{quote(draft)}",
            "setting up git",
        )
        await self._agent.upload(draft, "".join(lines).encode())
        helper = f"store --file={quote(file)}"
        await self._must(
            f"{_HOME_LOCK}chmod 600 {quote(draft)} && mv -f {quote(draft)} {quote(file)}"
            f" && git config --global credential.helper {quote(helper)}",
            "setting up git",
        )

    async def make_empty(self, hosts: Mapping[Provider, tuple[str, Secret]]) -> None:
        """Make the project directory a fresh git repository, unless it is one.

        Tokens are set as by `set_credentials`.
        """
        script = _HOME_LOCK + _MAKE_EMPTY.format(target=quote(self.project_dir), bare=quote(_BARE))
        if hosts:
            await self.set_credentials(hosts)
        else:
            script = f"{_FORGET}\n{script}"
        result = await self._must(script, "making the workspace")
        self.is_bare = _BARE in result.stdout.splitlines()

    async def clone(self, clone: Clone) -> None:
        """Bring a repository in; one that is there already stays as it is.

        Raises StartRefused naming the cause: no such repository, token refused or missing, host
        out of reach, no such branch, or too slow.
        """
        options = "" if clone.is_full else "--depth 1"
        if clone.branch:
            options += f" --branch {quote(clone.branch)}"
        parent = self.project_dir.rsplit("/", 1)[0]
        script = _CLONE.format(
            target=quote(self.project_dir),
            part=quote(f"{self.project_dir}.part"),
            parent=quote(parent),
            options=options,
            url=quote(clone.url),
        )
        await self._fetch(clone, script)
        if not clone.branch:
            script = _WORK_BRANCH.format(
                target=quote(self.project_dir), branch=quote(clone.work_branch)
            )
            await self._must(self._lock() + script, "making a work branch")

    async def update(self, clone: Clone) -> None:
        """Bring a copy of a repository to the branch that is asked for; one that is not there is fine.

        Raises StartRefused as `clone`.
        """
        script = _UPDATE.format(
            target=quote(self.project_dir),
            url=quote(clone.url),
            depth=0 if clone.is_full else 1,
            source=quote(clone.branch or "HEAD"),
            branch=quote(clone.branch or clone.work_branch),
        )
        await self._fetch(clone, script)

    async def _fetch(self, clone: Clone, script: str) -> None:
        result = await self._agent.run_command(self._lock() + script, time_limit=clone.time_limit)
        if result.timed_out:
            cause = f"Cloning {clone.repository} took longer than {clone.time_limit:g} s"
            remedy = (
                "Raise `conversations.clone_seconds` in the server's config, or leave"
                " `git_full_clone` off"
            )
            raise StartRefused(reason_of(cause, remedy))
        if result.exit_code != 0:
            raise StartRefused(clone_failure(clone, result))

    async def fingerprint(self, paths: Sequence[str]) -> str:
        """Return what tells whether the contents of paths in the repository have changed.

        The commits of submodules count, too.
        """
        command = _FINGERPRINT.format(paths=" ".join(map(quote, paths)))
        result = await self._agent.run_command(
            command, cwd=self.project_dir, time_limit=_STEP_SECONDS
        )
        return sha256(result.stdout) if result.exit_code == 0 and paths else ""

    async def run_script(self, script: str, what: str, time_limit: float) -> str | None:
        """Run a script in the workspace; return what went wrong, if anything."""
        return _problem(await self.run_bash(script, time_limit), what, time_limit)

    async def run_bash(self, script: str, time_limit: float) -> CommandResult:
        """Run a script of bash in the workspace."""
        return await self._run(self._wrapped(f"bash -c {quote(script)}"), time_limit)

    async def _run(self, wrapped: str, time_limit: float) -> CommandResult:
        result = await self._agent.run_command(
            self._lock() + wrapped, cwd=self.project_dir, time_limit=time_limit
        )
        if not result.timed_out:
            return result
        said = await self._agent.run_command(self._said(), time_limit=_STEP_SECONDS)
        return msgspec.structs.replace(result, stdout=said.stdout)

    def _wrapped(self, command: str) -> str:
        """Return a command that has ended when it has, whatever it leaves running."""
        return _RUN.format(
            command=command,
            out=self._out(),
            said=self._said(),
            room=self._room(),
            room_bytes=_ROOM_BYTES,
        )

    def _said(self) -> str:
        return _SAID.format(most=_MAX_KEPT, out=self._out(), room=self._room())

    def _room(self) -> str:
        return quote(f"{self.project_dir}/.git/agentsvc-room")

    def _out(self) -> str:
        return _OUT.format(name=self._name())

    async def unpack(
        self,
        pack: AsyncIterable[bytes],
        *,
        commit: str,
        branch: str | None,
        work_branch: str,
        url: str,
        time_limit: float,
        branch_commit: str | None = None,
    ) -> None:
        """Bring in a commit that comes packed, as a clone of a branch, on a work branch.

        The branch is at that commit, unless another one is named.
        """
        file = f"{self.project_dir}.pack.tar"
        await self._agent.upload(file, pack, time_limit=time_limit)
        script = _UNPACK.format(
            target=quote(self.project_dir),
            file=quote(file),
            url=quote(url),
            branch=quote(branch or "HEAD"),
            branch_commit=quote(branch_commit or commit),
            commit=quote(commit),
            work_branch=quote(work_branch),
        )
        await self._must(self._lock() + script, "unpacking the repository", time_limit)

    async def run_setup_script(self, time_limit: float) -> str | None:
        """Run `.openhands/setup.sh` once, if there is one; return what went wrong, if anything."""
        if self.is_bare:
            return None
        script = _SETUP.format(run=self._wrapped("bash -c '. .openhands/setup.sh'"))
        return _problem(await self._run(script, time_limit), ".openhands/setup.sh", time_limit)

    async def install_hooks(self) -> str | None:
        """Make `.openhands/pre-commit.sh` the pre-commit hook; return what went wrong."""
        if self.is_bare:
            return None
        result = await self._agent.run_command(
            _HOOK, cwd=self.project_dir, time_limit=_STEP_SECONDS
        )
        return _problem(result, ".openhands/pre-commit.sh", _STEP_SECONDS)

    def _lock(self) -> str:
        return _LOCK.format(name=self._name())

    def _name(self) -> str:
        return sha256(self.project_dir)[:16]

    async def load_hooks(self) -> dict[str, Any] | None:
        """Return what `.openhands/hooks.json` says, or None if there is none."""
        return None if self.is_bare else await self._agent.load_hooks(self.project_dir)

    async def _must(
        self, command: str, what: str, time_limit: float = _STEP_SECONDS
    ) -> CommandResult:
        result = await self._agent.run_command(command, time_limit=time_limit)
        if result.exit_code != 0:
            remedy = "Start the conversation anew; if that fails again, its output below says why"
            raise StartRefused(reason_of(f"The sandbox failed at {what}", remedy, _tail(result)))
        return result


def _problem(result: CommandResult, what: str, time_limit: float) -> str | None:
    if result.timed_out:
        return f"{what} took longer than {time_limit:g} s and was stopped"
    if result.exit_code != 0:
        return f"{what} ended with exit code {result.exit_code}:\n{_tail(result)}"
    return None


def _credential_line(provider: Provider, base_url: str, token: Secret) -> str:
    user, password = credentials(provider, token)
    parts = urlsplit(base_url)
    secret = url_quote(password.reveal(), safe="")
    return f"{parts.scheme}://{url_quote(user, safe='')}:{secret}@{parts.netloc}\n"


def clone_failure(clone: Clone, result: CommandResult) -> str:
    """Return why a repository could not be cloned, and what to do."""
    text = f"{result.stdout}\n{result.stderr}".lower()
    where = f"{clone.repository} ({clone.url})"
    if result.exit_code == 127:  # noqa: PLR2004  # the shell's "command not found"
        cause = f"git is not installed where the sandbox runs, to clone {where}"
        remedy = "Install it there, or choose another sandbox spec"
    elif "remote branch" in text and "not found" in text:
        cause = f"Branch `{clone.branch}` does not exist in {where}"
        remedy = "Name one that does"
    elif any(
        sign in text
        for sign in (
            "could not read username",
            "authentication failed",
            "returned error: 403",
            "returned error: 401",
            "access denied",
        )
    ):
        cause = f"Access to {where} was refused"
        remedy = "Store a token of the provider that may read it, or check the one that is stored"
    elif "not found" in text or "does not exist" in text:
        cause = f"Repository {where} was not found"
        remedy = "Check its name, and that the stored token of the provider may read it"
    elif any(
        sign in text
        for sign in ("could not resolve", "failed to connect", "unable to access", "timed out")
    ):
        cause = f"The host of {where} cannot be reached from the sandbox"
        remedy = "Check name and network"
    else:
        cause = f"Cloning {where} failed with exit code {result.exit_code}"
        remedy = "Start the conversation anew; if that fails again, what git says below is why"
    return reason_of(cause, remedy, f"git said:\n{_tail(result)}")


def _tail(result: CommandResult) -> str:
    return f"{result.stdout}\n{result.stderr}".strip()[-_MAX_SHOWN:]
