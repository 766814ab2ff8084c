"""Preparation of a workspace: directories, git identity, clone, set-up script, hooks.

Everything runs inside the sandbox, through its agent server's shell. No command and no URL
contains a credential: git reads tokens from a credential file outside the workspace.
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
_MAX_OUTPUT: Final = 100_000

# After a restart of the server, the start's own earlier command may still be running.
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

# In a copied workspace all files look changed to git until the index is refreshed. Otherwise the checkout
# would rewrite them, and everything built from them would be rebuilt.
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

# Commits of submodules (mode 160000) count as well, because a set-up script checks them out.
_FINGERPRINT: Final = (
    "git ls-files -s -- {paths} && {{ git ls-files -s | grep '^160000 ' || true; }}"
)

_WORK_BRANCH: Final = (
    "git -C {target} rev-parse --verify -q {branch} || git -C {target} checkout -q -b {branch}"
)

# One command, because each round trip takes as long as the work.
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

# An agent server waits until every process has closed a command's output. So the output of a script goes
# to a file, and processes that it leaves running do not delay the result. The agent server notes the end
# of a command in a file of its own; removing the reserve file leaves space for it on a full disk.
_RUN: Final = """(
{{ head -c {reserve_bytes} /dev/urandom >{reserve}; }} 2>/dev/null
{command} </dev/null >{out} 2>&1 9>&-
code=$?
{print_output}
exit $code
) || exit $?
"""
_OUTPUT_FILE: Final = '"${{TMPDIR:-/tmp}}/agentsvc-{name}.out"'
_PRINT_OUTPUT: Final = "rm -f {reserve}; tail -c {most} {out}; rm -f {out}"
_RESERVE_BYTES: Final = 1024 * 1024

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

# Another conversation in the sandbox may have stored tokens that the user has removed since.
_REMOVE_CREDENTIALS: Final = 'rm -f "$HOME/.config/agentsvc/git-credentials"'

# Git refuses to change its configuration while another conversation in the sandbox changes it.
_HOME_LOCK: Final = _LOCK.format(name="home")


class Clone(msgspec.Struct, frozen=True, kw_only=True):
    """A repository to clone into the workspace, and the options."""

    repository: str
    """The name that the caller gave, for error messages."""
    url: str
    branch: str | None
    work_branch: str
    """The branch to create if the order names none."""
    is_full: bool
    time_limit: float


class Workspace:
    """The project directory of one conversation, inside its sandbox."""

    def __init__(self, agent: AgentServer, project_dir: str) -> None:
        self._agent = agent
        self.project_dir = project_dir
        self.is_bare = False
        """Whether the directory is known to have no `.openhands`: no set-up script, no hooks."""

    async def set_identity(self, name: str | None, email: str | None) -> None:
        """Set the name and email of commits in the sandbox's git configuration."""
        for key, value in (("user.name", name), ("user.email", email)):
            if value:
                command = f"git config --global -- {key} {quote(value)}"
                await self._check_run(_HOME_LOCK + command, "setting up git")

    async def set_credentials(self, hosts: Mapping[Provider, tuple[str, Secret]]) -> None:
        """Store the tokens for these base URLs as the only git credentials in the sandbox.

        The file is outside the workspace.
        """
        if not hosts:
            await self._check_run(_REMOVE_CREDENTIALS, "setting up git")
            return
        home = await self._agent.home()
        folder = f"{home}/.config/agentsvc"
        file = f"{folder}/git-credentials"
        # Replace the file atomically: another conversation may be cloning with it.
        draft = f"{file}-{self._key()}"
        lines = [
            _credential_line(provider, base_url, token)
            for provider, (base_url, token) in hosts.items()
        ]
        await self._check_run(
            f"umask 077 && mkdir -p {quote(folder)} && chmod 700 {quote(folder)}"
            f" && : >{quote(draft)}",
            "setting up git",
        )
        await self._agent.upload(draft, "".join(lines).encode())
        helper = f"store --file={quote(file)}"
        await self._check_run(
            f"{_HOME_LOCK}chmod 600 {quote(draft)} && mv -f {quote(draft)} {quote(file)}"
            f" && git config --global credential.helper {quote(helper)}",
            "setting up git",
        )

    async def make_empty(self, hosts: Mapping[Provider, tuple[str, Secret]]) -> None:
        """Initialize the project directory as a git repository, unless it is one already.

        Stores credentials as `set_credentials` does.
        """
        script = _HOME_LOCK + _MAKE_EMPTY.format(target=quote(self.project_dir), bare=quote(_BARE))
        if hosts:
            await self.set_credentials(hosts)
        else:
            script = f"{_REMOVE_CREDENTIALS}\n{script}"
        result = await self._check_run(script, "making the workspace")
        self.is_bare = _BARE in result.stdout.splitlines()

    async def clone(self, clone: Clone) -> None:
        """Clone a repository; an existing clone stays as it is.

        Raises StartRefused with the cause: no such repository, token refused or missing, host
        unreachable, no such branch, or timeout.
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
            await self._check_run(self._lock() + script, "making a work branch")

    async def update(self, clone: Clone) -> None:
        """Fetch and check out the requested branch in a copied repository; no-op without one.

        Runs once for each copy. Raises StartRefused as `clone`.
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
        """Return a digest of the contents of paths in the repository and of submodule commits.

        Empty without paths, or if git fails.
        """
        command = _FINGERPRINT.format(paths=" ".join(map(quote, paths)))
        result = await self._agent.run_command(
            command, cwd=self.project_dir, time_limit=_STEP_SECONDS
        )
        return sha256(result.stdout) if result.exit_code == 0 and paths else ""

    async def run_script(self, script: str, what: str, time_limit: float) -> str | None:
        """Run a bash script in the workspace; return an error message, or None."""
        return _problem(await self.run_bash(script, time_limit), what, time_limit)

    async def run_bash(self, script: str, time_limit: float) -> CommandResult:
        """Run a bash script in the workspace; processes it leaves running delay no result."""
        return await self._run(self._wrap(f"bash -c {quote(script)}"), time_limit)

    async def _run(self, wrapped: str, time_limit: float) -> CommandResult:
        result = await self._agent.run_command(
            self._lock() + wrapped, cwd=self.project_dir, time_limit=time_limit
        )
        if not result.timed_out:
            return result
        printed = await self._agent.run_command(self._print_output(), time_limit=_STEP_SECONDS)
        return msgspec.structs.replace(result, stdout=printed.stdout)

    def _wrap(self, command: str) -> str:
        """Wrap a command so that processes it leaves running do not delay the result."""
        return _RUN.format(
            command=command,
            out=self._output(),
            print_output=self._print_output(),
            reserve=self._reserve(),
            reserve_bytes=_RESERVE_BYTES,
        )

    def _print_output(self) -> str:
        return _PRINT_OUTPUT.format(most=_MAX_OUTPUT, out=self._output(), reserve=self._reserve())

    def _reserve(self) -> str:
        return quote(f"{self.project_dir}/.git/agentsvc-room")

    def _output(self) -> str:
        return _OUTPUT_FILE.format(name=self._key())

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
        """Unpack a packed commit like a clone of `branch`, and check it out on `work_branch`.

        The remote branch points to `branch_commit`, or to the commit itself. Runs once.
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
        await self._check_run(self._lock() + script, "unpacking the repository", time_limit)

    async def run_setup_script(self, time_limit: float) -> str | None:
        """Run `.openhands/setup.sh` once, if it exists; return an error message, or None."""
        if self.is_bare:
            return None
        script = _SETUP.format(run=self._wrap("bash -c '. .openhands/setup.sh'"))
        return _problem(await self._run(script, time_limit), ".openhands/setup.sh", time_limit)

    async def install_hooks(self) -> str | None:
        """Install `.openhands/pre-commit.sh` as pre-commit hook; return an error or None."""
        if self.is_bare:
            return None
        result = await self._agent.run_command(
            _HOOK, cwd=self.project_dir, time_limit=_STEP_SECONDS
        )
        return _problem(result, ".openhands/pre-commit.sh", _STEP_SECONDS)

    def _lock(self) -> str:
        return _LOCK.format(name=self._key())

    def _key(self) -> str:
        return sha256(self.project_dir)[:16]

    async def load_hooks(self) -> dict[str, Any] | None:
        """Return the content of `.openhands/hooks.json`, or None without that file."""
        return None if self.is_bare else await self._agent.load_hooks(self.project_dir)

    async def _check_run(
        self, command: str, what: str, time_limit: float = _STEP_SECONDS
    ) -> CommandResult:
        result = await self._agent.run_command(command, time_limit=time_limit)
        if result.exit_code != 0:
            remedy = "Start the conversation again; if that fails, too, its output below says why"
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
    """Return the cause of a failed clone, and what to do."""
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
        remedy = "Start the conversation again; if that fails, too, what git says below is why"
    return reason_of(cause, remedy, f"git said:\n{_tail(result)}")


def _tail(result: CommandResult) -> str:
    return f"{result.stdout}\n{result.stderr}".strip()[-_MAX_SHOWN:]
