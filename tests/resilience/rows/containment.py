"""A sandbox stays in its sandbox: probes from inside, at the defaults and in containers.

At the defaults a sandbox of one user attacks that of another, which has something at each place that
is tried; from outside it is looked at who the sandbox and the fork server are. The same reads are
run at the level `none`, which promises nothing and says so: there they get through, by which they
are seen to work.
"""

import asyncio
import os
import pwd
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
from process.tree import Process, snapshot

from agentsvc.testing.llm import ScriptedModel
from tests.live.client import LiveClient
from tests.live.containers import Engine
from tests.live.installation import Installation
from tests.resilience.book import Figure, Ground, Half, Outcome, Row, zero
from tests.resilience.contained import engine_or_why_not, parts_of, server_of_containers
from tests.resilience.pair import Attack, Pair, attacking_pair, encode
from tests.resilience.real import Inside, RealServer, own_address

PROBES: Final = 60
_MARK: Final = "campaign-mark"
_HOME_OF_ROOT: Final = pwd.getpwuid(0).pw_dir
_LARGE: Final = 0.05
_WITHOUT: Final = {
    "unconfined": {
        "AGENTSVC_BACKENDS__PROCESS__USE_BUBBLEWRAP": "false",
        "AGENTSVC_BACKENDS__PROCESS__USE_LANDLOCK": "false",
    },
    "without-program": {"PATH": str(Path(sys.executable).parent)},
}
"""Ways to start a server whose sandboxes nothing would hold, each of which has to be refused."""
_FORK_SERVER: Final = "agentsvc-zygote"
_SEALED: Final = ("mnt", "net", "ipc", "uts", "cgroup")
"""The namespaces that what loads code for sandboxes does not share with the server. Nobody joins a
sandbox from another pid namespace; it has no rights in any user namespace."""
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
    server: RealServer,
    inside: Inside,
    other: _Neighbour,
    ground: Ground,
    *,
    expected: str,
    owner: LiveClient,
) -> _Found:
    said = await _probe(server, inside, other, ground)
    left = await asyncio.to_thread(_left_outside, server)
    alive = (await server.client.get("/api/v1/users/me")).status == 200
    shown = await owner.sandbox(inside.id)
    assert shown is not None
    level = str(shown["isolation"])
    problems = [f"{level}: {name}" for name in [*said["through"], *left]]
    problems += [] if alive else [f"{level}: the server has ended"]
    if level != expected:
        problems.append(f"{expected} does not work here, the level is {level}")
    return _Found(level=level, tried=said["tried"], problems=tuple(problems))


HAVE: Final = r"""
import ctypes, mmap, signal, socket, subprocess, threading
MARK = know["mark"].encode()
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
number = libc.shmget(know["key"], 4096, 0o1000 | 0o666)
if number >= 0:
    ctypes.memmove(libc.shmat(number, None, 0), MARK, len(MARK))
queue = libc.msgget(know["key"], 0o1000 | 0o666)
for path in ("/dev/shm/" + know["mark"], "/tmp/" + know["mark"]):
    with open(path, "wb") as file:
        file.write(MARK)
    os.chmod(path, 0o666)
os.mkfifo("/tmp/" + know["mark"] + ".fifo", 0o666)
subprocess.run(["tmux", "-S", "/tmp/" + know["mark"] + ".tmux", "new-session", "-d", "sleep 1000"])
got = []
signal.signal(signal.SIGUSR1, lambda *_: got.append("a signal"))
with open(NAME + ".ready", "w") as file:
    json.dump({"pid": os.getpid(), "shm": number, "queue": queue}, file)
while goes_on():
    time.sleep(0.05)
subprocess.run(["tmux", "-S", "/tmp/" + know["mark"] + ".tmux", "kill-server"])
libc.shmctl(number, 0, None)
libc.msgctl(queue, 0, None)
for path in ("/dev/shm/" + know["mark"], "/tmp/" + know["mark"]):
    with open(path, "rb") as file:
        if file.read() != MARK:
            got.append("a write to " + path)
finish(got)
"""
BESIDE: Final = r"""
import base64, ctypes, glob, json, os, signal, socket, subprocess, sys
know = json.loads(base64.b64decode(sys.argv[1]))
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
through, tried, MARK = [], 0, know["mark"].encode()

def probe(name, work):
    global tried
    tried += 1
    try:
        if work():
            through.append(name)
    except (OSError, ValueError, subprocess.SubprocessError):
        pass

def attached():
    number = libc.shmget(know["key"], 4096, 0o666)
    return number >= 0 and ctypes.string_at(libc.shmat(number, None, 0), len(MARK)) == MARK

def connects(path):
    with socket.socket(socket.AF_UNIX) as stream:
        stream.settimeout(2)
        stream.connect(path)
        return True

def reads(path):
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    os.close(descriptor)
    return True

def marked(pid, what):
    with open(f"/proc/{pid}/{what}", "rb") as file:
        return MARK in file.read()

probe("attach shared memory of another", attached)
for number in {know["shm"], *range(0, 64)}:
    probe(f"attach shared memory {number}", lambda: libc.shmat(number, None, 0) not in (None, 2**64 - 1))
probe("open the message queue of another", lambda: libc.msgget(know["key"], 0o666) >= 0)
for path in (f"/dev/shm/{know['mark']}", *(f"{top}/{know['mark']}{end}" for top in ("/tmp", "/var/tmp", *know["temps"]) for end in ("", ".fifo"))):
    probe(f"open {path} of another", lambda: reads(path))
    probe(f"write {path} of another", lambda: open(path, "r+b").write(b"x") and not os.path.dirname(path) == "/tmp")
for top in ("/tmp", "/var/tmp", *know["temps"]):
    for path in (f"{top}/{know['mark']}.tmux", f"{top}/tmux-1000/default", f"{top}/control"):
        if top not in ("/tmp", "/var/tmp") or know["mark"] in path:
            probe(f"connect to {path}", lambda: connects(path))
            probe(f"tmux at {path}", lambda: subprocess.run(["tmux", "-S", path, "ls"], capture_output=True, timeout=10).returncode == 0)
for pid in filter(str.isdigit, os.listdir("/proc")):
    probe(f"see the process {pid} of another", lambda: marked(pid, "cmdline") and int(pid) != os.getpid() and marked(pid, "environ"))
for pid in know["pids"]:
    def is_there(pid=pid):
        with open(f"/proc/{pid}/status") as file:
            return f"\nNSpid:\t{pid}\n" in file.read() and pid > 1000
    for name in ("environ", "mem", "maps"):
        probe(f"read {name} of {pid} outside", lambda: is_there() and reads(f"/proc/{pid}/{name}"))
    for name in ("root", "cwd", "fd", "ns/net"):
        probe(f"open {name} of {pid} outside", lambda: is_there() and os.open(f"/proc/{pid}/{name}", os.O_RDONLY) >= 0)
    probe(f"signal {pid} outside", lambda: is_there() and os.kill(pid, signal.SIGUSR1) is None)
# In the sandbox's own pid namespace a broadcast must not leave it.
probe("see the fork server", lambda: any("zygote" in open(one).read() for one in glob.glob("/proc/[0-9]*/comm")))
for path in glob.glob("/tmp/agentsvc-zygote-*") + glob.glob("/tmp/agentsvc*"):
    probe(f"see {path}", lambda: True)
print(json.dumps({"through": through, "tried": tried}))
"""


async def _beside(pair: Pair) -> tuple[int, list[str]]:
    """Have the victim put something at each place that sandboxes might share, and look for it."""
    know = {"mark": "neighbour-mark", "key": 0x4A5E0000 + os.getpid() % 0xFFFF}
    having = await Attack.begin(pair.victim, HAVE, seconds=120, **know)
    ready = await having.early(".ready")
    server = pair.server.installation
    said = await pair.attacker.inside.run(
        BESIDE,
        encode(
            {
                **know,
                **ready,
                "temps": [str(one) for one in await asyncio.to_thread(server.temp_dirs)],
                "pids": [server.pid, *await asyncio.to_thread(fork_servers, server.pid)]
                + await asyncio.to_thread(server.agent_servers, pair.victim.inside.id),
            }
        ),
    )
    got = await having.finish()
    return said["tried"], [*said["through"], *(f"the victim got {one}" for one in got)]


def fork_servers(server: int) -> list[int]:
    """Return the pids of what has loaded agent servers for a server of that pid."""
    found = snapshot()
    return [
        pid
        for pid in found
        if _comm(pid).startswith(_FORK_SERVER[:15]) and _descends(found, pid, server)
    ]


def _comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _descends(found: Mapping[int, Process], pid: int, ancestor: int) -> bool:
    while pid in found and pid != ancestor:
        pid = found[pid].parent
    return pid == ancestor


def rights_of(pid: int, server: int) -> list[str]:
    """Say what a process that runs code of sandboxes has of root's rights, and shares with a server."""
    fields = dict(
        line.split(":\t", 1)
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if ":\t" in line
    )
    users = set(fields["Uid"].split())
    wrong = [f"it is user {one} outside" for one in users if one == "0"]
    if int(fields["CapEff"], 16) or int(fields["CapPrm"], 16):
        wrong.append(f"it has capabilities {fields['CapEff']}")
    if fields["NoNewPrivs"].strip() != "1":
        wrong.append("it may get new privileges")
    for name in _SEALED:
        spaces = {Path(f"/proc/{one}/ns/{name}").readlink() for one in (pid, server)}
        wrong += [f"it shares the namespace {name} with the server"] * (len(spaces) == 1)
    return wrong


async def _fork_server(pair: Pair) -> list[str]:
    """Look at the fork server, and at the victim's agent server, from outside."""
    server = pair.server.installation
    found = await asyncio.to_thread(fork_servers, server.pid)
    wrong = [] if found else ["there is no fork server"]
    agents = await asyncio.to_thread(server.agent_servers, pair.victim.inside.id)
    for name, pids in (("fork server", found), ("agent server", agents)):
        for pid in pids:
            wrong += [
                f"{name}: {one}" for one in await asyncio.to_thread(rights_of, pid, server.pid)
            ]
    return wrong


async def _in_processes(ground: Ground) -> _Found:
    async with attacking_pair(ground.place("default")) as pair:
        attacker, victim = pair.attacker, pair.victim
        neighbour = _Neighbour(
            id=victim.inside.id,
            secret=victim.directory / "workspace" / "secret",
            directory=victim.directory,
            own=attacker.directory.name,
        )
        found = await _look(
            pair.server,
            attacker.inside,
            neighbour,
            ground,
            expected="bubblewrap",
            owner=attacker.client,
        )
        tried, problems = await _beside(pair)
        problems += await _fork_server(pair)
        return _Found(
            level=found.level,
            tried=found.tried + tried,
            problems=(*found.problems, *(f"{found.level}: {one}" for one in problems)),
        )


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
        return await _look(
            server, inside, neighbour, ground, expected="container", owner=server.client
        )


async def run(ground: Ground) -> Outcome:
    found = [await _in_processes(ground)]
    lacking = ". Containers were not tried at this scale"
    if ground.scale >= _LARGE:
        async with engine_or_why_not() as engine:
            lacking = "" if isinstance(engine, Engine) else f". Containers were not tried: {engine}"
            if isinstance(engine, Engine):
                found.append(await _in_containers(ground, engine))
    problems = [problem for one in found for problem in one.problems]
    opened = [
        one
        for name, environment in _WITHOUT.items()
        for one in await _start_without(ground.place(name), name, environment)
    ]
    return Outcome(
        did=(
            "probes from inside of real sandboxes, at the defaults against a sandbox of another user,"
            " and in containers with the network `none`: "
            f"{', '.join(f'{one.tried} at the level {one.level}' for one in found)}; a server of root"
            f" was started in {len(_WITHOUT)} ways in which it has no isolation{lacking}"
        ),
        figures=(
            Figure(
                what="probes at a level, at least",
                value=min(one.tried for one in found),
                at_least=PROBES,
            ),
            zero("successes", problems),
            zero("starts without isolation", opened),
        ),
        problems=tuple(problems + opened),
    )


async def _start_without(directory: Path, name: str, environment: dict[str, str]) -> list[str]:
    """Start a server that cannot isolate its sandboxes; it must not become ready, and say why."""
    async with ScriptedModel() as model:
        installation = Installation(directory, model, environment)
        try:
            try:
                await installation.start()
            except AssertionError:
                return [] if "isolat" in installation.log else [f"{name}: it does not say why"]
            return [f"{name}: a server of root starts"]
        finally:
            await installation.close()


ROW: Final = Row(name="containment", half=Half.IN, promise="sandbox containment", run=run)
