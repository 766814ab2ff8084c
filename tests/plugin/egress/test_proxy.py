"""What the egress proxy passes on, what it answers, and what it never spends."""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from agentsvc.plugin.egress import (
    Policy,
    Proxy,
    ProxyLimits,
    Resolver,
    parse_policy,
    proxy_environment,
)
from tests.plugin.egress.rig import TableResolver, ask, connect, open_proxy, open_target

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi"
RELAY = Path(sys.modules[Proxy.__module__].__file__ or "").with_name("relay.py")
RUN_RELAY = """
import runpy, sys
relay = runpy.run_path(sys.argv[1])["Relay"]()
relay.open(sys.argv[2:])
print("ready", flush=True)
while True:
    relay.serve()
"""


def listing(port: int) -> Policy:
    return parse_policy("allowlist", [f"*.example.org:{port}", f"127.0.0.1:{port}"])


async def test_a_tunnel_to_a_listed_host_carries_bytes_both_ways() -> None:
    async with open_target() as target:
        table = {"up.example.org": ["127.0.0.1"]}
        async with open_proxy(listing(target.port), table) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"CONNECT UP.Example.org.:{target.port} HTTP/1.1\r\n\r\nearly".encode())
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
            writer.write(b"late")
            writer.write_eof()
            assert await reader.read(-1) == b"earlylate"
            writer.close()


async def test_a_plain_request_is_passed_on_as_one_of_the_target() -> None:
    async with open_target(OK) as target:
        table = {"up.example.org": ["127.0.0.1"]}
        async with open_proxy(listing(target.port), table) as (_, port):
            answer = await ask(
                port,
                f"GET http://up.example.org:{target.port}?a=1#part HTTP/1.1\r\nHost: evil.test\r\n"
                "Proxy-Authorization: Basic x\r\nConnection: keep-alive\r\nX-A: b\r\n\r\n".encode(),
            )
            assert answer == OK
        assert target.heads == [
            f"GET /?a=1 HTTP/1.1\r\nHost: up.example.org:{target.port}\r\nX-A: b\r\n"
            "Connection: close\r\n\r\n".encode()
        ]


async def test_a_name_is_looked_up_once_and_never_when_it_is_not_listed() -> None:
    resolver = TableResolver({"up.example.org": ["127.0.0.1"], "evil.test": ["127.0.0.1"]})
    async with open_target() as target:
        proxy = Proxy(listing(target.port), name="box", resolver=resolver)
        port = await proxy.listen_tcp("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"CONNECT up.example.org:{target.port} HTTP/1.1\r\n\r\n".encode())
        assert b" 200 " in await reader.readline()
        writer.close()
        await connect(port, f"evil.test:{target.port}")
        await proxy.close()
    resolver.close()
    assert resolver.asked == ["up.example.org"]


async def test_slow_names_of_one_sandbox_keep_no_other_from_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    are_answered = threading.Event()

    def look_up(name: str, *_: object, **__: object) -> list[object]:
        asked.append(name)
        if name.startswith("slow"):
            are_answered.wait(60)
        return [(0, 0, 0, "", ("127.0.0.1", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    resolver, limits = Resolver(), ProxyLimits(connect_seconds=0.5)
    async with open_target() as target:
        policy = listing(target.port)
        one, other = (
            Proxy(policy, name=name, resolver=resolver, limits=limits) for name in ("one", "other")
        )
        slow, port = [await proxy.listen_tcp("127.0.0.1", 0) for proxy in (one, other)]
        # What is given up is still in its thread, and counts.
        for _ in range(2):
            names = [f"slow{number}.example.org:{target.port}" for number in range(20)]
            answers = await asyncio.gather(*(connect(slow, name) for name in names))
            assert all(b" 502 " in answer for answer in answers)
        assert len(asked) == limits.lookups
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"CONNECT up.example.org:{target.port} HTTP/1.1\r\n\r\n".encode())
        assert b" 200 " in await reader.readline()
        writer.close()
        are_answered.set()
        await one.close()
        await other.close()
    resolver.close()


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (parse_policy("none"), [b'`network = "none"`']),
        (parse_policy("allowlist"), [b"`allow_hosts`", b"add `up.example.org:8443`"]),
        (parse_policy("open"), [b"127.0.0.1 is not a public address", b"add `127.0.0.1:8443`"]),
    ],
)
async def test_a_refusal_says_which_key_to_change(policy: Policy, words: list[bytes]) -> None:
    async with open_proxy(policy, {"up.example.org": ["127.0.0.1"]}) as (_, port):
        answer = await connect(port, "up.example.org:8443")
    assert answer.startswith(b"HTTP/1.1 403 ")
    for word in words:
        assert word in answer


async def test_what_the_server_needs_is_reached_in_every_mode() -> None:
    async with open_target(OK) as target:
        policy = parse_policy("none", needed=[("LocalHost", target.port), ("::1", 1)])
        async with open_proxy(policy, {"localhost": ["127.0.0.1"]}) as (_, port):
            url = f"http://localhost:{target.port}/"
            assert await ask(port, f"GET {url} HTTP/1.1\r\n\r\n".encode()) == OK
            other = await connect(port, f"localhost:{target.port - 1}")
            assert other.startswith(b"HTTP/1.1 403 ")


async def test_a_listed_host_that_is_not_there_is_a_bad_gateway() -> None:
    async with open_target() as target:
        pass
    table = {"up.example.org": ["127.0.0.1"]}
    async with open_proxy(listing(target.port), table) as (_, port):
        assert b" 502 " in (await connect(port, f"up.example.org:{target.port}")).splitlines()[0]
        unknown = await connect(port, f"unknown.example.org:{target.port}")
        assert b"its name cannot be resolved" in unknown


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (b"GET ftp://up.example.org/ HTTP/1.1\r\n\r\n", b"400"),
        (b"GET https://up.example.org/ HTTP/1.1\r\n\r\n", b"400"),
        (b"GET http://u:p@up.example.org/ HTTP/1.1\r\n\r\n", b"400"),
        (b"GET http://up.example.org/\r\n\r\n", b"400"),
        (b"CONNECT up.example.org HTTP/1.1\r\n\r\n", b"400"),
        (b"CONNECT up.example.org:0 HTTP/1.1\r\n\r\n", b"400"),
        (b"CONNECT up.example.org:99999 HTTP/1.1\r\n\r\n", b"400"),
        (b"CONNECT up.example.org:443 HTTP/2\r\n\r\n", b"400"),
        (b"GET http://up.example.org/ HTTP/1.1\r\nno header\r\n\r\n", b"400"),
        (b"GET http://up.example.org/ HTTP/1.1\r\nA: b\nHost: evil\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400"),
        (b"\xff\xfe GET x\r\n\r\n", b"400"),
        (b"GET http://up.example.org/" + b"x" * 70000 + b" HTTP/1.1\r\n\r\n", b"431"),
    ],
)
async def test_what_is_no_request_is_told_so(request_bytes: bytes, status: bytes) -> None:
    async with open_proxy(parse_policy("allowlist", ["*.example.org"])) as (_, port):
        answer = await ask(port, request_bytes)
        assert answer.split(b" ")[1] == status


async def test_a_request_that_never_comes_is_given_up() -> None:
    limits = ProxyLimits(head_seconds=0.05)
    async with open_proxy(parse_policy("none"), limits=limits) as (_, port):
        assert b" 408 " in await ask(port, b"CONNECT up.exam")


async def test_a_connection_on_which_nothing_moves_is_ended() -> None:
    async with open_target() as target:
        policy = parse_policy("allowlist", [f"127.0.0.1:{target.port}"])
        async with open_proxy(policy, limits=ProxyLimits(idle_seconds=0.05)) as (_, port):
            assert b" 200 " in await connect(port, f"127.0.0.1:{target.port}")


async def test_more_connections_than_the_limit_are_refused_and_later_ones_served() -> None:
    async with open_target() as target:
        policy = parse_policy("allowlist", [f"127.0.0.1:{target.port}"])
        async with open_proxy(policy, limits=ProxyLimits(connections=3)) as (_, port):
            held = []
            for _ in range(3):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(f"CONNECT 127.0.0.1:{target.port} HTTP/1.1\r\n\r\n".encode())
                assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
                held.append((reader, writer))
            assert b" 503 " in await ask(port, b"")
            for reader, writer in held:
                writer.write_eof()
                assert await reader.read() == b""
                writer.close()
            async with asyncio.timeout(20):
                while b" 503 " in await ask(port, b"CONNECT x:1 HTTP/1.1\r\n\r\n"):
                    pass


async def test_a_reader_that_stalls_holds_the_sender_and_no_memory() -> None:
    async with open_target() as target:
        policy = parse_policy("allowlist", [f"127.0.0.1:{target.port}"])
        async with open_proxy(policy) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"CONNECT 127.0.0.1:{target.port} HTTP/1.1\r\n\r\n".encode())
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")

            # Nothing is read here, so the echo stops, and with it what is taken from us.
            async def flood() -> None:
                for _ in range(2000):
                    writer.write(bytes(65536))
                    await writer.drain()

            with pytest.raises(TimeoutError):
                await asyncio.wait_for(flood(), 0.7)
            writer.transport.abort()


async def test_decisions_are_logged_without_paths_and_not_without_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with open_target(OK) as target:
        with caplog.at_level(logging.INFO, "agentsvc.plugin.egress"):
            async with open_proxy(listing(target.port), {}) as (_, port):
                url = f"http://127.0.0.1:{target.port}/secret-path?token=secret-word"
                await ask(port, f"GET {url} HTTP/1.1\r\n\r\n".encode())
                for _ in range(400):
                    assert b" 403 " in await connect(port, "evil.test:443")
    lines = [record.__dict__ for record in caplog.records]
    assert lines[0]["message"] == "egress allowed"
    assert (lines[0]["sandbox_id"], lines[0]["host"]) == ("box", "127.0.0.1")
    assert lines[1]["message"] == "egress denied"
    assert "`allow_hosts`" in lines[1]["reason"]
    assert "secret" not in str(lines)
    assert len(lines) < 320


async def test_a_policy_can_be_replaced_while_the_proxy_runs() -> None:
    async with open_target(OK) as target, open_proxy(parse_policy("none")) as (proxy, port):
        request = f"GET http://127.0.0.1:{target.port}/ HTTP/1.1\r\n\r\n".encode()
        assert b" 403 " in await ask(port, request)
        proxy.policy = parse_policy("none", needed=[("127.0.0.1", target.port)])
        assert await ask(port, request) == OK


async def test_closing_cuts_connections_and_can_be_done_twice() -> None:
    async with open_target() as target:
        policy = parse_policy("allowlist", [f"127.0.0.1:{target.port}"])
        async with open_proxy(policy) as (proxy, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"CONNECT 127.0.0.1:{target.port} HTTP/1.1\r\n\r\n".encode())
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
            await proxy.close()
            await proxy.close()
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()


async def test_closing_cuts_a_connection_that_is_only_just_taken() -> None:
    def is_taken() -> bool:
        return any("Proxy._serve" in repr(task.get_coro()) for task in asyncio.all_tasks())

    limits = ProxyLimits(head_seconds=3600)
    async with open_proxy(parse_policy("none"), limits=limits) as (proxy, port):
        with socket.create_connection(("127.0.0.1", port)):
            for _ in iter(is_taken, True):
                await asyncio.sleep(0)
            async with asyncio.timeout(60):
                await proxy.close()


def free_ports(count: int) -> list[int]:
    """Return the numbers of ports at which nobody listens."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


async def test_a_relay_brings_programs_to_the_proxy_and_to_one_fixed_target(tmp_path: Path) -> None:
    resolver = TableResolver({"up.example.org": ["127.0.0.1"]})
    async with open_target(OK) as target:
        proxy = Proxy(listing(target.port), name="box", resolver=resolver)
        path = tmp_path / "s"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        await proxy.listen_on(listener)
        first, second = free_ports(2)
        relay = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", "-c", RUN_RELAY, str(RELAY),
            f"{first}={path}", f"{second}={path}=127.0.0.1:{target.port}",
            stdout=subprocess.PIPE,
        )  # fmt: skip
        assert relay.stdout is not None
        async with asyncio.timeout(20):
            assert await relay.stdout.readline() == b"ready\n"
        url = f"http://up.example.org:{target.port}/"
        assert await ask(first, f"GET {url} HTTP/1.1\r\n\r\n".encode()) == OK
        assert b" 403 " in await connect(first, "evil.test:443")
        assert await ask(second, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n") == OK
        # With no proxy behind it, and refused by it, what connects is hung up on.
        proxy.policy = parse_policy("none")
        assert await ask(second, b"GET / HTTP/1.1\r\n\r\n") == b""
        await proxy.close()
        with contextlib.suppress(ConnectionResetError):
            assert await ask(first, b"CONNECT x:1 HTTP/1.1\r\n\r\n") == b""
        relay.terminate()
        await relay.wait()
    resolver.close()


async def test_beside_the_proxy_ports_are_carried_to_others(tmp_path: Path) -> None:
    file = tmp_path / "policy.json"
    file.write_text(json.dumps({"mode": "none"}))
    proxy, port, dead, nobody = free_ports(4)
    async with open_target(OK) as target:
        program = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "agentsvc.plugin.egress",
            "--policy", str(file), "--host", "127.0.0.1", "--port", str(proxy),
            "--relay", "127.0.0.1", str(port), "127.0.0.1", str(target.port),
            "--relay", "127.0.0.1", str(dead), "127.0.0.1", str(nobody),
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        request = b"GET / HTTP/1.1\r\n\r\n"
        async with asyncio.timeout(30):
            while True:
                with contextlib.suppress(OSError):
                    if await ask(port, request) == OK:
                        break
                await asyncio.sleep(0.05)
            with contextlib.suppress(ConnectionResetError):
                assert await ask(dead, request) == b""
            assert b" 403 " in await ask(proxy, b"GET http://x.test/ HTTP/1.1\r\n\r\n")
        program.terminate()
        assert await program.wait() == 0


async def test_the_proxy_runs_by_itself_and_reads_its_policy_again(tmp_path: Path) -> None:
    file = tmp_path / "policy.json"
    file.write_text(json.dumps({"mode": "none"}))
    [port] = free_ports(1)
    async with open_target(OK) as target:
        program = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "agentsvc.plugin.egress",
            "--policy", str(file), "--host", "127.0.0.1", "--port", str(port),
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        request = f"GET http://127.0.0.1:{target.port}/ HTTP/1.1\r\n\r\n".encode()

        async def until(expected: bytes) -> None:
            async with asyncio.timeout(30):
                while True:
                    try:
                        if expected in await ask(port, request):
                            return
                    except OSError:
                        pass  # it does not listen yet
                    await asyncio.sleep(0.05)

        await until(b" 403 ")
        file.write_text("{")
        os.kill(program.pid, signal.SIGHUP)
        await until(b" 403 ")
        file.write_text(
            json.dumps({"mode": "allowlist", "allow_hosts": [f"127.0.0.1:{target.port}"]})
        )
        os.kill(program.pid, signal.SIGHUP)
        await until(OK)
        program.terminate()
        assert await program.wait() == 0


def test_programs_are_sent_to_the_relay_but_for_what_is_inside() -> None:
    environment = proxy_environment(3128)
    assert environment["https_proxy"] == environment["HTTPS_PROXY"] == "http://127.0.0.1:3128"
    assert "127.0.0.1" in environment["NO_PROXY"].split(",")
