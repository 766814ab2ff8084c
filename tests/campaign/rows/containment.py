"""A sandbox stays in its sandbox: probes from inside, at each level that this machine has.

The same probes are run at the level `none`, which promises nothing and says so: there they get
through, by which they are seen to work.
"""

import asyncio
import os
import pwd
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from tests.campaign.book import Figure, Ground, Half, Outcome, Row, zero
from tests.campaign.contained import engine_or_why_not, parts_of, server_of_containers
from tests.campaign.real import Inside, RealServer, own_address, real_server
from tests.live.containers import Engine

PROBES: Final = 60
_HELD: Final = {"AGENTSVC_SPECS__PROCESS__NETWORK": "none"}
_MARK: Final = "campaign-mark"
_HOME_OF_ROOT: Final = pwd.getpwuid(0).pw_dir
_NONE: Final = {
    "AGENTSVC_BACKENDS__PROCESS__USE_BUBBLEWRAP": "false",
    "AGENTSVC_BACKENDS__PROCESS__USE_LANDLOCK": "false",
}
PROGRAM: Final = r"""
import base64, concurrent.futures, ctypes, glob, json, os, signal, socket, subprocess, sys
know = json.loads(base64.b64decode(sys.argv[1]))
libc = ctypes.CDLL(None, use_errno=True)
through, tried = [], 0
MARK, FOREIGN = know["mark"], set(know["foreign"])

def probe(name, work):
    global tried
    tried += 1
    try:
        if work():
            through.append(name)
    except (OSError, PermissionError, ValueError, subprocess.SubprocessError, AttributeError):
        pass

def reads(path):
    with open(path, "rb") as file:
        return bool(file.read(64))

def lists(path):
    # The directories that lead to its own are there, and empty but for that.
    return bool(FOREIGN & set(os.listdir(path)))

def connects(address, family=socket.AF_INET, kind=socket.SOCK_STREAM):
    with socket.socket(family, kind) as trial:
        trial.settimeout(3)
        trial.connect(address)
        if kind == socket.SOCK_DGRAM:
            trial.send(MARK.encode())
            return False
        return True

def reaches(place):
    try:
        return connects(tuple(place))
    except OSError:
        return False

def call(number, *arguments):
    ctypes.set_errno(0)
    return libc.syscall(number, *arguments) >= 0

def forked(work):
    # What a success would do to this process stays in a child.
    child = os.fork()
    if not child:
        try:
            os._exit(0 if work() else 1)
        except BaseException:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

def foreign(pid):
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        line = file.read()
    return know["data"].encode() in line and know["own"].encode() not in line and b"probe.py" not in line

def foreigners():
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if foreign(pid):
                found.append(int(pid))
        except OSError:
            pass
    return found

others = foreigners()
data, other = know["data"], know["other"]
for name in ("agentsvc.db", "agentsvc.db-wal", "master.key", "instance-id", "backends", ""):
    path = os.path.join(data, name)
    probe(f"read {path}", lambda: lists(path) if os.path.isdir(path) else reads(path))
# What that makes, if anything, is looked for from outside.
probe("write below the data directory", lambda: os.makedirs(os.path.join(data, MARK)) and False)
probe("read the log of the server", lambda: reads(know["log"]))
for name in ("workspace", "home", "secret", "workspace/secret"):
    path = os.path.join(other, name)
    probe(f"read {path} of another", lambda: lists(path) if os.path.isdir(path) else reads(path))
probe("write to the workspace of another", lambda: open(os.path.join(other, "workspace", MARK), "wb").close() is None)
link = os.path.join(os.getcwd(), MARK + "-link")
for target in (os.path.join(data, "master.key"), os.path.join(other, "workspace", "secret"), "/etc/shadow"):
    if os.path.islink(link):
        os.unlink(link)
    os.symlink(target, link)
    probe(f"read {target} by a link", lambda: reads(link))
    os.unlink(link)
probe("link to the key", lambda: os.link(os.path.join(data, "master.key"), link) is None)
of_root = know["home_of_root"]
for path in ("/etc/shadow", f"{of_root}/.bashrc", f"{of_root}/.ssh", "/home", know["home_of_server"], know["canary"]):
    probe(f"read {path}", lambda: lists(path) if os.path.isdir(path) else reads(path))
for path in (f"/proc/1/root{data}", f"/proc/self/root{data}", "/dev/mem", "/dev/kmsg", "/proc/kcore"):
    probe(f"read {path}", lambda: lists(path) if os.path.isdir(path) else reads(path))
for path in ("/usr/bin", "/etc", "/lib", "/sys/kernel", "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger",
             "/sys/fs/cgroup/cgroup.procs", "/usr/local/bin", os.path.dirname(sys.executable)):
    probe(f"write {path}", lambda: open(os.path.join(path, MARK) if os.path.isdir(path) else path, "r+b" if os.path.isfile(path) else "xb").close() is None)
probe("see processes of others", lambda: bool(others))
for name in ("environ", "maps", "root", "cwd", "fd"):
    probe(f"read {name} of others", lambda: any(
        bool(os.listdir(f"/proc/{pid}/{name}")) if name in ("root", "cwd", "fd") else reads(f"/proc/{pid}/{name}")
        for pid in others))
probe("signal others", lambda: any(os.kill(pid, 0) is None for pid in others))
for pid in others[:1] or [know["pid"]]:
    is_theirs = pid in others
    probe("attach to others", lambda: forked(lambda: libc.ptrace(16, pid, 0, 0) == 0 and is_theirs))
    probe("open others by a descriptor", lambda: os.pidfd_open(pid) >= 0 and is_theirs)
    probe("give others another priority", lambda: os.setpriority(os.PRIO_PROCESS, pid, 5) is None and is_theirs)
for path in ("/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock",
             "/run/dbus/system_bus_socket", "/run/systemd/private", know["socket"], know["engine"]):
    probe(f"connect to {path}", lambda: connects(path, socket.AF_UNIX))
probe("connect to an abstract socket", lambda: connects("\0" + know["abstract"], socket.AF_UNIX))
for host in ("127.0.0.1", "0.0.0.0", "::1", know["address"]):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The server itself is reached from inside, at the port it has; nothing else is.
    probe(f"connect to {host}", lambda: connects((host, know["trap"]), family))
with concurrent.futures.ThreadPoolExecutor(32) as pool:
    for (host, port), is_reached in zip(know["dials"], pool.map(reaches, know["dials"])):
        probe(f"connect to {host}:{port}", lambda: is_reached)
CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000, 0x20000000, 0x40000000
for name, flag in (("user", CLONE_NEWUSER), ("mount", CLONE_NEWNS), ("process", CLONE_NEWPID), ("network", CLONE_NEWNET)):
    probe(f"make a namespace: {name}", lambda: forked(lambda: libc.unshare(flag) == 0))
probe("enter a namespace", lambda: forked(lambda: libc.setns(os.open("/proc/1/ns/mnt", os.O_RDONLY), 0) == 0 and bool(others)))
probe("mount", lambda: forked(lambda: libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0))
probe("unmount", lambda: forked(lambda: libc.umount2(b"/usr", 2) == 0))
probe("change the root", lambda: forked(lambda: os.chroot("/tmp") is None))
probe("make a device", lambda: os.mknod("/tmp/" + MARK, 0o600 | 0o60000, os.makedev(8, 0)) is None)
probe("become root", lambda: forked(lambda: os.setuid(0) is None))
probe("become root by a program", lambda: subprocess.run(["sudo", "-n", "true"], capture_output=True, timeout=10).returncode == 0)
probe("load a module", lambda: call(175, b"", 0, b"") )
probe("use bpf", lambda: call(321, 5, ctypes.create_string_buffer(128), 128))
probe("use the keyring", lambda: call(248, b"user", MARK.encode(), b"x", 1, -3))
probe("watch the processor", lambda: call(298, ctypes.create_string_buffer((1).to_bytes(4, "little") + (112).to_bytes(4, "little") + bytes(104)), 0, -1, -1, 0))
probe("set up a ring", lambda: call(425, 1, ctypes.create_string_buffer(256)))
probe("a raw socket", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).close() is None)
probe("a packet socket", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close() is None)
probe("set the clock", lambda: __import__("time").clock_settime(0, __import__("time").time()) is None)
probe("name the machine", lambda: socket.sethostname(socket.gethostname()) is None and bool(others))
for path in (f"{of_root}/.bashrc.d", "/var/spool/cron", "/run", "/var/tmp", "/opt", "/srv", "/", "/home/agent", "/dev/shm", "/tmp"):
    # Some may be made inside; what is outside is looked at from there.
    probe(f"make what is missing in {path}", lambda: os.makedirs(os.path.join(path, MARK)) and False)
print(json.dumps({"through": through, "tried": tried}))
"""


@contextmanager
def _traps(directory: Path) -> Iterator[dict[str, Any]]:
    """Listen where a sandbox should get to: a port of the machine, a socket, an abstract socket."""
    name = f"campaign-{os.getpid()}"
    # The names of sockets are short.
    path = Path(f"/tmp/{name}.sock")  # noqa: S108  # the directory of the row may be too long
    made = [socket.create_server(("", 0))]
    for address in (str(path), f"\0{name}"):
        unix = socket.socket(socket.AF_UNIX)
        unix.bind(address)
        unix.listen()
        made.append(unix)
    threads = [threading.Thread(target=_take, args=(one,), daemon=True) for one in made]
    for thread in threads:
        thread.start()
    canary = directory / "canary"
    canary.write_text("sings")
    port = made[0].getsockname()[1]
    try:
        yield {"socket": str(path), "abstract": name, "trap": port, "canary": str(canary)}
    finally:
        for one in made:
            one.shutdown(socket.SHUT_RDWR)
            one.close()
        path.unlink()


def _take(listener: socket.socket) -> None:
    try:
        while True:
            listener.accept()[0].close()
    except OSError:
        return


def _left_outside(server: RealServer) -> list[str]:
    """Return what a probe has made on this machine."""
    tops = "/ /tmp /var/tmp /run /opt /srv /etc /usr/bin /dev/shm".split()  # noqa: SIM905
    places = [Path(top) / _MARK for top in (*tops, _HOME_OF_ROOT, "/home/agent", "/var/spool/cron")]
    places += [server.installation.data.path / _MARK]
    return [f"made {place} outside" for place in places if place.exists()]


class _Neighbour(msgspec.Struct, frozen=True, kw_only=True):
    """What there is of another sandbox and of the engine, to be looked for from inside."""

    id: str
    secret: Path
    directory: Path
    own: str
    dials: tuple[tuple[str, int], ...] = ()
    engine: str = "/nowhere"


async def _probe(server: RealServer, inside: Inside, other: _Neighbour, ground: Ground) -> Any:
    other.secret.write_text("of another")
    port = int(server.installation.url.rpartition(":")[2])
    with _traps(ground.directory) as traps:
        know = {
            **traps,
            "mark": _MARK,
            "foreign": _foreign(other.id),
            "data": str(server.installation.data.path),
            "own": other.own,
            "other": str(other.directory),
            "dials": [*other.dials, *((host, traps["trap"]) for host, _ in other.dials)],
            "engine": other.engine,
            "log": str(server.installation.directory / "server.log"),
            "home_of_server": str(Path.home()),
            "home_of_root": _HOME_OF_ROOT,
            "pid": server.installation.pid,
            "address": own_address(),
            "server": port,
        }
        return await inside.run(PROGRAM, msgspec.json.encode(know).decode())


def _foreign(other_id: str) -> list[str]:
    """Return names that a sandbox does not see in any directory."""
    names = {"agentsvc.db", "master.key", "instance-id", "backend.json", other_id}
    for home in (Path.home(), Path("/home")):
        if home.exists():
            names |= {one.name for one in home.iterdir() if not _leads_to_python(one)}
    return sorted(names)


def _leads_to_python(path: Path) -> bool:
    """Whether the server's own Python is below, which sandboxes may read."""
    return any(Path(one).is_relative_to(path) for one in (sys.prefix, sys.base_prefix))


class _Found(msgspec.Struct, frozen=True, kw_only=True):
    """What the probes have found at a level."""

    level: str
    tried: int
    problems: tuple[str, ...]


async def _look(
    server: RealServer, inside: Inside, other: _Neighbour, ground: Ground, expected: str
) -> _Found:
    said = await _probe(server, inside, other, ground)
    left = await asyncio.to_thread(_left_outside, server)
    alive = (await server.client.get("/api/v1/users/me")).status == 200
    shown = await server.client.sandbox(inside.id)
    assert shown is not None
    level = str(shown["isolation"])
    problems = [f"{level}: {name}" for name in [*said["through"], *left]]
    problems += [] if alive else [f"{level}: the server has ended"]
    if level != expected:
        problems.append(f"{expected} does not work here, the level is {level}")
    return _Found(level=level, tried=said["tried"], problems=tuple(problems))


async def _in_processes(ground: Ground) -> _Found:
    async with real_server(ground.place("held"), _HELD) as server:
        inside, other = [await server.sandbox() for _ in range(2)]
        own, theirs = (server.installation.sandbox_dir(one.id) for one in (inside, other))
        neighbour = _Neighbour(
            id=other.id, secret=theirs / "workspace" / "secret", directory=theirs, own=own.name
        )
        return await _look(server, inside, neighbour, ground, "bubblewrap")


async def _in_containers(ground: Ground, engine: Engine) -> _Found:
    specs = {"shut": {"network": "none"}}
    async with server_of_containers(ground.place("contained"), engine, specs) as server:
        inside, other = [await server.sandbox() for _ in range(2)]
        parts = await asyncio.to_thread(parts_of, engine, inside.id, other.id)
        neighbour = _Neighbour(
            id=other.id,
            secret=parts.files / "secret",
            directory=parts.files,
            own=inside.id,
            dials=tuple((host, port) for host in parts.hosts for port in (8000, 2375, 22)),
            engine=str(engine.socket),
        )
        return await _look(server, inside, neighbour, ground, "container")


async def run(ground: Ground) -> Outcome:
    found = [await _in_processes(ground)]
    async with engine_or_why_not() as engine:
        lacking = "" if isinstance(engine, Engine) else f". Containers were not tried: {engine}"
        if isinstance(engine, Engine):
            found.append(await _in_containers(ground, engine))
    problems = [problem for one in found for problem in one.problems]
    # Nothing keeps its probes from this machine, so it is not asked for what would harm it.
    said, plain = await _level_of_none(ground)
    return Outcome(
        did=(
            f"probes from inside of real sandboxes with the network `none`: "
            f"{', '.join(f'{one.tried} at the level {one.level}' for one in found)}; of the same"
            f" reads, {plain} get through at the level `{said}`, which says so{lacking}"
        ),
        figures=(
            Figure(
                what="probes at a level, at least",
                value=min(one.tried for one in found),
                at_least=PROBES,
            ),
            zero("successes", problems),
            Figure(what="reads that get through without isolation", value=plain, at_least=1),
        ),
        problems=tuple(problems),
    )


_READS: Final = r"""
import base64, json, os, sys
know = json.loads(base64.b64decode(sys.argv[1]))
def reads(path):
    try:
        with open(path, "rb") as file:
            return bool(file.read(1))
    except OSError:
        return False
print(json.dumps(sum(map(reads, know))))
"""


async def _level_of_none(ground: Ground) -> tuple[str, int]:
    """Return what a sandbox without isolation says of itself, and how much it can read."""
    async with real_server(ground.place("plain"), _NONE) as server:
        inside = await server.sandbox()
        data = server.installation.data
        paths = [str(data.database), str(data.master_key), "/etc/shadow"]
        count = await inside.run(_READS, msgspec.json.encode(paths).decode())
        shown = await server.client.sandbox(inside.id)
        assert shown is not None
        return str(shown["isolation"]), int(count)


ROW: Final = Row(name="containment", half=Half.IN, promise="sandbox containment", run=run)
