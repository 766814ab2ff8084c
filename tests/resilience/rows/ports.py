"""One sandbox takes the ports of another user's: before it listens, while it does, and afterwards.

At the defaults. What the other user's sandbox, the server or their browser sends to a port of theirs
must never arrive in the attacker's sandbox; nor may that see or reach what listens in the other.
"""

import asyncio
from pathlib import Path
from typing import Any, Final

from tests.live.scripts import run as commands
from tests.resilience.book import Figure, Ground, Half, Outcome, Row, zero
from tests.resilience.pair import Attack, Pair, attacking_pair, encode, not_at_default
from tests.resilience.real import own_address

STARTS: Final = 7
MARK: Final = "page-of-the-attacker"
_SECONDS: Final = 300
TAKE: Final = r"""
import errno, socket, struct, threading
MARK, heard, taken, seen = know["mark"], [], {}, set()

def listed():
    # Every TCP socket of the network it is in that is bound or listens: (port, uid).
    found, number = [], 0
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as netlink:
        netlink.settimeout(2)
        for states in (1 << 13 | 1 << 10 | 1 << 7,):
            body = struct.pack("=BBBBI", socket.AF_INET, socket.IPPROTO_TCP, 0, 0, states) + bytes(48)
            netlink.send(struct.pack("=IHHII", 16 + len(body), 20, 0x301, 1, 0) + body)
            while True:
                data, end = netlink.recv(1 << 16), False
                while data:
                    length, kind = struct.unpack_from("=IH", data)
                    if kind != 20:
                        end = True
                        break
                    port, = struct.unpack_from("!H", data, 20)
                    uid, = struct.unpack_from("=I", data, 16 + 4 + 48 + 12)
                    found.append((port, uid))
                    data = data[(length + 3) & ~3:]
                if end:
                    break
    return found

def serve(port, listener):
    while True:
        try:
            stream, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=answer, args=(port, stream), daemon=True).start()

def answer(port, stream):
    with stream:
        stream.settimeout(2)
        data = b""
        try:
            while len(data) < 60000:
                part = stream.recv(60000)
                if not part:
                    break
                data += part
                head, gap, body = data.partition(b"\r\n\r\n")
                length = 0
                for line in head.split(b"\r\n"):
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                if gap and len(body) >= min(length, 50000):
                    break
            page = ('{"status": "ok", "id": "%s"}' % MARK).encode()
            stream.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"
                           b"Content-Length: %d\r\n\r\n" % len(page) + page)
        except OSError:
            pass
        if data and len(heard) < 400:
            heard.append([port, data.decode("latin1")])

def take(port):
    # Only what somebody has bound and does not listen at can be taken.
    with socket.socket() as trial:
        try:
            trial.bind(("127.0.0.1", port))
            return
        except OSError as exc:
            if exc.errno != errno.EADDRINUSE:
                return
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        for address in ("127.0.0.1", "0.0.0.0"):
            listener = socket.socket()
            try:
                listener.setsockopt(socket.SOL_SOCKET, option, 1)
                listener.bind((address, port))
                listener.listen(64)
            except OSError:
                listener.close()
                continue
            taken[port] = listener
            threading.Thread(target=serve, args=(port, listener), daemon=True).start()
            return

low, high = map(int, open("/proc/sys/net/ipv4/ip_local_port_range").read().split())
swept = 0.0
while goes_on():
    try:
        found = listed()
    except OSError:
        found = []
    seen.update(uid for _, uid in found if uid != os.getuid())
    ports = {port for port, uid in found}
    if time.monotonic() - swept > 1:
        swept = time.monotonic()
        ports |= set(know["ports"]) | set(range(low, high, know["step"]))
    for port in ports - set(taken):
        take(port)
    time.sleep(0.001)
# What listens for its own agent server it has not taken from anybody.
finish({"taken": sorted(taken), "heard": heard, "users": sorted(seen)})
"""
LISTEN: Final = r"""
import socket, threading
CANARY, came = know["canary"].encode(), []

def stream(listener, kind):
    while True:
        try:
            one, _ = listener.accept()
        except OSError:
            return
        with one:
            one.settimeout(2)
            try:
                asked = one.recv(1000)
                if b"attacker" in asked:
                    came.append(kind)
                one.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(CANARY) + CANARY)
            except OSError:
                pass

def packets(receiver, kind):
    while True:
        data, sender = receiver.recvfrom(1000)
        if b"attacker" in data:
            came.append(kind)
        receiver.sendto(CANARY, sender)

ports = {}
for name in ("WORKER_1", "tcp", "tcp6"):
    listener = socket.socket(socket.AF_INET6 if name == "tcp6" else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("::1" if name == "tcp6" else "0.0.0.0", int(os.environ.get(name, 0))))
        listener.listen()
    except OSError:
        continue
    ports[name] = listener.getsockname()[1]
    threading.Thread(target=stream, args=(listener, name), daemon=True).start()
for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::1")):
    receiver = socket.socket(family, socket.SOCK_DGRAM)
    try:
        receiver.bind((address, 0))
    except OSError:
        continue
    name = "udp" if family == socket.AF_INET else "udp6"
    ports[name] = receiver.getsockname()[1]
    threading.Thread(target=packets, args=(receiver, name), daemon=True).start()
for name, address in (("abstract", "\0" + know["abstract"]), ("unix", know["unix"])):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    os.name and address[0] != "\0" and os.chmod(address, 0o777)
    listener.listen()
    threading.Thread(target=stream, args=(listener, name), daemon=True).start()
with open(NAME + ".ports", "w") as file:
    json.dump(ports, file)
while goes_on():
    time.sleep(0.05)
finish(came)
"""
REACH: Final = r"""
import base64, json, os, socket, struct, sys
know = json.loads(base64.b64decode(sys.argv[1]))
through, tried = [], 0

def probe(name, work):
    global tried
    tried += 1
    try:
        if work():
            through.append(name)
    except (OSError, ValueError):
        pass

def asks(address, family=socket.AF_INET):
    with socket.socket(family) as stream:
        stream.settimeout(2)
        stream.connect(address)
        stream.sendall(b"GET /attacker HTTP/1.1\r\nHost: x\r\n\r\n")
        return bool(stream.recv(100))

def sends(address, family=socket.AF_INET):
    with socket.socket(family, socket.SOCK_DGRAM) as stream:
        stream.settimeout(0.5)
        stream.sendto(b"attacker", address)
        return bool(stream.recv(100))

def inet_diag(family, protocol):
    own = set()
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as netlink:
        netlink.settimeout(2)
        body = struct.pack("=BBBBI", family, protocol, 0, 0, 0xffffffff) + bytes(48)
        netlink.send(struct.pack("=IHHII", 16 + len(body), 20, 0x301, 1, 0) + body)
        while True:
            data = netlink.recv(1 << 16)
            while data:
                length, kind = struct.unpack_from("=IH", data)
                if kind != 20:
                    return False
                port, = struct.unpack_from("!H", data, 20)
                if port in know["ports"].values():
                    return True
                data = data[(length + 3) & ~3:]

def has_address():
    # What the machine has on its interfaces, seen by binding to it.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as trial:
        trial.bind((know["own"], 0))
        return know["own"] != "127.0.0.1"

for name, port in know["ports"].items():
    for host in ("127.0.0.1", "127.0.0.2", "0.0.0.0", know["own"], "::1", "10.0.2.2", "10.0.2.3"):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        work = sends if name.startswith("udp") else asks
        probe(f"reach {name} of another by {host}", lambda: work((host, port), family))
probe("reach an abstract socket of another", lambda: asks("\0" + know["abstract"], socket.AF_UNIX))
for path in (know["unix"], know["outside"]):
    probe(f"reach a unix socket of another at {path}", lambda: asks(path, socket.AF_UNIX))
for family in (socket.AF_INET, socket.AF_INET6):
    for protocol in (socket.IPPROTO_TCP, socket.IPPROTO_UDP):
        probe(f"see sockets of another by netlink {family} {protocol}", lambda: inet_diag(family, protocol))
for name in ("tcp", "tcp6", "udp", "udp6"):
    mine = {f":{port:04X} " for port in know["ports"].values()}
    probe(f"see sockets of another in /proc/net/{name}", lambda: any(one in open("/proc/net/" + name).read() for one in mine))
probe("see abstract sockets of another", lambda: know["abstract"] in open("/proc/net/unix").read())
probe("see sockets of another by path", lambda: know["unix"] in open("/proc/net/unix").read())
probe("have the machine's own address", has_address)
print(json.dumps({"through": through, "tried": tried}))
"""


class Prey:
    """A user who starts sandboxes and uses their ports, with a canary in each place."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._client = pair.victim.client
        self.secrets: dict[str, str] = {}
        """What must not arrive at the attacker's, with what it is."""
        self.problems: list[str] = []
        self.uses = 0

    async def start(self, number: int) -> None:
        """Start a conversation in a sandbox of its own, with a secret, and delete it again."""
        secret = f"canary-secret-{number}"
        task = await self._client.start_task(
            commands("true"), secrets={"GIVEN": secret}, git_provider=None
        )
        self.secrets[secret] = "a secret of a start"
        ended = await self._client.end_of_start(task["id"])
        for sandbox in (await self._client.get("/api/v1/sandboxes/search")).json()["items"]:
            self._know(sandbox)
            if sandbox["id"] != self._pair.victim.inside.id:
                await self._client.delete(f"/api/v1/sandboxes/{sandbox['id']}")
        if ended["status"] != "READY":
            self.problems.append(f"a start failed: {str(ended['detail'])[:200]}")
        self.uses += 1

    def _know(self, sandbox: dict[str, Any]) -> None:
        if sandbox.get("session_api_key"):
            self.secrets[sandbox["session_api_key"]] = "the session key of a sandbox"

    async def use_worker(self, canary: str) -> None:
        """Ask for the page at a worker port, as its owner's browser would, with a cookie."""
        for name in ("worker_1", "worker_2"):
            cookie = f"app-login=cookie-{canary}-{name}"
            self.secrets[cookie] = f"a cookie for {name}"
            path = f"/sandboxes/{self._pair.victim.inside.id}/{name}/"
            answer = await self._client.get(path, headers={"Cookie": cookie})
            if MARK.encode() in answer.body:
                self.problems.append(f"the attacker's page is at {name} of the victim")
            self.uses += 1

    async def stop_and_resume(self) -> None:
        """Stop a sandbox and start it again: meanwhile nobody holds its ports."""
        path = f"/api/v1/sandboxes/{self._pair.victim.inside.id}"
        await self._client.post(f"{path}/stop")
        await asyncio.sleep(2)
        await self._client.get(f"/sandboxes/{self._pair.victim.inside.id}/agent/server_info")
        await self._client.post(f"{path}/resume")
        try:
            found = await self._client.wait_for_sandbox(
                self._pair.victim.inside.id, "RUNNING", time_limit=60
            )
            self._know(found)
            await self._pair.victim.inside.until_it_answers()
        except (AssertionError, TimeoutError) as exc:
            self.problems.append(f"a stopped sandbox does not come back: {str(exc)[:200]}")
        self.uses += 1


def arrived(prey: Prey, model_key: str, found: Any) -> list[str]:
    """Return what has come to the attacker that was for somebody else."""
    secrets = {**prey.secrets, model_key: "the key of the model"}
    lines = []
    for port, text in found["heard"]:
        kinds = {what for secret, what in secrets.items() if secret in text}
        lines += [f"{what} came to the attacker at port {port}" for what in sorted(kinds)]
        if not kinds:
            lines.append(f"a request came to the attacker at port {port}: {text[:40]!r}")
    return lines


async def _reach(pair: Pair, ground: Ground) -> tuple[int, list[str]]:
    """Have the victim listen in every way there is, and the attacker look for it."""
    victim, attacker = pair.victim, pair.attacker
    names = {"abstract": f"campaign-{victim.inside.id}", "unix": "/tmp/campaign.sock"}  # noqa: S108
    canary = f"canary-{ground.seed}"
    listening = await Attack.begin(victim, LISTEN, seconds=120, canary=canary, **names)
    ports = await listening.early(".ports")
    told = await attacker.inside.run(
        REACH,
        encode(
            {
                **names,
                "ports": ports,
                "own": own_address(),
                "outside": _outside(pair, names["unix"]),
            }
        ),
    )
    own = await victim.client.get(f"/sandboxes/{victim.inside.id}/worker_1/")
    came = await listening.finish()
    problems = [*told["through"], *(f"the attacker came to {kind}" for kind in came)]
    if canary.encode() not in own.body:
        problems.append(f"the owner does not get to their own port: {own.status}")
    return told["tried"], problems


def _outside(pair: Pair, path: str) -> str:
    """Return where a socket of the victim is on this machine."""
    places = pair.server.installation.temp_dirs()
    found = [one for place in places for one in place.rglob(Path(path).name)]
    return str(found[0]) if found else "/nowhere"


async def _take_over(pair: Pair, starts: int) -> tuple[Prey, list[str]]:
    prey = Prey(pair)
    ports = [url["port"] for url in pair.victim.inside.sandbox["exposed_urls"]]
    know = {"mark": MARK, "ports": ports, "step": 1}
    attack = await Attack.begin(pair.attacker, TAKE, seconds=_SECONDS, **know)
    await asyncio.sleep(1)
    for number in range(starts):
        await prey.start(number)
        await prey.use_worker(f"use-{number}")
    await prey.stop_and_resume()
    await prey.use_worker("resumed")
    found = await attack.finish()
    lines = arrived(prey, pair.server.model.key.reveal(), found)
    others = [uid for uid in found["users"] if uid]
    return prey, [*prey.problems, *lines, *(f"sockets of user {uid} are seen" for uid in others)]


async def run(ground: Ground) -> Outcome:
    starts = ground.count(STARTS)
    async with attacking_pair(ground.place("server")) as pair:
        tried, problems = await _reach(pair, ground)
        prey, more = await _take_over(pair, starts)
        wrong = [*not_at_default(pair), *problems, *more]
    return Outcome(
        did=(
            f"{tried} ways to see or reach what another user's sandbox listens at, and a program that"
            f" takes every port which is bound and every other one it can while {starts} sandboxes"
            " of that user start with secrets, their worker ports are used and one is stopped and"
            " resumed"
        ),
        figures=(
            Figure(what="uses of ports under attack", value=prey.uses, at_least=3 * starts),
            zero("successes", wrong),
        ),
        problems=tuple(wrong),
    )


ROW: Final = Row(name="ports", half=Half.IN, promise="nobody takes another's ports", run=run)
