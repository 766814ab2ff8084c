"""What the docker backend makes of answers that only some engines give, or only sometimes."""

import asyncio
import contextlib
import gc
import json
import tarfile
import tempfile
from collections.abc import AsyncIterator, Iterator
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from agentsvc.base.errors import BackendUnavailable, CapacityExceeded
from agentsvc.base.values import new_id
from agentsvc.plugin import ImageBuild, LongTasks, StillFetching
from agentsvc.plugin.backend import BackendContext, Cause, Isolation, Limits, Network, Order, Phase
from tests.plugin_loading import part

if TYPE_CHECKING:
    from docker import (
        backend,
        builds,
        commands,
        engine,
        firewall,
        fleet,
        images,
        inspection,
        layers,
        making,
        names,
        plan,
        settings,
        watch,
    )
else:
    backend, engine, firewall = (
        part("docker.backend"),
        part("docker.engine"),
        part("docker.firewall"),
    )
    builds, commands = part("docker.builds"), part("docker.commands")
    fleet = part("docker.fleet")
    images, inspection, plan = part("docker.images"), part("docker.inspection"), part("docker.plan")
    layers, names = part("docker.layers"), part("docker.names")
    settings, watch = part("docker.settings"), part("docker.watch")
    making = part("docker.making")

PODMAN = {
    "Version": "4.3.1",
    "ApiVersion": "1.41",
    "Components": [{"Name": "Podman Engine", "Version": "4.3.1"}],
}
INFO = {"PidsLimit": True, "MemoryLimit": True, "CpuCfsQuota": True, "DefaultRuntime": "runc"}
BRIDGE = {"IPAM": {"Config": [{"Gateway": "192.0.2.1"}]}}
INSTANCE = new_id()
STARTED = "2026-01-02T03:04:05.123456789Z"


class Answers:
    """An engine on a socket that answers everything as it is told, and counts what it is asked."""

    def __init__(self) -> None:
        self.given: dict[str, tuple[int, Any]] = {
            "/version": (200, PODMAN),
            "/info": (200, INFO),
            "/networks/bridge": (200, BRIDGE),
        }
        self.in_turn: dict[str, Iterator[tuple[int, Any]]] = {}
        self.asked: list[str] = []

    async def answer(self, request: web.Request) -> web.Response:
        path = "/" + request.path.removeprefix("/v1.41").lstrip("/")
        self.asked.append(path)
        known = self.given.get(path, (404, {"message": "no such page"}))
        status, said = next(self.in_turn[path]) if path in self.in_turn else known
        return web.json_response(said, status=status)


@contextlib.asynccontextmanager
async def an_engine() -> AsyncIterator[tuple[Answers, str]]:
    answers, app = Answers(), web.Application()
    app.router.add_route("*", "/{path:.*}", answers.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    # The path of a socket ends at 107 bytes, and a test's own directory may be longer.
    with tempfile.TemporaryDirectory(prefix="engine-") as directory:
        await web.UnixSite(runner, f"{directory}/s").start()
        try:
            yield answers, f"unix://{directory}/s"
        finally:
            await runner.cleanup()


def fresh(url: str) -> engine.Engine:
    return engine.Engine(settings.Host(host=url), time_limit=30)


@contextlib.asynccontextmanager
async def a_maker() -> AsyncIterator[tuple[Answers, making.Maker]]:
    async with an_engine() as (answers, url):
        asked = fresh(url)
        config = settings.DockerConfig(host=url, guard_host=False)
        try:
            yield (
                answers,
                making.Maker(
                    asked,
                    config,
                    images.ImagePulls(config),
                    layers.Layers(INSTANCE),
                    INSTANCE,
                    copies=LongTasks(),
                ),
            )
        finally:
            await asked.close()


async def test_an_image_that_is_gone_is_built_anew_though_nobody_waited_for_its_build(
    tmp_path: Path,
) -> None:
    image_id, context = new_id(), tmp_path / "context.tar"
    path = f"/images/{names.image(image_id)}/json"
    with tarfile.open(context, "w"):
        pass
    order = ImageBuild(context=context, dockerfile="FROM scratch\n", time_limit=30)
    async with an_engine() as (answers, url):
        answers.given["/build"] = (200, {})
        asked = fresh(url)
        running = builds.Builds(INSTANCE, wait_seconds=0)
        try:
            with pytest.raises(StillFetching, match="being built"):
                await running.build(asked, image_id, order)
            answers.given[path] = (200, {})
            await asyncio.sleep(0.3)  # the build ends, and nobody waits for it
            is_built = False
            while not is_built:
                with contextlib.suppress(StillFetching):
                    await running.build(asked, image_id, order)
                    is_built = True
            del answers.given[path]
            with pytest.raises(StillFetching, match="being built"):
                await running.build(asked, image_id, order)
        finally:
            await running.close()
            await asked.close()


async def test_an_image_that_is_gone_is_fetched_anew_and_nothing_of_a_fetch_is_kept() -> None:
    async with an_engine() as (answers, url):
        answers.given["/images/create"] = (200, {"status": "Pull complete", "id": "1"})
        asked = fresh(url)
        pulls = images.ImagePulls(settings.DockerConfig(pull_wait_seconds=1e-6))
        try:
            for _ in range(2):
                with pytest.raises(StillFetching, match="being pulled"):
                    await pulls.get(asked, "a:1")
                answers.given["/images/a:1/json"] = (200, {"Id": "sha256:a"})
                await asyncio.sleep(0.3)  # the fetch ends, and nobody waits for it
                found = None
                while found is None:
                    with contextlib.suppress(StillFetching):
                        found = await pulls.get(asked, "a:1")
                assert found.id == "sha256:a"
                gc.collect()
                assert not any(type(one) is images.Progress for one in gc.get_objects())
                del answers.given["/images/a:1/json"]
            assert answers.asked.count("/images/create") == 2
        finally:
            await pulls.close()
            await asked.close()


async def test_what_podman_says_of_things_that_went_meanwhile_is_what_docker_says() -> None:
    async with an_engine() as (answers, url):
        gone = "container 1 does not exist in database: no such container"
        taken = 'the container name "a" is already in use by 2'
        answers.given["/containers/1/json"] = (500, {"message": gone})
        answers.given["/containers/create"] = (500, {"message": taken})
        answers.given["/containers/2/json"] = (500, {"message": "disk on fire"})
        podman = fresh(url)
        try:
            assert await podman.get("containers/1/json") is None
            assert await podman.ask("POST", "containers/create", expect=(409,)) is None
            async with podman.stream("GET", "containers/1/json", expect=(404,)) as answer:
                assert answer is None
            for path, expect in (("containers/2/json", 404), ("containers/1/json", 409)):
                with pytest.raises(BackendUnavailable):
                    await podman.ask("GET", path, expect=(expect,))
        finally:
            await podman.close()


async def test_a_container_is_not_started_before_podman_has_taken_down_what_it_had() -> None:
    async with a_maker() as (answers, maker):
        path, start = "/containers/1/json", "/containers/1/start"
        answers.given[start] = (200, None)
        states = ("stopped", "stopped", "exited")
        answers.in_turn[path] = iter([(200, {"State": {"Status": one}}) for one in states])
        await maker.start_again(new_id(), {"Id": "1"})
        assert [one for one in answers.asked if one in (path, start)] == [path, path, path, start]


async def test_podman_in_the_same_network_is_beside_although_its_bridge_is_not_there() -> None:
    async with an_engine() as (answers, url):
        podman = fresh(url)
        try:
            assert (await podman.facts()).is_beside
            assert answers.asked.count("/version") == 1
            assert (await podman.facts(fresh=True)).is_beside
            assert answers.asked.count("/version") == 2
            answers.given["/version"] = (200, {**PODMAN, "Components": [{"Name": "Engine"}]})
            assert not (await podman.facts(fresh=True)).is_beside
        finally:
            await podman.close()


async def test_podman_keeps_no_fence_that_this_server_does_not_guard(tmp_path: Path) -> None:
    async with an_engine() as (_, url):
        config = settings.DockerConfig(host=url, guard_host=False)
        context = BackendContext(instance_id=new_id(), state_dir=tmp_path)
        unguarded = backend.DockerBackend(config, context)
        await unguarded.open()
        try:
            fences = unguarded.fences(Order(sandbox_id=new_id(), image="a"))
            assert fences.networks == {Network.OPEN}
            assert fences.limits == {"cpus", "memory_bytes", "pids", "open_files"}
            in_gvisor = Order(sandbox_id=new_id(), image="a", options={"runtime": "runsc"})
            assert unguarded.fences(in_gvisor).isolation is Isolation.GVISOR
            assert "pids" not in unguarded.fences(in_gvisor).limits
        finally:
            await unguarded.close()


def test_podmans_containers_have_no_second_address_and_its_networks_a_server_for_names() -> None:
    order = Order(sandbox_id=new_id(), image="a", command=("x",), limits=Limits(pids=5))
    image, place = plan.ImageInfo(id="1"), plan.Placement(network="n", address="10.0.0.3")
    bodies = [
        plan.container(
            order,
            image,
            settings.DockerConfig(),
            place=place,
            has_init=True,
            instance_id=new_id(),
            is_podman=is_podman,
        )
        for is_podman in (False, True)
    ]
    assert [body["HostConfig"].get("Sysctls") for body in bodies] == [
        None,
        {"net.ipv6.conf.all.disable_ipv6": "1"},
    ]
    assert [rule for rule in firewall.rules("b", [], "10.0.0.1") if "53" in rule] == [
        ("INPUT", "-d", "10.0.0.1", "-i", "b", "-p", kind, "--dport", "53", "-j", "ACCEPT")
        for kind in ("tcp", "udp")
    ]


def test_an_archive_ends_where_it_says_and_names_the_workspace_as_the_engine_wants() -> None:
    archive = plan.workspace_archive((7, 8), ["project"], top="../workspace")
    assert len(archive) == 2 * 512 + 2 * 512
    with tarfile.open(fileobj=BytesIO(archive)) as tar:
        found = [(member.name, member.uid, member.gid) for member in tar]
    assert found == [("../workspace", 7, 8), ("project", 7, 8)]


@pytest.mark.parametrize("line", [b"<html>\n", b"[1]\n", b'"x"\n', b"\xff\n", b"{\n"])
def test_news_of_a_fetch_that_cannot_be_understood_is_an_error_and_no_crash(line: bytes) -> None:
    with pytest.raises(BackendUnavailable, match="cannot be read"):
        images.to_news(line)


def test_odd_news_of_a_fetch_is_no_crash() -> None:
    assert images.to_news(b" \n") == {}
    progress = images.Progress()
    for detail in ("x", {"current": "many", "total": None}, {"current": -1}, {"current": 2e6}):
        progress.take({"status": "Downloading", "id": 5, "progressDetail": detail})
    assert str(progress) == "0 of 1 layers, 0.0 of 0.0 MB"


class Events:
    """An engine that tells of some events and no more."""

    name = "events"

    def __init__(self, *events: dict[str, Any]) -> None:
        self.events = events
        self.asked: list[dict[str, Any]] = []
        self.has_told = asyncio.Event()

    @contextlib.asynccontextmanager
    async def stream(self, *_: object, params: dict[str, Any]) -> AsyncIterator[Any]:
        self.asked.append(params)
        content = asyncio.StreamReader()
        for event in self.events:
            content.feed_data(json.dumps(event).encode() + b"\n")
        content.feed_eof()
        yield SimpleNamespace(content=content)
        self.has_told.set()


async def test_a_kill_for_want_of_memory_is_forgotten_when_its_container_starts_again() -> None:
    heard = {"Actor": {"ID": "c1"}, "time": 1767323046, "timeNano": 1767323046_000000001}
    events: Any = Events(heard)
    listening = watch.EngineWatch(events, new_id())
    listening.start()
    try:
        before = {"Id": "c1", "State": {"StartedAt": STARTED}}
        async with asyncio.timeout(30):
            await events.has_told.wait()
        assert listening.had_oom(before)
        assert not listening.had_oom({**before, "State": {"StartedAt": "2026-01-02T03:04:07Z"}})
        assert not listening.had_oom({**before, "Id": "c2"})
    finally:
        await listening.stop()


async def test_an_exit_code_of_255_is_the_commands_own_where_the_engine_saw_its_end() -> None:
    state = {"ExitCode": 255, "StartedAt": STARTED, "FinishedAt": "2026-01-02T03:04:09Z"}
    box = {"Id": "c1", "Config": {"Labels": {}}, "State": {"Status": "exited", **state}}
    for events, cause in (([{"id": "c1"}], Cause.EXITED), ([], Cause.HOST_RESTARTED)):
        told: Any = Events(*events)
        was_told = await watch.has_observed_end(told, box, 30)
        report = inspection.to_report(
            inspection.ContainerStates(container=box, front=box, was_told=was_told)
        )
        assert (report.phase, report.exit_code, report.cause) == (Phase.FAILED, 255, cause)
        [asked] = told.asked
        assert asked["filters"] == {"event": ["die"], "container": ["c1"]}
        assert float(asked["since"]) < float(asked["until"])


async def test_an_engine_that_is_the_only_one_takes_no_more_than_it_may(tmp_path: Path) -> None:
    own = {names.ROLE: "sandbox", names.SANDBOX: "first"}

    async def listed(*_: object) -> list[dict[str, Any]]:
        return [{"State": "running", "Labels": own}]

    async def facts() -> SimpleNamespace:
        return SimpleNamespace(cpus=2, memory_bytes=8)

    host = settings.Host(max_sandboxes=1)
    only: Any = SimpleNamespace(name=host.name, host=host, facts=facts, listed=listed)
    pool = fleet.EnginePool([only], "here", tmp_path)
    assert await pool.place("first", {}) is only
    with pytest.raises(CapacityExceeded):
        await pool.place("second", {})


class Lost:
    """An engine that runs a command and is away when it is asked how that has ended."""

    def __init__(self) -> None:
        self.made: list[list[str]] = []

    async def ask(self, *_: object, body: dict[str, Any], **_more: object) -> dict[str, Any]:
        self.made.append(body["Cmd"])
        return {"Id": str(len(self.made))}

    async def get(self, _path: str) -> None:
        raise BackendUnavailable("it did not respond in time")

    @contextlib.asynccontextmanager
    async def stream(self, *_: object, **_more: object) -> AsyncIterator[Any]:
        content = asyncio.StreamReader()
        content.feed_eof()
        yield SimpleNamespace(content=content)


async def test_a_command_whose_end_cannot_be_asked_for_does_not_go_on() -> None:
    lost: Any = Lost()
    with pytest.raises(BackendUnavailable):
        await commands.execute(lost, "box", ["x"], env={}, time_limit=60, max_output=9)
    _, ending = lost.made
    assert "kill -9" in ending[2]
