"""What services answer that a server of ours cannot be made to answer, and what it is taken for."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agentsvc.base.errors import (
    AgentsvcError,
    BackendUnavailable,
    CapacityExceeded,
    Conflict,
    OrderRejected,
)
from agentsvc.base.values import Secret
from agentsvc.plugin.backend import (
    BackendContext,
    Handle,
    Isolation,
    Limits,
    Order,
    PartlyScanned,
    Phase,
    Port,
    Spec,
)
from agentsvc.sandboxes.backend_calls import find_handle
from agentsvc.sandboxes.plugin_loader import Backend, PluginHost

KINDS = PluginHost.load().backend_types()
KEY = "key-of-the-service"
SESSION = "k1"


class Service:
    """Answers every request alike, or as the path says."""

    def __init__(self) -> None:
        self.answers: dict[str, web.Response | Any] = {}
        self.seen: list[tuple[str, Any]] = []
        self.hangs = False
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        body = await request.json() if request.can_read_body else None
        self.seen.append((request.path, body))
        if self.hangs:
            await asyncio.sleep(30)
        for path in (request.path, "*"):
            if path in self.answers:
                found = self.answers[path]
                return found() if callable(found) else web.json_response(found)
        return web.json_response({"detail": "Not Found"}, status=404)


@pytest.fixture
async def far() -> AsyncIterator[Service]:
    far = Service()
    await far.start()
    yield far
    await far.stop()


def make(name: str, far: Service, tmp_path: Path, **more: Any) -> Backend:
    kind = KINDS[name]
    config = kind.Config(url=far.url, api_key=KEY, **more)
    return kind(config, BackendContext(instance_id="here", state_dir=tmp_path))


def runtime(**changes: Any) -> dict[str, Any]:
    return {
        "runtime_id": "rt-1",
        "session_id": "s",
        "session_api_key": SESSION,
        "url": "https://abc.runtime.example",
        "status": "running",
        "pod_status": "ready",
        **changes,
    }


ORDER = Order(sandbox_id="a" * 32, image="img:1", ports=(Port(name="agent"),))


async def save(_handle: Handle) -> None:
    """Keep nothing."""


async def started(far: Service, backend: Backend, **changes: Any) -> Handle:
    far.answers["/start"] = runtime(**changes)
    await backend.open()
    handle = await backend.create(ORDER, save)
    [(_, body)] = [one for one in far.seen if one[0] == "/start"]
    far.answers[f"/sessions/{body['session_id']}"] = runtime(**changes)
    return handle


async def test_a_name_that_the_service_makes_up_leads_to_no_other_file(
    far: Service, tmp_path: Path
) -> None:
    backend, victim = make("remote", far, tmp_path / "state"), tmp_path / "master.key"
    victim.touch()
    await started(far, backend)
    prefix = far.seen[-1][1]["session_id"].removesuffix(ORDER.sandbox_id)
    names = [ORDER.sandbox_id, str(victim), "../../master.key", "..", ""]
    far.answers["/list"] = {"runtimes": [runtime(session_id=prefix + name) for name in names]}
    found = [one.handle for one in await backend.scan()]
    far.answers = {"/list": {"runtimes": []}}
    for handle in found:
        await backend.delete(handle)
    await backend.close()
    assert [handle.sandbox_id for handle in found] == [ORDER.sandbox_id]
    assert victim.exists()


async def test_a_user_whose_key_is_refused_hides_the_sandboxes_of_nobody_else(
    far: Service, tmp_path: Path
) -> None:
    bad, good, never_made = "b" * 32, "c" * 32, "d" * 32
    backend = make("remote", far, tmp_path)
    await started(far, backend)
    prefix = far.seen[-1][1]["session_id"].removesuffix(ORDER.sandbox_id)
    for one in (bad, good, never_made):
        (tmp_path / "sessions" / one).touch()
    far.answers["/list"] = {"runtimes": [runtime(session_id=prefix + ORDER.sandbox_id)]}
    far.answers[f"/sessions/{prefix}{bad}"] = lambda: web.json_response({}, status=401)
    far.answers[f"/sessions/{prefix}{good}"] = runtime(session_id=prefix + good)
    with pytest.raises(PartlyScanned, match="rejected the key") as caught:
        await backend.scan()
    assert {one.handle.sandbox_id for one in caught.value.found} == {ORDER.sandbox_id, good}
    assert await find_handle(backend, never_made) is None
    with pytest.raises(PartlyScanned):
        await find_handle(backend, bad)
    await backend.close()


async def test_what_is_removed_while_all_is_listed_ends_no_list(
    far: Service, tmp_path: Path
) -> None:
    backend = make("remote", far, tmp_path)
    await started(far, backend)
    # As a link to nowhere a name is there, and what is behind it is not.
    (tmp_path / "sessions" / ("b" * 32)).symlink_to(tmp_path / "gone")
    far.answers["/list"] = {"runtimes": []}
    assert len(await backend.scan()) == 1
    await backend.close()


BAD = [
    (lambda: web.Response(status=500, text="oops"), BackendUnavailable),
    (lambda: web.Response(status=502, text="<html>"), BackendUnavailable),
    (lambda: web.Response(status=302, headers={"Location": "/"}), BackendUnavailable),
    (lambda: web.Response(status=200, text="<html>"), BackendUnavailable),
    (lambda: web.Response(status=200, body=b"\xff{"), BackendUnavailable),
    (lambda: web.json_response([{}]), BackendUnavailable),
    (lambda: web.json_response({"error": "no"}, status=401), BackendUnavailable),
    (lambda: web.json_response({"error": "no"}, status=403), BackendUnavailable),
    (lambda: web.Response(status=404, text="no"), BackendUnavailable),
    (lambda: web.json_response({"message": "full"}, status=429), CapacityExceeded),
    (lambda: web.json_response({"code": "capacity_exceeded"}, status=503), CapacityExceeded),
    (lambda: web.json_response({"detail": "busy"}, status=409), Conflict),
    (lambda: web.json_response({"detail": [{"msg": "bad"}]}, status=422), OrderRejected),
    (lambda: web.json_response({"detail": "bad"}, status=400), OrderRejected),
]


@pytest.mark.parametrize(("answer", "expected"), BAD, ids=range(len(BAD)))
async def test_a_bad_answer_to_a_start_is_an_error_that_fits(
    far: Service, tmp_path: Path, answer: Any, expected: type[AgentsvcError]
) -> None:
    far.answers["*"] = answer
    backend = make("remote", far, tmp_path)
    await backend.open()
    with pytest.raises(expected) as caught:
        await backend.create(ORDER, save)
    await backend.close()
    assert far.url in caught.value.message
    assert KEY not in caught.value.message


async def test_an_answer_that_shows_the_key_is_not_passed_on(far: Service, tmp_path: Path) -> None:
    far.answers["*"] = lambda: web.json_response({"detail": f"bad key {KEY}"}, status=409)
    backend = make("remote", far, tmp_path)
    await backend.open()
    with pytest.raises(Conflict) as caught:
        await backend.create(ORDER, save)
    await backend.close()
    assert KEY not in str(caught.value)


async def test_a_service_that_does_not_answer_is_unavailable(far: Service, tmp_path: Path) -> None:
    backend = make("remote", far, tmp_path, call_seconds=0.2)
    handle = await started(far, backend)
    far.hangs = True
    with pytest.raises(BackendUnavailable, match=r"gave no answer within 0\.2 s"):
        await backend.inspect(handle)
    health = await backend.probe()
    await backend.close()
    assert not health.ok
    assert "gave no answer" in health.reason


async def test_a_404_of_what_is_no_runtime_api_is_not_gone(far: Service, tmp_path: Path) -> None:
    backend = make("remote", far, tmp_path)
    handle = await started(far, backend)
    far.answers.clear()
    with pytest.raises(BackendUnavailable, match="does not know the path /list"):
        await backend.inspect(handle)
    with pytest.raises(BackendUnavailable):
        await backend.delete(handle)
    far.answers["/list"] = {"runtimes": []}
    assert (await backend.inspect(handle)).phase is Phase.GONE
    await backend.close()


@pytest.mark.parametrize(
    ("changes", "phase"),
    [
        ({}, Phase.RUNNING),
        ({"pod_status": None}, Phase.RUNNING),
        ({"pod_status": "pending"}, Phase.STARTING),
        ({"status": "starting", "pod_status": "pending"}, Phase.STARTING),
        ({"status": "paused", "pod_status": "not found"}, Phase.PAUSED),
        ({"status": "error"}, Phase.FAILED),
        ({"status": "stopped"}, Phase.GONE),
    ],
)
async def test_a_status_is_taken_as_the_contract_says(
    far: Service, tmp_path: Path, changes: dict[str, Any], phase: Phase
) -> None:
    backend = make("remote", far, tmp_path)
    handle = await started(far, backend, **changes)
    assert (await backend.inspect(handle)).phase is phase
    await backend.close()


async def test_a_status_that_nobody_knows_is_not_taken_for_another(
    far: Service, tmp_path: Path
) -> None:
    backend = make("remote", far, tmp_path)
    handle = await started(far, backend, status="dreaming")
    with pytest.raises(BackendUnavailable, match="unknown status: dreaming"):
        await backend.inspect(handle)
    await backend.close()


@pytest.mark.parametrize("said", [{"status": 204}, {"text": "OK"}], ids=["nothing", "a text"])
async def test_what_is_ordered_is_done_whatever_a_success_says(
    far: Service, tmp_path: Path, said: dict[str, Any]
) -> None:
    backend = make("remote", far, tmp_path)
    handle = await started(far, backend)
    session = f"/sessions/{next(body for path, body in far.seen if path == '/start')['session_id']}"
    far.answers["/list"] = {"runtimes": []}

    def answer(after: dict[str, Any] | None) -> web.Response:
        far.answers[session] = after or (lambda: web.Response(status=404))
        return web.Response(**said)

    far.answers |= {
        "/pause": lambda: answer(runtime(status="paused")),
        "/resume": lambda: answer(runtime()),
        "/stop": lambda: answer(None),
    }
    await backend.pause(handle)
    await backend.resume(handle)
    await backend.delete(handle)
    await backend.close()
    orders = [path for path, body in far.seen if body == {"runtime_id": "rt-1"}]
    assert orders == ["/pause", "/resume", "/stop"]


@pytest.mark.parametrize("name", ["remote", "agentsvc"])
@pytest.mark.parametrize(
    "url",
    ["http+unix://%2Frun%2Fdocker.sock", "unix:/run/docker.sock", "http://x:99999/", "http://["],
)
async def test_an_address_that_is_none_of_http_is_not_taken_from_a_service(
    far: Service, tmp_path: Path, name: str, url: str
) -> None:
    backend = make(name, far, tmp_path)
    if name == "remote":
        handle = await started(far, backend, port_urls={"agent": url})
    else:
        urls = [{"name": "AGENT_SERVER", "url": url}]
        info = {"id": "x1", "status": "RUNNING", "exposed_urls": urls}
        far.answers["/api/v1/sandboxes"] = info
        await backend.open()
        handle = await backend.create(Order(sandbox_id="a" * 32), save)
        far.answers["/api/v1/sandboxes"] = [info]
    with pytest.raises(BackendUnavailable) as caught:
        await backend.inspect(handle)
    await backend.close()
    assert url in caught.value.message


async def test_an_exit_code_that_nobody_can_store_is_not_taken_from_a_service(
    far: Service, tmp_path: Path
) -> None:
    backend = make("remote", far, tmp_path)
    handle = await started(far, backend, status="error", exit_code=2**63)
    report = await backend.inspect(handle)
    assert (report.phase, report.exit_code) == (Phase.FAILED, None)
    await backend.close()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://abc.runtime.example", "https://work-1-abc.runtime.example"),
        ("https://runtime.example/rt-1", "https://runtime.example/rt-1/work-1"),
    ],
)
async def test_work_ports_are_derived_from_the_url(
    far: Service, tmp_path: Path, url: str, expected: str
) -> None:
    backend = make("remote", far, tmp_path)
    far.answers["/start"] = runtime(url=url)
    await backend.open()
    ports = (Port(name="worker_1", awaited=False), Port(name="agent"))
    handle = await backend.create(Order(sandbox_id="a" * 32, image="i", ports=ports), save)
    [(_, body)] = far.seen
    far.answers[f"/sessions/{body['session_id']}"] = runtime(url=url)
    report = await backend.inspect(handle)
    await backend.close()
    assert {end.name: end.url for end in report.endpoints} == {"agent": url, "worker_1": expected}
    assert report.session_key == Secret(SESSION)


async def test_what_is_asked_for_is_as_control_planes_ask(far: Service, tmp_path: Path) -> None:
    backend = make("remote", far, tmp_path, runtime_class="sysbox", resource_factor=4)
    far.answers["/start"] = runtime()
    await backend.open()
    spec = next(spec for spec in PluginHost.load().specs() if spec.id == "remote")
    order = Order(
        sandbox_id="a" * 32,
        image=spec.image,
        command=spec.command,
        env={**spec.env, "OH_WEBHOOKS_0_BASE_URL": "http://127.0.0.1:1"},
        secret_env={"OH_SESSION_API_KEYS_0": Secret("ours"), "MINE": Secret("m")},
        ports=spec.ports,
        working_dir=spec.working_dir,
    )
    backend.check_spec(spec)
    await backend.create(order, save)
    await backend.close()
    [(_, body)] = far.seen
    assert body["command"] == ["/usr/local/bin/openhands-agent-server", "--port", "60000"]
    assert (body["resource_factor"], body["runtime_class"]) == (4, "sysbox-runc")
    assert body["environment"]["WORKER_2"] == "12001"
    assert body["environment"]["MINE"] == "m"
    assert not [name for name in body["environment"] if name.startswith(("OH_WEB", "OH_SESSION"))]
    assert body["session_id"].endswith("-" + "a" * 32)
    assert len(body["session_id"]) <= 63


@pytest.mark.parametrize(
    "changes",
    [
        {"image": ""},
        {"limits": Limits(cpus=1)},
        {"options": {"gpu": True}},
        {"isolation": Isolation.CONTAINER},
        {"ports": (Port(name="agent"), Port(name="database", awaited=False))},
        {"command": ("run", "{port.nobody}")},
    ],
)
async def test_a_spec_that_can_never_work_is_refused(
    far: Service, tmp_path: Path, changes: dict[str, Any]
) -> None:
    backend = make("remote", far, tmp_path)
    with pytest.raises(OrderRejected):
        backend.check_spec(Spec(**{"id": "s", "image": "i", **changes}))


async def test_a_floor_that_the_operator_vouches_for_is_taken(far: Service, tmp_path: Path) -> None:
    spec = Spec(id="s", isolation=Isolation.CONTAINER)
    make("agentsvc", far, tmp_path, isolation=Isolation.GVISOR).check_spec(spec)
    with pytest.raises(OrderRejected, match="set `isolation` if it is known"):
        make("agentsvc", far, tmp_path).check_spec(spec)


@pytest.mark.parametrize(
    "changes", [{"command": ("a",)}, {"working_dir": "x"}, {"options": {"a": 1}}]
)
async def test_what_the_other_servers_spec_decides_is_refused(
    far: Service, tmp_path: Path, changes: dict[str, Any]
) -> None:
    with pytest.raises(OrderRejected):
        make("agentsvc", far, tmp_path).check_spec(Spec(id="s", **changes))


async def test_missing_at_a_server_that_is_no_agentsvc_may_only_be_away(
    far: Service, tmp_path: Path
) -> None:
    backend = make("agentsvc", far, tmp_path)
    info = {"id": "x1", "status": "RUNNING", "session_api_key": SESSION, "created_at": "2026-01-01"}
    urls = [{"name": "AGENT_SERVER", "url": "http://10.0.0.1:30001", "port": 60000}]
    far.answers["/api/v1/sandboxes"] = info
    await backend.open()
    handle = await backend.create(Order(sandbox_id="a" * 32), save)
    far.answers["/api/v1/sandboxes"] = [{**info, "exposed_urls": urls}]
    [end] = (await backend.inspect(handle)).endpoints
    assert (end.name, end.url, end.needs_key) == ("agent", "http://10.0.0.1:30001", False)
    far.answers["/api/v1/sandboxes"] = [{**info, "status": "MISSING"}]
    with pytest.raises(BackendUnavailable):
        await backend.inspect(handle)
    far.answers["/api/v1/sandboxes"] = [None]
    assert (await backend.inspect(handle)).phase is Phase.GONE
    await backend.close()


async def test_a_long_answer_is_read_to_its_end(far: Service, tmp_path: Path) -> None:
    backend = make("remote", far, tmp_path)
    await backend.open()
    far.answers["/list"] = {"runtimes": [runtime(detail="x" * 500) for _ in range(2000)]}
    assert (await backend.probe()).facts["running"] == "2000"
    await backend.close()


async def test_an_answer_without_an_end_is_given_up(far: Service, tmp_path: Path) -> None:
    backend = make("remote", far, tmp_path)
    await backend.open()
    far.answers["/list"] = lambda: web.Response(body=bytes(33 * 1024 * 1024))
    health = await backend.probe()
    await backend.close()
    assert not health.ok
    assert "too large" in health.reason
