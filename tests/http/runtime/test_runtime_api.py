"""The remote runtime API, as other control planes call it."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentsvc.accounts.keys import Role
from agentsvc.base.errors import StartFailed
from agentsvc.testing.backend import FakeWorld
from tests.conftest import FAST
from tests.fake_agent import FakeAgent
from tests.plugin_loading import load_plugins
from tests.service import Answer, Client, Service

START: dict[str, Any] = {
    "image": "fake",
    "command": ["/usr/local/bin/openhands-agent-server", "--port", "60000"],
    "working_dir": "/workspace",
    "environment": {"LOG_JSON": "true", "WORKER_1": "12000"},
    "session_id": "7Wd1NYIeyrbuRXeMiIqHje",
    "resource_factor": 2,
    "run_as_user": 10001,
    "run_as_group": 10001,
    "fs_group": 10001,
}


class Plane:
    """A control plane: it shows its key in X-API-Key, and in no other way."""

    def __init__(self, client: Client, key: str | None) -> None:
        self._client = client
        self._headers = {"X-API-Key": key} if key else {}

    async def get(self, path: str) -> Answer:
        return await self._client.get(f"/runtime{path}", headers=self._headers)

    async def post(self, path: str, body: Any) -> Answer:
        return await self._client.post(f"/runtime{path}", json=body, headers=self._headers)

    async def start(self, **changes: Any) -> dict[str, Any]:
        answer = await self.post("/start", {**START, **changes})
        assert answer.status == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def session(self, **changes: Any) -> dict[str, Any]:
        name = {**START, **changes}["session_id"]
        found: dict[str, Any] = (await self.get(f"/sessions/{name}")).json()
        return found


async def make_plane(service: Service, user: str = "plane") -> Plane:
    key = (await service.make_client(user, Role.MEMBER)).key
    return Plane(service.client_with(None), key)


async def started(service: Service, plane: Plane) -> dict[str, Any]:
    made = await plane.start()
    owner = await service.make_client("plane", Role.MEMBER)
    await owner.wait_for_sandbox(made["runtime_id"], "RUNNING")
    return await plane.session()


async def test_a_runtime_runs_and_its_url_leads_to_its_agent_server(
    service: Service, fake_agent: FakeAgent
) -> None:
    plane = await make_plane(service)
    made = await plane.start()
    assert made["status"] == "starting"
    assert made["pod_status"] == "pending"
    assert made["session_id"] == START["session_id"]
    ready = await started(service, plane)
    assert (ready["status"], ready["pod_status"]) == ("running", "ready")
    assert ready["url"] == f"{service.url}/{ready['runtime_id']}"
    client = service.client_with(None)
    assert (await client.get(f"/{ready['runtime_id']}/alive")).status == 200
    headers = {"X-Session-API-Key": ready["session_api_key"]}
    home = f"/{ready['runtime_id']}/api/file/home"
    assert (await client.get(home)).status == 401
    assert (await client.get(home, headers=headers)).status == 200
    assert len(fake_agent.sandboxes) == 1


async def test_the_environment_is_the_callers_but_for_what_the_server_says(
    service: Service, fake_world: FakeWorld
) -> None:
    plane = await make_plane(service)
    await plane.start(environment={"OWN": "1", "OH_SESSION_API_KEYS_0": "mine"})
    ready = await started(service, plane)
    [sandbox] = fake_world.sandboxes.values()
    assert sandbox.order.secret_env["OWN"].reveal() == "1"
    assert sandbox.order.secret_env["OH_SESSION_API_KEYS_0"].reveal() == ready["session_api_key"]
    assert sandbox.order.resource_factor == 2
    assert sandbox.order.command == ("agent",)


async def test_what_a_caller_says_is_not_stored_in_the_clear(service: Service) -> None:
    plane = await make_plane(service)
    await plane.start(environment={"OWN": "a-value-to-be-found"})
    await started(service, plane)
    await service.stop()
    files = [file for file in service.data_dir.rglob("*") if file.is_file()]
    assert [file for file in files if b"a-value-to-be-found" in file.read_bytes()] == []


async def test_the_same_session_twice_is_one_runtime(
    service: Service, fake_world: FakeWorld
) -> None:
    plane = await make_plane(service)
    first, again = await plane.start(), await plane.start()
    assert first["runtime_id"] == again["runtime_id"]
    await started(service, plane)
    assert len(fake_world.sandboxes) == 1


async def test_a_runtime_is_paused_resumed_listed_and_stopped(service: Service) -> None:
    plane = await make_plane(service)
    ready = await started(service, plane)
    runtime = {"runtime_id": ready["runtime_id"]}
    listed = (await plane.get("/list")).json()["runtimes"]
    assert [one["session_id"] for one in listed] == [START["session_id"]]
    assert (await plane.post("/pause", runtime)).status == 200
    assert (await plane.session())["status"] == "paused"
    assert (await plane.get("/list")).json() == {"runtimes": []}
    batch = (await plane.get(f"/sessions/batch?ids={START['session_id']}&ids=unknown")).json()
    assert [one["status"] for one in batch] == ["paused"]
    assert (await plane.post("/resume", runtime)).json()["runtime_id"] == ready["runtime_id"]
    assert (await plane.get(f"/runtime/{ready['runtime_id']}")).json()["status"] == "running"
    assert (await plane.post("/stop", runtime)).status == 200
    assert (await plane.get(f"/sessions/{START['session_id']}")).status == 404
    assert (await plane.post("/stop", runtime)).status == 404


async def test_a_session_that_was_stopped_may_begin_anew(service: Service) -> None:
    plane = await make_plane(service)
    first = await started(service, plane)
    await plane.post("/stop", {"runtime_id": first["runtime_id"]})
    assert (await plane.start())["runtime_id"] != first["runtime_id"]


async def test_a_runtime_that_failed_says_so(service: Service, fake_world: FakeWorld) -> None:
    plane = await make_plane(service)
    ready = await started(service, plane)
    fake_world.end(ready["runtime_id"], exit_code=3, reason="it fell over")
    owner = await service.make_client("plane", Role.MEMBER)
    await owner.wait_for_sandbox(ready["runtime_id"], "ERROR")
    seen = await plane.session()
    assert (seen["status"], seen["pod_status"]) == ("error", "failed")
    assert (seen["exit_code"], seen["detail"]) == (3, "it fell over")


async def test_nobody_gets_at_the_runtimes_of_others_or_at_conversations(
    service: Service, client: Client
) -> None:
    plane, other = await make_plane(service), await make_plane(service, "other")
    ready = await started(service, plane)
    runtime = {"runtime_id": ready["runtime_id"]}
    assert (await other.get(f"/sessions/{START['session_id']}")).status == 404
    assert (await other.get("/list")).json() == {"runtimes": []}
    for verb in ("pause", "resume", "stop"):
        assert (await other.post(f"/{verb}", runtime)).status == 404
    own = (await client.post("/api/v1/sandboxes")).json()
    admin = Plane(service.client_with(None), client.key)
    assert (await admin.post("/stop", {"runtime_id": own["id"]})).status == 404


@pytest.mark.parametrize("key", [None, "asvc_wrong", "k\u00e9y"])
async def test_without_a_good_key_there_is_nothing(service: Service, key: str | None) -> None:
    plane = Plane(service.client_with(None), key)
    assert (await plane.get("/list")).status == 401
    assert (await plane.post("/start", START)).status == 401


async def test_the_header_opens_nothing_else(service: Service) -> None:
    key = (await service.make_client("plane", Role.MEMBER)).key
    client = service.client_with(None)
    answer = await client.get("/api/v1/sandboxes/search", headers={"X-API-Key": str(key)})
    assert answer.status == 401


@pytest.mark.parametrize(
    "changes",
    [
        {"session_id": ""},
        {"session_id": "a/b"},
        {"session_id": "a\n"},
        {"session_id": "a" * 129},
        {"resource_factor": 0},
        {"resource_factor": "2"},
        {"environment": {"A=B": "1"}},
        {"environment": {"A": "nul\0"}},
        {"environment": {"A": 1}},
        {"environment": {f"A{number}": "" for number in range(501)}},
        {"command": {"a": 1}},
        {"image": None},
    ],
)
async def test_what_does_not_fit_is_refused(service: Service, changes: dict[str, Any]) -> None:
    plane = await make_plane(service)
    assert (await plane.post("/start", {**START, **changes})).status == 422


async def test_an_image_that_no_spec_has_is_refused(service: Service) -> None:
    plane = await make_plane(service)
    answer = await plane.post("/start", {**START, "image": "registry.example/other:1"})
    assert answer.status == 400
    assert "runtime_api.spec" in answer.json()["detail"]


async def test_a_batch_has_each_session_once_and_those_of_the_caller_only(
    service: Service,
) -> None:
    plane, other = await make_plane(service), await make_plane(service, "bob")
    ids = ["one", "two", "three"]
    for session_id in ids:
        await plane.start(session_id=session_id)
    await other.start(session_id="four")
    query = "&".join(f"ids={one}" for one in ("three", "four", "one", "absent", "three"))
    batch = (await plane.get(f"/sessions/batch?{query}")).json()
    assert [one["session_id"] for one in batch] == ["three", "one"]


async def test_a_session_that_could_not_be_asked_for_is_refused(
    service: Service, fake_world: FakeWorld
) -> None:
    answer = await (await make_plane(service)).post("/start", {**START, "session_id": "batch"})
    assert (answer.status, answer.json()["code"]) == (400, "bad_request")
    assert not fake_world.sandboxes


async def test_too_many_sessions_at_once_are_refused(service: Service) -> None:
    plane = await make_plane(service)
    query = "&".join(f"ids={number}" for number in range(101))
    assert (await plane.get(f"/sessions/batch?{query}")).status == 400


@pytest.mark.parametrize("runtime_api", [{}, {"enabled": True, "spec": "fake"}])
async def test_it_is_off_unless_switched_on_and_one_spec_may_be_for_all_images(
    tmp_path: Path, fake_world: FakeWorld, runtime_api: dict[str, Any]
) -> None:
    config = msgspec.structs.replace(FAST, extensions={"runtime_api": runtime_api})
    service = Service(tmp_path / "data", config, lambda: load_plugins(fake=fake_world.plugin()))
    await service.start()
    try:
        plane = await make_plane(service)
        answer = await plane.post("/start", {**START, "image": "registry.example/other:1"})
        assert answer.status == (200 if runtime_api else 404)
    finally:
        await service.close()


async def test_a_spec_for_all_images_that_there_is_not_stops_the_start(service: Service) -> None:
    section = {"runtime_api": {"enabled": True, "spec": "faek"}}
    service.config = msgspec.structs.replace(service.config, extensions=section)
    with pytest.raises(StartFailed, match="`faek`, and there is no such spec"):
        await service.restart()


async def test_a_sandbox_of_the_v1_api_may_have_a_name_of_the_clients(
    service: Service, fake_world: FakeWorld, client: Client
) -> None:
    body = {"client_id": "one", "env": {"OWN": "1"}, "resource_factor": 4}
    first = (await client.post("/api/v1/sandboxes", json=body)).json()
    again = (await client.post("/api/v1/sandboxes", json=body)).json()
    assert first["id"] == again["id"]
    assert first["client_id"] == "one"
    await client.wait_for_sandbox(first["id"], "RUNNING")
    [sandbox] = fake_world.sandboxes.values()
    assert sandbox.order.secret_env["OWN"].reveal() == "1"
    assert sandbox.order.resource_factor == 4
    assert (await client.post("/api/v1/sandboxes", json={"env": {"OWN": "1"}})).status == 400
