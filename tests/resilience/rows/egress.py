"""Where a sandbox may connect: destinations tried from inside, straight and by the server's proxy.

One sandbox is at the defaults, and must not reach this machine; one has the network `none`, one an
allow-list with one place on it, which has to be reached: by that the others are seen to be refused,
and not only away. What listens outside notes who comes.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from tests.live.containers import Engine
from tests.resilience.book import Figure, Ground, Half, Outcome, Row, zero
from tests.resilience.contained import engine_or_why_not, server_of_containers
from tests.resilience.pair import attacking_pair, not_at_default
from tests.resilience.real import RealServer, own_address, real_server

DESTINATIONS: Final = 200
_HOSTS: Final = (
    *("127.0.0.1", "127.1", "0x7f000001", "2130706433", "0177.0.0.1", "localhost", "LOCALHOST."),
    *("0.0.0.0", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::]", "{own}", "{own}."),  # noqa: S104  # destinations
    *("10.0.0.1", "172.17.0.1", "192.168.0.1", "100.64.0.1", "169.254.169.254", "2852039166"),
    *(
        "1.1.1.1",
        "8.8.8.8",
        "93.184.215.14",
        "example.org",
        "EXAMPLE.ORG",
        "metadata.google.internal",
    ),
    *("allowed.test@{own}", "{own}#allowed.test", "{own}%00.allowed.test", "allowed.test.{own}"),
    *(
        "{own}.nip.io",
        "[fe80::1]",
        "[fd00::1]",
        "[2606:4700:4700::1111]",
        "224.0.0.1",
        "255.255.255.255",
    ),
    *("evil.allowed.test.example.org", "xn--80ak6aa92e.com", "%31%32%37.0.0.1", "①②⑦.0.0.1", ""),
)
_LARGE: Final = 0.05
_MACHINES: Final = ("10.0.2.2", "10.0.2.3", "10.0.2.100", "127.0.0.53", "host.docker.internal")
"""Where programs that carry a sandbox's network have the machine, or what is on it."""
PROGRAM: Final = r"""
import base64, concurrent.futures, json, os, socket, sys, urllib.parse
know = json.loads(base64.b64decode(sys.argv[1]))
proxy = urllib.parse.urlsplit(os.environ.get("HTTP_PROXY") or os.environ.get("http_proxy") or "")
through, tried = [], 0
# Where names are asked of somebody who does not answer, each would take half a minute.
os.environ["RES_OPTIONS"] = "timeout:1 attempts:1"

def says(stream, lines):
    stream.sendall(lines.encode())
    return stream.recv(200)

def plain(host, port):
    kind = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    with socket.socket(kind, socket.SOCK_STREAM) as stream:
        stream.settimeout(3)
        stream.connect((host.strip("[]"), port))
        return True

def packet(host, port):
    kind = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    with socket.socket(kind, socket.SOCK_DGRAM) as stream:
        stream.settimeout(0.2)
        stream.sendto(b"egress", (host.strip("[]"), port))
        return bool(stream.recv(10))

def named(host, port):
    return bool(socket.getaddrinfo(host, port)) and not host.strip("[]").replace(".", "").isdigit() and ":" not in host and host.lower().rstrip(".") != "localhost" and not host.lower().startswith("0x")

def asked(lines):
    def work(host, port):
        with socket.create_connection((proxy.hostname, proxy.port), timeout=10) as stream:
            stream.settimeout(30)
            answer = says(stream, lines.format(host=host, port=port))
            words = answer.split(b"\r\n")[0].split()
            # The proxy's own refusals are 4xx and 5xx; what listens outside answers 200.
            return len(words) > 1 and words[1].startswith(b"2")
    return work

WAYS = {
    "tcp": plain,
    "udp": packet,
    "name": named,
    "connect": asked("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n"),
    "connect, another host": asked("CONNECT {host}:{port} HTTP/1.1\r\nHost: allowed.test\r\n\r\n"),
    "get": asked("GET http://{host}:{port}/ HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n"),
    "get, another host": asked("GET http://{host}:{port}/ HTTP/1.1\r\nHost: allowed.test\r\nConnection: close\r\n\r\n"),
    "get, in the host only": asked("GET / HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n"),
}
def tries(destination):
    way, host, port = destination
    try:
        return bool(WAYS[way](host, port))
    except (OSError, UnicodeError, ValueError, OverflowError):
        return False

# What leads nowhere is waited for.
with concurrent.futures.ThreadPoolExecutor(16) as pool:
    for (way, host, port), is_reached in zip(know["destinations"], pool.map(tries, know["destinations"])):
        tried += 1
        if is_reached:
            through.append(f"{way} {host} {port}")
allowed = []
for way in ("connect", "get"):
    try:
        if WAYS[way](*know["allowed"]):
            allowed.append(way)
    except OSError:
        pass
print(json.dumps({"through": through, "tried": tried, "allowed": allowed, "proxy": bool(proxy.port)}))
"""
_WAYS: Final = (
    *("tcp", "udp", "name", "connect", "connect, another host", "get", "get, another host"),
    "get, in the host only",
)


class Listener:
    """Something outside that answers whoever comes, and counts them."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("", 0))
        self.port = int(self._socket.getsockname()[1])
        self.came = 0
        threading.Thread(target=self._take, daemon=True).start()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _take(self) -> None:
        while True:
            try:
                stream, _ = self._socket.accept()
            except OSError:
                return
            self.came += 1
            threading.Thread(target=self._answer, args=(stream,), daemon=True).start()

    def _answer(self, stream: socket.socket) -> None:
        with stream:
            stream.settimeout(10)
            try:
                if stream.recv(1000):
                    stream.sendall(
                        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                    )
            except OSError:
                return


@contextmanager
def listening() -> Iterator[tuple[Listener, Listener]]:
    """Give one that may be reached and one that may not."""
    pair = Listener(), Listener()
    try:
        yield pair
    finally:
        for one in pair:
            one.close()


def _destinations(ground: Ground, trap: int) -> list[tuple[str, str, int]]:
    own = own_address()
    every = [
        (way, host.format(own=own), port)
        for way in _WAYS
        for host in _HOSTS
        for port in (trap, 80, 443, 22)
        if host or way not in ("tcp", "udp", "name")
    ]
    return ground.chance.sample(every, ground.count(DESTINATIONS, least=40))


class _Tries:
    """Tries destinations from sandboxes, and remembers what was reached as it may not be."""

    def __init__(self, ground: Ground, trap: int) -> None:
        self._ground = ground
        self._trap = trap
        self.problems: list[str] = []
        self.tried: dict[str, int] = {}

    async def both(self, server: RealServer, expected: str, place: tuple[str, int]) -> None:
        """Try from a sandbox of each of the two specs of a server."""
        for spec in ("shut", "listed"):
            inside = await server.sandbox(spec)
            shown = await server.client.sandbox(inside.id)
            level = str((shown or {}).get("isolation"))
            if level != expected:
                self.problems.append(f"{spec}: the level is {level}, not {expected}")
            destinations = _destinations(self._ground, self._trap)
            know: dict[str, Any] = {"destinations": destinations, "allowed": place}
            said = await inside.run(PROGRAM, msgspec.json.encode(know).decode())
            self.tried[level] = self.tried.get(level, 0) + said["tried"]
            self.problems += [f"{level} {spec}: {one}" for one in said["through"]]
            reached = ["connect", "get"] if spec == "listed" else []
            if said["allowed"] != reached or not said["proxy"]:
                self.problems.append(f"{level} {spec}: what is listed is reached by {said}")


async def _at_defaults(ground: Ground, trap: int) -> tuple[int, list[str]]:
    """Try this machine's addresses from a sandbox of the default spec; the world it may reach."""
    hosts = [*_HOSTS, *_MACHINES, socket.gethostname()]
    every = [(way, host.format(own=own_address()), trap) for way in _WAYS for host in hosts if host]
    # Names that nobody answers for take their time.
    chosen = ground.chance.sample(every, ground.count(len(every), least=40))
    near = [
        (way, host, trap)
        for way in ("tcp", "get")
        for host in ("127.0.0.1", own_address(), "10.0.2.2")
    ]
    async with attacking_pair(ground.place("default")) as pair:
        know: dict[str, Any] = {"destinations": [*near, *chosen], "allowed": ("127.0.0.1", trap)}
        said = await pair.attacker.inside.run(PROGRAM, msgspec.json.encode(know).decode())
        # Whether a name is known says nothing of what is reached.
        through = [one for one in said["through"] if not one.startswith("name ")]
        through += [f"{way} 127.0.0.1 {trap}" for way in said["allowed"]]
        return said["tried"], [*not_at_default(pair), *(f"default: {one}" for one in through)]


async def run(ground: Ground) -> Outcome:
    lacking = ". Containers were not tried at this scale"
    with listening() as (allowed, trap):
        near, at_defaults = await _at_defaults(ground, trap.port)
        tries = _Tries(ground, trap.port)
        tries.problems += at_defaults
        environment = {
            "AGENTSVC_SPECS__SHUT__BACKEND": "process",
            "AGENTSVC_SPECS__SHUT__NETWORK": "none",
            "AGENTSVC_SPECS__LISTED__BACKEND": "process",
            "AGENTSVC_SPECS__LISTED__NETWORK": "allowlist",
            "AGENTSVC_SPECS__LISTED__ALLOW_HOSTS": msgspec.json.encode(
                [f"127.0.0.1:{allowed.port}"]
            ).decode(),
        }
        async with real_server(ground.place("server"), environment) as server:
            await tries.both(server, "bubblewrap", ("127.0.0.1", allowed.port))
        if ground.scale < _LARGE:
            return _outcome(ground, tries, trap.came, near, lacking)
        async with engine_or_why_not() as engine:
            if isinstance(engine, Engine):
                lacking = ""
                listed = [f"{engine.address}:{allowed.port}"]
                specs: dict[str, dict[str, Any]] = {
                    "shut": {"network": "none"},
                    "listed": {"network": "allowlist", "allow_hosts": listed},
                }
                directory = ground.place("contained")
                async with server_of_containers(directory, engine, specs) as server:
                    await tries.both(server, "container", (engine.address, allowed.port))
            else:
                lacking = f". Containers were not tried: {engine}"
        return _outcome(ground, tries, trap.came, near, lacking)


def _outcome(ground: Ground, tries: _Tries, came: int, near: int, lacking: str) -> Outcome:
    problems = tries.problems + ([f"{came} connections came outside"] if came else [])
    return Outcome(
        did=(
            f"{near} ways to this machine tried from a sandbox at the defaults; destinations tried from"
            " inside of real sandboxes, one with the network `none` and one with `allowlist`,"
            f" straight, by names and by the server's proxy, in {len(_WAYS)} ways:"
            f" {', '.join(f'{count} at the level {one}' for one, count in tries.tried.items())};"
            f" what is listed was reached by the second only{lacking}"
        ),
        figures=(
            Figure(what="ways to this machine at the defaults", value=near, at_least=40),
            Figure(
                what="destinations at a level, at least",
                value=min(tries.tried.values()),
                at_least=2 * ground.count(DESTINATIONS, least=40),
            ),
            zero("through", problems),
        ),
        problems=tuple(problems),
    )


ROW: Final = Row(name="egress", half=Half.IN, promise="egress", run=run)
