"""Starts the shim of a process sandbox, and prepares its directories, record and orders.

Blocks briefly; call it from a thread.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from agentsvc.base import INITIAL_OPEN_FILES, BackendUnavailable
from agentsvc.plugin import AGENT_OUTPUT, PACKAGE_DIR, Order
from agentsvc.plugin.egress import relay

from . import bubblewrap, landlock, overlays, proxy_sockets, sandbox_directory, uplink
from .files import ChildFiles
from .host_features import HostFeatures
from .sandbox_directory import OutboundNetwork, Record, SandboxDirectory
from .settings import ProcessConfig
from .specs import AGENT_SERVER, DEFAULT_SPEC, current, passed_port
from .tree import MARK
from .zygote import ForkHandle

_LOCALE = "C.UTF-8"
_CERTIFICATES = "/etc/ssl/certs"
_IN_BUBBLEWRAP = {"IN_DOCKER": "true"}
"""Makes the browser package start browsers without their own sandbox, which fails in bubblewrap."""
BROWSERS = (
    *("chromium", "chromium-browser", "chrome", "google-chrome", "google-chrome-stable"),
    "microsoft-edge",
)
"""Browser programs that the agent server looks for."""
_BROWSER_CACHE = ".cache/ms-playwright"
_COUNTS_EARLY = ("LITELLM_LOCAL_MODEL_COST_MAP", "OPENHANDS_SUPPRESS_BANNER")
_LOAN_SECONDS = 8.0
_LOAN_SHARE = 0.4
"""The share of the launch timeout that each of the fork's two responses may take."""
_LOAN = 3
"""Descriptor number of the shim's socket to a fork."""
_SPACE = 4
"""Descriptor number of the fork's user namespace, if that is not the server's own."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One launch of a sandbox: its directory, order, configuration and fork."""

    instance_id: str
    folder: SandboxDirectory
    order: Order
    config: ProcessConfig
    features: HostFeatures
    """Isolation, limits and user ids of this machine."""
    temp_root: Path
    way_out: OutboundNetwork = OutboundNetwork.HOST
    """The outbound network of an open sandbox."""
    loan: ForkHandle = ForkHandle()
    """The fork that becomes the command, or why the command is started without one."""

    def prepare(self) -> Record:
        """Create the directories and the record unless they exist, and return the record.

        Files of an earlier user are chowned to the sandbox's present user.
        """
        found = self.folder.read_record()
        record = found or sandbox_directory.new_record(self.instance_id, self.order, self.temp_root)
        starts = self.folder.read_state() is None
        # A user id is assigned only to a sandbox that scan finds, so that its removal releases the
        # id.
        self.folder.directory.mkdir(mode=0o700, exist_ok=True)
        if starts or found is None:
            record = self._update_record(record)
        self.folder.make(record)
        if starts and os.geteuid() == 0:
            self.folder.hand_over(record)
        return record

    def _update_record(self, record: Record) -> Record:
        """Return the record with the network, paths and user of this start."""
        in_bwrap = bool(self.features.bubblewrap.program)
        shown = (*self._own_directories(), *self.features.bubblewrap.readable)
        user = record.user
        if os.geteuid() == 0:
            sandbox_id = self.order.sandbox_id
            user = self.features.users.assign(sandbox_id, record.user) if in_bwrap else 0
        return msgspec.structs.replace(
            record.connected(self.way_out, self.features.callback),
            has_fixed_paths=in_bwrap and bubblewrap.can_show_workspace(shown),
            user=user,
            temp=self._free_temp(record.temp),
        )

    def _free_temp(self, known: str) -> str:
        """Return the temporary directory's name; a new one if something else has taken it."""
        top, mark = Path(known), sandbox_directory.mark_of(self.instance_id, self.order.sandbox_id)
        is_there = top.exists(follow_symlinks=False)
        if is_there and sandbox_directory.temp_mark(top) not in (mark, ""):
            return sandbox_directory.new_temp_name(self.temp_root)
        return known

    def carry_out(self) -> Record:
        """Create what is missing and start the shim, unless it runs or has run.

        The record is written first, so that scan finds whatever is created.
        """
        record = self.prepare()
        mark = sandbox_directory.mark_of(self.instance_id, self.order.sandbox_id)
        temp = sandbox_directory.make_temp(record.temp, mark, record.user)
        if self.folder.read_state() is None:
            orders = self._orders(mark, record, temp)
            self.folder.clear_pause()
            self._start_shim(mark, orders)
        return record

    def _orders(self, mark: str, record: Record, temp: Path) -> dict[str, Any]:
        in_bwrap = bool(self.features.bubblewrap.program)
        inside: dict[str, Any] = {
            "argv": [_with_python(part) for part in current(self.order.command or ())],
            "env": self._environment(mark, record, temp),
            "ports": [[port.name, port.number] for port in self.order.ports],
            "passed": passed_port(self.order.command or ()),
            "cwd": str(self.folder.agent),
            "workspace": str(self.folder.workspace / record.working_dir),
            "control_token": self.folder.make_control_token(),
            "wrap": [],
        }
        return {
            **inside,
            "plainly": self.loan.reason,
            "loan": _LOAN if self.loan.number >= 0 else None,
            "loan_seconds": min(_LOAN_SECONDS, _LOAN_SHARE * self.config.launch_seconds),
            **self._limits(mark, temp),
            **self._landlock_orders(inside["argv"], temp),
            "directory": str(self.folder.directory),
            "control": str(control_path(record.temp)),
            "secrets": [value.reveal() for value in self.order.secret_env.values()],
            "cgroup": str(group_path(self.features.groups.unified, mark) or ""),
            "log_bytes": self.config.log_bytes,
            "isolation": self.features.isolation(),
            "box": self._box(mark, record, temp, inside) if in_bwrap else None,
        }

    def _limits(self, mark: str, temp: Path) -> dict[str, Any]:
        limits = self.order.limits
        sizes = {"RLIMIT_NOFILE": limits.open_files, "RLIMIT_FSIZE": limits.disk_bytes}
        by_groups = limits
        if "pids" not in self.features.groups.limits():
            # The kernel counts processes per user, and the sandbox has a user of its own here.
            sizes["RLIMIT_NPROC"] = limits.pids
            by_groups = msgspec.structs.replace(limits, pids=None)
        held = self.features.groups.make(group_name(mark), by_groups)
        return {
            "join": held.joined,
            "kills": held.kills,
            "disk_bytes": limits.disk_bytes,
            **self._disk_directories(temp),
            "rlimits": {name: size for name, size in sizes.items() if size is not None},
            "usual_files": INITIAL_OPEN_FILES,
        }

    def _disk_directories(self, temp: Path) -> dict[str, Any]:
        """Return the directories that count against the disk limit; of overlays, only changes."""
        over = overlays.changes(self.folder)
        seen = [part.seen for part in over]
        named = [path for path in (*self._own_directories(), temp) if path not in seen]
        return {
            "directories": [str(path) for path in (*(part.changes for part in over), *named)],
            "seen": [str(path) for path in seen],
        }

    def _landlock_orders(self, argv: list[str], temp: Path) -> dict[str, Any]:
        if (readable := self.features.readable()) is None:
            return {}
        write = [str(path) for path in (*self._own_directories(), temp)]
        names = str(PACKAGE_DIR.parent)
        rules = landlock.rules(map(str, readable), write, [names])
        prefix = landlock.wrapped(rules, [])
        return {"argv": [*prefix, *argv], "wrap": prefix}

    def _own_directories(self) -> tuple[Path, ...]:
        return (self.folder.workspace, self.folder.home, self.folder.agent)

    def _box(self, mark: str, record: Record, temp: Path, inside: dict[str, Any]) -> dict[str, Any]:
        carrier = _find_uplink() if record.way_out is OutboundNetwork.SLIRP else ""
        view = bubblewrap.View(
            mark=mark,
            writable=self._own_directories(),
            temp=temp,
            home=self.folder.home,
            workspace=self.folder.workspace if record.has_fixed_paths else None,
            network=record.network,
            has_own_network=record.has_own_network,
            has_resolver=bool(carrier),
            doors=None if record.shares_network else self.folder.doors,
            readable=self.features.bubblewrap.readable,
            user=record.user,
        )
        return {
            **bubblewrap.orders(self.features.bubblewrap.program, view),
            "entered_by": self.loan.user,
            "around": _SPACE if self.loan.space >= 0 else None,
            "command": bubblewrap.running("inside"),
            "uplink": carrier,
            "sockets": [f"{record.temp}/p{number}" for number in range(len(self.order.ports))],
            "inside": {
                **inside,
                "relay": relay.__file__,
                "outward": list(proxy_sockets.outward(record)),
                "waits": bool(carrier) or self.loan.number >= 0,
            },
        }

    def _environment(self, mark: str, record: Record, temp: Path) -> dict[str, str]:
        passed = {name: os.environ[name] for name in self.config.pass_env if name in os.environ}
        path = search_path(self.config.path)
        home, in_bwrap = str(self.folder.home), bool(self.features.bubblewrap.program)
        is_agent_server = AGENT_SERVER in (self.order.command or ())
        if in_bwrap:
            home, temp = bubblewrap.HOME, Path(bubblewrap.TEMP)
        return {
            **(self._agent_server_environment(path, in_bwrap=in_bwrap) if is_agent_server else {}),
            **passed,
            **proxy_sockets.environment(record),
            "PATH": path,
            "LANG": _LOCALE,
            "LC_CTYPE": _LOCALE,
            **{name: _with_python(value) for name, value in self.order.env.items()},
            **{name: value.reveal() for name, value in self.order.secret_env.items()},
            "HOME": home,
            "TMPDIR": str(temp),
            "TMUX_TMPDIR": str(temp),
            MARK: mark,
        }

    def _agent_server_environment(self, path: str, *, in_bwrap: bool) -> dict[str, str]:
        """Return the variables that describe the machine to an agent server."""
        home = self.folder.home
        has_browser = os.access(home / _BROWSER_CACHE, os.F_OK)
        return {
            # The path outside the sandbox, as in sandboxes of earlier versions.
            "OH_CONVERSATION_WORKTREE_ROOT": str(home / "worktrees"),
            **(_IN_BUBBLEWRAP if in_bwrap else {}),
            **({} if has_browser else _browser_environment(path)),
            **_certificate_environment(),
        }

    def _start_shim(self, mark: str, orders: dict[str, Any]) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        ours, theirs = os.pipe()
        with os.fdopen(ours, "rb", buffering=0) as answers:
            with ChildFiles() as files:
                answer = files.put("answer", theirs)
                orders_file = files.add("orders", json.dumps(orders).encode())
                log = os.open(self.folder.directory / "shim.log", flags, 0o600)
                pid = self._spawn_shim(mark, [orders_file, answer, files.put("log", log)])
            message = answers.read(64) if _is_readable(ours, self.config.launch_seconds) else b""
        if message == b"ready\n":
            return
        # This shim holds no sandbox: another one does, or it failed.
        with contextlib.suppress(ProcessLookupError, ChildProcessError):  # reaped by an inspection
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        if not message:
            raise BackendUnavailable(
                "The process that holds a sandbox could not be started",
                detail=self.folder.shim_error() or "it did not respond",
            )

    def _spawn_shim(self, mark: str, numbers: Sequence[int]) -> int:
        actions = [(os.POSIX_SPAWN_DUP2, number, at) for at, number in enumerate(numbers)]
        if self.loan.number >= 0:
            actions.append((os.POSIX_SPAWN_DUP2, self.loan.number, _LOAN))
        if self.loan.space >= 0:
            actions.append((os.POSIX_SPAWN_DUP2, self.loan.space, _SPACE))
        # Not a subprocess object: nobody waits for the shim, which outlives this server.
        return os.posix_spawn(
            sys.executable,
            [*bubblewrap.running("shim"), mark],
            {MARK: mark},
            file_actions=actions,
            setsid=True,
        )


def control_path(temp: str) -> Path:
    """Return the socket on which a shim accepts commands."""
    return Path(temp, "control")


def group_path(parent: Path | None, mark: str) -> Path | None:
    """Return the path of a sandbox's control group, or None without a parent group."""
    return parent / group_name(mark) if parent else None


def group_name(mark: str) -> str:
    """Return the name of a sandbox's control groups."""
    return f"agentsvc-{mark.replace('/', '-')}"


def bare_environment(configured: str) -> dict[str, str]:
    """Return the variables that an agent server reads while it is loaded, the same for all."""
    own = {name: DEFAULT_SPEC.env[name] for name in _COUNTS_EARLY}
    locale = {"LANG": _LOCALE, "LC_CTYPE": _LOCALE}
    places = {"HOME": bubblewrap.HOME, "TMPDIR": bubblewrap.TEMP}
    path = search_path(configured)
    found = {**_certificate_environment(), **_IN_BUBBLEWRAP}
    return {"PATH": path, **locale, **places, **AGENT_OUTPUT, **own, **found}


def search_path(configured: str) -> str:
    """Return the configured PATH, or the server's without the server's own virtual environment.

    A package that an agent installs there would change the server.
    """
    if configured:
        return configured
    own = Path(sys.prefix, "bin") if sys.prefix != sys.base_prefix else None
    parts = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join(part for part in parts if part and Path(part) != own)


def _is_readable(descriptor: int, time_limit: float) -> bool:
    # Not `select`, which fails for descriptors above 1023; a busy server has more.
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(time_limit * 1000))


def _certificate_environment() -> dict[str, str]:
    """Return SSL_CERT_DIR if the system has a hashed certificate directory.

    OpenSSL then reads certificates on demand. The agent server creates an HTTPS client for each
    report, which would otherwise read all of them.
    """
    if not Path(_CERTIFICATES, "ca-certificates.crt").exists():
        return {}
    is_indexed = next(Path(_CERTIFICATES).glob("*.0"), None) is not None
    return {"SSL_CERT_DIR": _CERTIFICATES} if is_indexed else {}


def _browser_environment(path: str) -> dict[str, str]:
    """Return the variable that hides the browser from skills and subagents if there is none."""
    is_there = any(shutil.which(name, path=path) for name in BROWSERS)
    return {} if is_there else {"OH_ENABLE_BROWSER": "false"}


def _find_uplink() -> str:
    program = shutil.which(uplink.PROGRAM)
    if program is None:
        raise BackendUnavailable(
            f"{uplink.PROGRAM} is not installed; the sandbox needs it to reach its network"
        )
    return program


def _with_python(text: str) -> str:
    return text.replace("{python}", sys.executable)
