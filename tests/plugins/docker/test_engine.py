"""What the docker backend makes of what engines and registries say."""

import asyncio
import base64
import contextlib
import io
import ipaddress
import json
import struct
import tarfile
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from agentsvc.base.errors import (
    AgentsvcError,
    BackendUnavailable,
    CapacityExceeded,
    Conflict,
    OrderRejected,
    StartFailed,
)
from agentsvc.plugin.backend import (
    NOT_CALLING,
    BackendContext,
    Cause,
    Isolation,
    Network,
    PausedAs,
    Phase,
    Spec,
)
from tests.plugin_loading import part

if TYPE_CHECKING:
    from docker import (
        backend,
        commands,
        engine,
        failures,
        firewall,
        fleet,
        images,
        inspection,
        networks,
        settings,
        streams,
        tunnel,
    )
else:
    backend, engine, failures = (
        part("docker.backend"),
        part("docker.engine"),
        part("docker.failures"),
    )
    commands, firewall = part("docker.commands"), part("docker.firewall")
    fleet, images, inspection = (
        part("docker.fleet"),
        part("docker.images"),
        part("docker.inspection"),
    )
    networks, settings = part("docker.networks"), part("docker.settings")
    streams, tunnel = part("docker.streams"), part("docker.tunnel")

PULLS: dict[str, tuple[type[AgentsvcError], str]] = {
    "manifest for r.example/a:no not found: manifest unknown": (OrderRejected, "no such tag"),
    "pull access denied for a, repository does not exist or may require 'docker login': "
    "denied: requested access to the resource is denied": (OrderRejected, "no image"),
    "reading manifest no in r.example/a: errors:\ndenied: requested access to the resource is"
    " denied\nunauthorized: authentication required": (OrderRejected, "no image"),
    "repository r.example/a not found: name unknown: unknown": (OrderRejected, "no image"),
    "Head https://r.example/v2/a/manifests/1: unauthorized: authentication required": (
        OrderRejected,
        "refuses the login",
    ),
    "Get https://r.example/v2/: no basic auth credentials": (OrderRejected, "refuses the login"),
    "write /var/lib/docker/tmp/x: no space left on device": (CapacityExceeded, "disk is too full"),
    "toomanyrequests: You have reached your pull rate limit": (CapacityExceeded, "log in or wait"),
    "invalid reference format": (OrderRejected, "not a valid image name"),
    "no matching manifest for linux/riscv64 in the manifest list entries": (
        OrderRejected,
        "no variant for the engine's platform",
    ),
    "dial tcp: lookup r.example: no such host": (BackendUnavailable, "cannot be reached"),
    "dial tcp 127.0.0.1:5: connect: connection refused": (BackendUnavailable, "cannot be reached"),
    "something else\nentirely": (BackendUnavailable, "something else entirely"),
}


@pytest.mark.parametrize(("said", "meant"), PULLS.items(), ids=range(len(PULLS)))
def test_each_way_a_pull_fails_is_an_error_of_its_own(
    said: str, meant: tuple[type[AgentsvcError], str]
) -> None:
    error = failures.from_pull("r.example/a:no", said)
    assert type(error) is meant[0]
    assert meant[1] in error.message
    assert "r.example/a:no" in error.message
    assert "\n" not in error.message + error.detail


@pytest.mark.parametrize(
    ("status", "said", "kind"),
    [
        (500, "mkdir /x: no space left on device", CapacityExceeded),
        (400, "Unknown runtime specified nope", OrderRejected),
        (500, 'exec: "/bin/sh": stat /bin/sh: no such file or directory', OrderRejected),
        (409, "is being removed", Conflict),
        (404, "No such image: a", OrderRejected),
        (400, "invalid", OrderRejected),
        (500, "whatever", BackendUnavailable),
    ],
)
def test_what_an_engine_refuses_is_told_apart(
    status: int, said: str, kind: type[AgentsvcError]
) -> None:
    assert type(failures.from_engine(status, said)) is kind


# Looks


def container(status: str, **state: Any) -> dict[str, Any]:
    labels = {
        "agentsvc.ports": "agent=8000,web=8100",
        "agentsvc.awaited": "agent",
        "agentsvc.workdir": "/workspace/project",
        "agentsvc.network": "open",
        "agentsvc.callback": "yes",
    }
    running = {"Running": status in ("running", "paused"), "Paused": status == "paused"}
    return {
        "Id": "c1",
        "Config": {"Labels": labels},
        "State": {"Status": status, **running, **state},
        "NetworkSettings": {
            "Ports": {"8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": "32768"}], "8100/tcp": None},
            "Networks": {
                "bridge": {"IPAddress": "172.17.0.9"},
                "oh-agent-server-x-outer": {"IPAddress": "10.213.0.3"},
            },
        },
    }


def seen(found: dict[str, Any], **changes: Any) -> inspection.ContainerStates:
    return msgspec.structs.replace(
        inspection.ContainerStates(container=found, front=found), **changes
    )


def test_a_running_sandbox_is_reached_at_its_own_address_or_where_it_is_published() -> None:
    found = container("running")
    report = inspection.to_report(seen(found))
    assert report.phase is Phase.RUNNING
    assert report.isolation is Isolation.CONTAINER
    assert (report.working_dir, report.facts) == ("/workspace/project", {})
    assert [end.url for end in report.endpoints] == [
        "http://10.213.0.3:8000",
        "http://10.213.0.3:8100",
    ]
    published = inspection.to_report(seen(found, publish="127.0.0.1"))
    assert [end.url for end in published.endpoints] == ["http://127.0.0.1:32768"]
    assert inspection.awaited(published, found) == ["http://127.0.0.1:32768"]


def test_a_port_without_an_address_is_waited_for() -> None:
    found = container("running")
    found["NetworkSettings"]["Ports"] = {}
    report = inspection.to_report(seen(found, publish="127.0.0.1"))
    assert inspection.awaited(report, found) is None
    assert inspection.still_starting(report).phase is Phase.STARTING


def test_a_sandbox_without_its_gateway_does_not_run() -> None:
    for front in (None, container("exited")):
        report = inspection.to_report(seen(container("running"), front=front))
        assert (report.phase, report.reason) == (Phase.STARTING, "its gateway is not running")


def test_a_frozen_sandbox_keeps_its_memory_and_one_that_was_stopped_does_not() -> None:
    frozen = inspection.to_report(seen(container("paused")))
    assert (frozen.phase, frozen.paused_as) == (Phase.PAUSED, PausedAs.FROZEN)
    stopped = inspection.to_report(seen(container("exited", ExitCode=137), is_paused=True))
    assert (stopped.phase, stopped.paused_as) == (Phase.PAUSED, PausedAs.STOPPED)


@pytest.mark.parametrize(
    ("state", "had_oom", "cause", "word"),
    [
        ({"ExitCode": 3}, False, Cause.EXITED, "exit code 3"),
        ({"ExitCode": 137, "OOMKilled": True}, False, Cause.OUT_OF_MEMORY, "memory"),
        ({"ExitCode": 137}, True, Cause.OUT_OF_MEMORY, "memory"),
        ({"ExitCode": 137}, False, Cause.LOST, "from outside"),
        ({"ExitCode": 143}, False, Cause.LOST, "from outside"),
        ({"ExitCode": 139}, False, Cause.SIGNALLED, "signal 11"),
        ({"ExitCode": 127}, False, Cause.NOT_STARTED, "cannot be run"),
        ({"ExitCode": 255}, False, Cause.HOST_RESTARTED, "engine was not running"),
        ({"ExitCode": 127, "Error": "no\nway"}, False, Cause.NOT_STARTED, "no way"),
    ],
)
def test_why_a_sandbox_has_ended(
    state: dict[str, Any], had_oom: bool, cause: Cause, word: str
) -> None:
    report = inspection.to_report(seen(container("exited", **state), had_oom=had_oom))
    assert (report.phase, report.cause) == (Phase.FAILED, cause)
    assert word in report.reason
    assert report.exit_code == state["ExitCode"]


def test_a_killed_child_shows_while_its_sandbox_runs() -> None:
    report = inspection.to_report(seen(container("running"), had_oom=True))
    assert report.phase is Phase.RUNNING
    assert "memory" in report.reason
    assert report.facts["out_of_memory"] == "yes"


def test_a_sandbox_without_a_way_back_says_so() -> None:
    found = container("created")
    found["Config"]["Labels"]["agentsvc.callback"] = "no"
    report = inspection.to_report(seen(found))
    assert report.phase is Phase.STARTING
    assert report.facts == NOT_CALLING


# Engines


INFO = {
    "SecurityOptions": ["name=seccomp,profile=default"],
    "CgroupVersion": "2",
    "Driver": "overlay2",
    "DriverStatus": [["Backing Filesystem", "extfs"]],
    "Runtimes": {"runc": {}, "runsc": {}},
    "DefaultRuntime": "runc",
    "InitBinary": "docker-init",
    "PidsLimit": True,
    "MemoryLimit": True,
    "CpuCfsQuota": True,
    "NCPU": 4,
    "MemTotal": 8,
}
VERSION = {"Version": "20.10", "ApiVersion": "1.41", "Components": [{"Name": "Engine"}]}


def test_an_engine_says_what_it_can_do() -> None:
    facts = engine.to_facts(INFO, VERSION, is_beside=True)
    assert (facts.kind, facts.version, facts.runtimes) == ("docker", "20.10", ("runc", "runsc"))
    assert facts.can_freeze
    assert facts.is_beside
    assert facts.shown()["limits"] == "cpus, memory, pids"
    assert facts.shown()["disk quota"] == "no"


def test_podman_without_root_on_old_control_groups_can_neither_freeze_nor_be_dialled() -> None:
    # It says that it has limits all the same.
    said = {"PidsLimit": True, "MemoryLimit": True, "CpuCfsQuota": True}
    info = {"SecurityOptions": ["name=rootless"], "CgroupVersion": "1", "NCPU": 1, **said}
    version = {"Version": "4.3", "Components": [{"Name": "Podman Engine"}]}
    facts = engine.to_facts(info, version, is_beside=True)
    assert facts.kind == "podman"
    assert facts.is_rootless
    assert not facts.can_freeze
    assert not facts.is_beside
    assert facts.shown()["limits"] == "none"
    on_new = engine.to_facts({**info, "CgroupVersion": "2"}, version, is_beside=True)
    assert on_new.shown()["limits"] == "cpus, memory, pids"
    assert on_new.can_freeze
    without = {**info, "CgroupVersion": "2", "CgroupDriver": "none"}
    assert not engine.to_facts(without, VERSION, is_beside=False).can_freeze


@pytest.mark.parametrize(
    ("version", "security", "knows"),
    [
        (VERSION, "name=seccomp", True),
        (VERSION, "name=rootless", False),
        *(
            ({"Version": number, "Components": [{"Name": "Podman Engine"}]}, "name=rootless", knows)
            for number, knows in (("4.3.1", False), ("5.4.2", True), ("12.0.0", True), ("", False))
        ),
    ],
)
def test_not_every_engine_leads_its_containers_to_its_machine(
    version: dict[str, Any], security: str, knows: bool
) -> None:
    info = {"SecurityOptions": [security], "NCPU": 1}
    assert engine.to_facts(info, version, is_beside=False).knows_its_machine is knows


def test_logins_are_those_of_docker_login() -> None:
    login = base64.b64encode(b"me:pass:word").decode()
    file = json.dumps(
        {
            "auths": {
                "r.example:5000": {"auth": login},
                "https://index.docker.io/v1/": {"auth": login},
            }
        }
    )
    header = json.loads(base64.urlsafe_b64decode(engine.registry_login(file, "r.example:5000/a/b")))
    assert header == {
        "username": "me",
        "password": "pass:word",
        "serveraddress": "r.example:5000",
    }
    assert engine.registry_login(file, "python:3.13")
    assert engine.registry_login(file, "owner/name")
    assert engine.registry_login(file, "docker.io/owner/name")
    assert engine.registry_login(file, "other.example/a") == ""
    assert engine.registry_login("{}", "a") == ""


def test_a_file_of_logins_that_is_none_is_refused(tmp_path: Path) -> None:
    assert images.read_login("", "a") == ""
    with pytest.raises(OrderRejected, match="cannot be read"):
        images.read_login(str(tmp_path / "absent"), "a")
    (tmp_path / "bad").write_text("[]")
    with pytest.raises(OrderRejected, match="docker login"):
        images.read_login(str(tmp_path / "bad"), "a")


def test_only_one_tag_of_an_image_is_fetched() -> None:
    assert images.to_query("r:5/a") == {"fromImage": "r:5/a", "tag": "latest"}
    assert images.to_query("r:5/a:1") == {"fromImage": "r:5/a:1"}
    assert images.to_query("a@sha256:1") == {"fromImage": "a@sha256:1"}


def test_a_fetch_says_how_far_it_is() -> None:
    progress = images.Progress()
    assert str(progress) == "asking the registry"
    progress.take({"status": "Pulling from a", "id": "latest"})
    for layer in ("x", "y"):
        progress.take({"status": "Pulling fs layer", "id": layer})
    progress.take(
        {
            "status": "Downloading",
            "id": "x",
            "progressDetail": {"current": 2_000_000, "total": 4_000_000},
        }
    )
    assert str(progress) == "0 of 2 layers, 2.0 of 4.0 MB"
    progress.take({"status": "Pull complete", "id": "x"})
    assert str(progress) == "1 of 2 layers, 4.0 of 4.0 MB"


# Settings


def test_one_engine_or_several() -> None:
    [one] = settings.engines(settings.DockerConfig(host="tcp://a:1"))
    assert (one.name, one.host) == ("default", "tcp://a:1")
    hosts = (settings.Host(name="a"), settings.Host(name="b"))
    assert settings.engines(settings.DockerConfig(hosts=hosts)) == hosts
    for wrong in (
        settings.DockerConfig(host="tcp://a:1", hosts=hosts),
        settings.DockerConfig(hosts=(hosts[0], hosts[0])),
        settings.DockerConfig(subnets="10.0.0.1/8"),
        settings.DockerConfig(subnets="10.0.0.0/30"),
    ):
        with pytest.raises(StartFailed, match=r"hosts|subnets"):
            settings.engines(wrong)


def test_an_engine_is_found_by_config_then_environment_then_socket(tmp_path: Path) -> None:
    environment = {"DOCKER_HOST": "tcp://e:1", "DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": "/c"}
    own = settings.Host(host="unix:///s")
    assert settings.resolve_url(own, environment) == "unix:///s"
    assert settings.resolve_tls_dir(own, environment) == ""
    assert settings.resolve_url(settings.Host(), environment) == "tcp://e:1"
    assert settings.resolve_tls_dir(settings.Host(), environment) == "/c"
    assert settings.resolve_url(settings.Host(), {}).startswith("unix:///")
    assert settings.address_of("tcp://e:1") == "e"
    assert settings.address_of(f"unix://{tmp_path}") == ""


def test_a_tunnel_asks_nothing_and_carries_one_socket() -> None:
    words = tunnel.arguments("ssh://me@far.example:2222/run/podman.sock", Path("/tmp/x/s"))  # noqa: S108
    assert words[-4:] == ["-L", "/tmp/x/s:/run/podman.sock", "--", "far.example"]  # noqa: S108
    assert words[words.index("-p") : words.index("-p") + 4] == ["-p", "2222", "-l", "me"]
    assert {"BatchMode=yes", "LogLevel=ERROR"} <= {*words}
    plain = tunnel.arguments("ssh://far", Path("s"))
    assert "s:/var/run/docker.sock" in plain


def test_containers_are_told_a_url_that_is_not_their_own_loopback(tmp_path: Path) -> None:
    def inside(url: str, **config: Any) -> str:
        context = BackendContext(instance_id="here", state_dir=tmp_path)
        found = backend.DockerBackend(settings.DockerConfig(**config), context)
        return found.inside_url(url)

    assert inside("http://127.0.0.1:3000") == "http://agentsvc.internal:3000"
    assert inside("http://agents.example/x") == "http://agents.example/x"
    assert inside("http://127.0.0.1:3000", callback="https://c.example/") == "https://c.example"


# Placement and networks


def load(name: str, **changes: Any) -> fleet.EngineLoad:
    return msgspec.structs.replace(
        fleet.EngineLoad(name=name, sandboxes=0, cpus=2, memory_bytes=8), **changes
    )


def test_a_sandbox_goes_where_there_is_most_room_for_it() -> None:
    assert fleet.choose([load("a", sandboxes=1), load("b")]) == "b"
    assert fleet.choose([load("a", sandboxes=3, cpus=8), load("b", sandboxes=1)]) == "a"
    assert fleet.choose([load("a"), load("b", memory_bytes=16)]) == "b"
    assert fleet.choose([load("a", max_sandboxes=1), load("b", sandboxes=9)]) == "a"
    assert fleet.choose([load("a"), load("b", sandboxes=9, has_it=True)]) == "b"
    with pytest.raises(CapacityExceeded):
        fleet.choose([load("a", sandboxes=2, max_sandboxes=2)])


@pytest.mark.parametrize("entry", ["http://example.org", "*.org", "10.0.0.0/99", "a:99999", "a b"])
def test_an_entry_that_cannot_be_meant_is_refused_by_name(tmp_path: Path, entry: str) -> None:
    context = BackendContext(instance_id="here", state_dir=tmp_path)
    docker = backend.DockerBackend(settings.DockerConfig(), context)
    fine = Spec(id="x", image="x", network=Network.ALLOWLIST, allow_hosts=("*.example.org:8443",))
    docker.check_spec(fine)
    with pytest.raises(OrderRejected, match="cannot be allowed") as raised:
        docker.check_spec(msgspec.structs.replace(fine, allow_hosts=(entry,)))
    assert entry in raised.value.message


def test_an_engine_has_the_labels_a_spec_asks_for_or_is_not_taken() -> None:
    assert fleet.fits({}, {"gpu": "yes"})
    assert fleet.fits({"gpu": "yes"}, {"gpu": "yes", "disk": "big"})
    assert not fleet.fits({"gpu": "yes"}, {})


def test_networks_are_small_and_free_of_what_is_taken() -> None:
    used = networks.taken(
        [
            {"IPAM": {"Config": [{"Subnet": "10.9.0.0/29"}, {"Subnet": "fd00::/64"}]}},
            {"IPAM": {"Config": None}},
            {"IPAM": {"Config": [{"Subnet": "172.17.0.0/16"}]}},
        ]
    )
    part_of_it = networks.choose("10.9.0.0/28", used, 0)
    assert part_of_it == ipaddress.IPv4Network("10.9.0.8/29")
    assert networks.addresses(part_of_it) == ("10.9.0.9", "10.9.0.10", "10.9.0.11")
    with pytest.raises(CapacityExceeded, match="subnets"):
        networks.choose("10.9.0.0/28", [*used, part_of_it], 3)


def test_an_inner_network_leads_nowhere() -> None:
    part_of_it = ipaddress.IPv4Network("10.9.0.8/29")
    inner = networks.body("oh-agent-server-abc-inner", part_of_it, is_inner=True, labels={})
    assert inner["Internal"] is True
    assert inner["Options"]["com.docker.network.bridge.inhibit_ipv4"] == "true"
    outer = networks.body("oh-agent-server-abc-outer", part_of_it, is_inner=False, labels={})
    assert outer["Internal"] is False
    assert "com.docker.network.bridge.inhibit_ipv4" not in outer["Options"]
    name = outer["Options"]["com.docker.network.bridge.name"]
    assert len(name) <= 15


def test_a_bridge_reaches_this_machine_at_its_ports_only() -> None:
    assert firewall.rules("agsvo1", [3000]) == [
        ("INPUT", "-i", "agsvo1", "-j", "DROP"),
        (
            *("INPUT", "-i", "agsvo1", "-m", "conntrack"),
            *("--ctstate", "ESTABLISHED,RELATED", "-j", "ACCEPT"),
        ),
        ("INPUT", "-i", "agsvo1", "-p", "tcp", "--dport", "3000", "-j", "ACCEPT"),
    ]
    listed = "-P INPUT ACCEPT\n-A INPUT -i agsvo1 -j DROP\n-A INPUT -i agsvo12 -j DROP\n"
    assert firewall.rules_of("agsvo1", listed) == [("INPUT", "-i", "agsvo1", "-j", "DROP")]


def test_models_on_this_machine_are_reached_all_the_same() -> None:
    targets = ["127.0.0.1:11434", "127.0.1.1:8000", "192.0.2.77:80", "no.invalid:1"]
    assert firewall.own_ports(targets) == [11434, 8000]


def test_a_sandbox_that_reaches_the_ports_of_its_machine_says_so() -> None:
    found = container("running")
    found["Config"]["Labels"]["agentsvc.guard"] = "no"
    assert inspection.to_report(seen(found)).facts == {"host_ports": "reachable"}


# Streams


async def read_lines(data: bytes) -> list[tuple[str, str]]:
    source = asyncio.StreamReader()
    source.feed_data(data)
    source.feed_eof()
    return [(line.stream, line.text) async for line in streams.lines(source)]


def frame(kind: int, text: str) -> bytes:
    return struct.pack(">BxxxL", kind, len(text)) + text.encode()


class Execs:
    """Answers as an engine does whose command has closed its output and runs on for a while."""

    def __init__(self, looks: list[dict[str, Any] | None]) -> None:
        self.looks = looks

    async def ask(self, *_: object, **_more: object) -> dict[str, Any]:
        return {"Id": "1"}

    async def get(self, path: str) -> dict[str, Any] | None:
        assert path == "exec/1/json"
        return self.looks.pop(0)

    @contextlib.asynccontextmanager
    async def stream(self, *_: object, **_more: object) -> AsyncIterator[Any]:
        content = asyncio.StreamReader()
        content.feed_data(frame(1, "said"))
        content.feed_eof()
        yield SimpleNamespace(content=content)


async def test_a_command_that_has_closed_its_output_has_not_ended() -> None:
    running = {"Running": True, "ExitCode": None}
    execute = partial(commands.execute, env={}, time_limit=60, max_output=9)
    execs: Any = Execs([running, running, {"Running": False, "ExitCode": 3}])
    result = await execute(execs, "box", ["x"])
    assert (result.exit_code, result.stdout, result.timed_out) == (3, b"said", False)
    gone: Any = Execs([running, None])
    with pytest.raises(Conflict, match="has ended"):
        await execute(gone, "box", ["x"])


async def test_a_log_is_taken_apart_into_lines() -> None:
    stamp = "2026-01-02T03:04:05.123456789Z"
    data = frame(1, f"{stamp} one\n{stamp} tw") + frame(2, f"{stamp} bad\n") + frame(1, "o\n")
    assert await read_lines(data) == [("stdout", "one"), ("stderr", "bad"), ("stdout", "two")]
    # An end in the middle of a piece loses that piece only.
    assert await read_lines(frame(1, f"{stamp} last") + b"\1\0\0") == [("stdout", "last")]
    assert streams.to_time(stamp).isoformat() == "2026-01-02T03:04:05.123456+00:00"
    assert streams.to_time("nonsense").year == 1970


def test_output_is_kept_up_to_its_limit() -> None:
    output = streams.Output(limit=5)
    output.add("stdout", b"123")
    output.add("stderr", b"12345")
    assert not output.is_cut
    output.add("stdout", b"456")
    assert (bytes(output.stdout), bytes(output.stderr), output.is_cut) == (b"12345", b"12345", True)


@pytest.mark.parametrize(
    ("stats", "expected"),
    [
        ({}, (None, None, None)),
        ({"cpu_stats": None, "memory_stats": {"usage": "much"}}, (None, None, None)),
        (
            {
                "cpu_stats": {"cpu_usage": {"total_usage": 2_500_000_000}},
                "memory_stats": {"usage": 5000, "stats": {"inactive_file": 1000}},
                "pids_stats": {"current": 4},
            },
            (2.5, 4000, 4),
        ),
        (
            {"memory_stats": {"usage": 5000, "stats": {"total_inactive_file": 6000}}},
            (None, 0, None),
        ),
    ],
)
def test_what_a_container_uses_is_read_from_its_statistics(
    stats: dict[str, Any], expected: tuple[float | None, int | None, int | None]
) -> None:
    used = inspection.usage_of(stats)
    assert (used.cpu_seconds, used.memory_bytes, used.processes) == expected


def test_a_file_of_a_container_that_is_a_link_has_no_text() -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        link = tarfile.TarInfo("passwd")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/shadow"
        archive.addfile(link)
    assert streams.untar(packed.getvalue()) == ""
