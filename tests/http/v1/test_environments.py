"""Prepared environments through the socket, on a fake backend with a fake agent."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from agentsvc.accounts.keys import KeyScope, Role
from agentsvc.agentserver.responses import CommandResult
from agentsvc.domain import Provider
from agentsvc.http.keys import DATABASE, SUPERVISOR
from agentsvc.plugin import Capability
from agentsvc.testing.llm import Playbook, Reply
from tests.git_server import GitServer
from tests.plugin_loading import part
from tests.service import Client, Service
from tests.troubles import TroubledAgent, TroubledWorld, eventually, reconfigure

if TYPE_CHECKING:
    from environments.model import Definition
    from environments.scripts import hidden
else:
    Definition = part("environments.model").Definition
    hidden = part("environments.scripts").hidden

PATH = "/api/v1/environments"
STARTS = "/api/v1/app-conversations"
type Json = dict[str, Any]


async def create(client: Client, **fields: Any) -> Json:
    answer = await client.post(PATH, json={"name": "Tools", **fields})
    assert answer.status == 201, answer.text
    made: Json = answer.json()
    return made


async def wait_for(client: Client, made: Json, *statuses: str) -> Json:
    async with asyncio.timeout(client.patience):
        while True:
            found: Json = (await client.get(f"{PATH}/{made['id']}")).json()
            if found["status"] in statuses:
                return found
            await asyncio.sleep(0.02)


async def test_an_environment_is_prepared_and_begun_with(
    client: Client, fake_agent: TroubledAgent, fake_world: TroubledWorld
) -> None:
    fake_agent.on_command("make tools", CommandResult(exit_code=0, stdout="made", stderr=""))
    made = await create(client, setup_script="make tools", variables={"LEVEL": "a b"})
    assert (made["status"], made["is_prepared"]) == ("waiting", False)
    ready = await wait_for(client, made, "ready")
    assert (ready["log"], ready["detail"], ready["is_prepared"]) == ("made", None, True)
    [sandbox] = fake_agent.sandboxes.values()
    [setup] = [command for command in sandbox.commands if "make tools" in command]
    assert "export LEVEL='\"'\"'a b'\"'\"'" in setup
    await eventually(lambda: not fake_world.sandboxes)

    listed = (await client.get(PATH)).json()["items"]
    assert [one["id"] for one in listed] == [made["id"]]
    started = await client.start_conversation(environment_id=made["id"])
    found = await client.conversation(started)
    order = fake_world.sandboxes[found["sandbox_id"]].order
    assert list(fake_world.layers) == [order.layer]
    # It has no repository, so it is used where it is named.
    other = await client.conversation(await client.start_conversation())
    assert fake_world.sandboxes[other["sandbox_id"]].order.layer == ""

    changed = await client.patch(f"{PATH}/{made['id']}", json={"setup_script": "make more"})
    assert (changed.status, changed.json()["status"]) == (200, "waiting")
    await wait_for(client, made, "ready")
    await eventually(lambda: len(fake_world.layers) == 1 and order.layer not in fake_world.layers)
    assert (await client.delete(f"{PATH}/{made['id']}")).status == 200
    await eventually(lambda: not fake_world.layers)
    assert (await client.get(PATH)).json()["items"] == []


async def test_what_cannot_be_prepared_says_why_and_leaves_nothing(
    client: Client, service: Service, fake_agent: TroubledAgent, fake_world: TroubledWorld
) -> None:
    fake_agent.on_command("make bad", CommandResult(exit_code=2, stdout="no rule", stderr=""))
    bad = await wait_for(client, await create(client, setup_script="make bad"), "failed")
    assert bad["detail"] == "The set-up script ended with exit code 2"
    assert (bad["log"], bad["is_prepared"]) == ("no rule", False)
    unknown = await wait_for(client, await create(client, secrets=["NONE"]), "failed")
    assert unknown["detail"].startswith("There is no secret `NONE`: store it")
    nowhere = await create(client, repository="http://127.0.0.1:9/a/b.git")
    assert "127.0.0.1" in (await wait_for(client, nowhere, "failed"))["detail"]
    unheard = await create(client, repository="https://git.invalid/a/b.git")
    why = (await wait_for(client, unheard, "failed"))["detail"]
    assert ("git.invalid" in why, "gaierror" in why) == (True, False), why
    await eventually(lambda: not fake_world.sandboxes)
    assert fake_world.layers == {}
    told = {"environments": {"prepare_seconds": 1.0}}
    service.config = msgspec.structs.replace(service.config, extensions=told)
    await service.restart()
    fake_world.stays_starting = True
    late = await wait_for(client, await create(client), "failed")
    assert late["detail"] == "The sandbox did not start in the 1 s of `prepare_seconds`"
    answer = await client.post(STARTS, json={"environment_id": bad["id"]})
    assert (answer.status, "is not prepared yet" in answer.text) == (400, True)
    again = await client.post(f"{PATH}/{bad['id']}/prepare")
    assert (again.status, again.json()["status"]) == (200, "waiting")


async def test_a_secret_is_seen_by_the_set_up_only(
    client: Client, fake_agent: TroubledAgent
) -> None:
    await client.post("/api/v1/secrets", json={"name": "TOKEN", "value": "canary-7"})
    fake_agent.on_command("use it", CommandResult(exit_code=0, stdout="got canary-7", stderr=""))
    ready = await wait_for(
        client, await create(client, setup_script="use it", secrets=["TOKEN"]), "ready"
    )
    assert ready["log"] == "got ***"
    assert "canary-7" not in str((await client.get(PATH)).json())


def test_no_part_of_a_secret_is_in_the_log() -> None:
    key = "-- begin --\nMIIEvQIBADANBgkq\nAoIBAQDJ\n"
    said = f"read {key}; then MIIEvQIBADANBgkq alone; and {key.strip()}"
    assert hidden(said, [key]) == "read ***; then *** alone; and ***"


async def test_where_all_is_taken_nothing_is_set_up_in_vain(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    told = {"environments": {"max_total_bytes": 1}}
    service.config = msgspec.structs.replace(service.config, extensions=told)
    await service.restart()
    client = service.client_with(client.key)
    first = await wait_for(client, await create(client), "ready", "failed")
    assert first["status"] == "ready", first
    failed = await wait_for(client, await create(client), "failed")
    assert failed["detail"].endswith("of `max_total_bytes`: delete some")
    assert len(fake_agent.sandboxes) == 1


async def test_the_long_set_up_of_one_user_keeps_no_other_waiting(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    ann = await service.make_client("ann", Role.MEMBER, scope=KeyScope.RUN)
    nothing = CommandResult(exit_code=0, stdout="", stderr="")
    fake_agent.on_command("take long", nothing, seconds=30)
    long = [await create(ann, setup_script="take long") for _ in range(2)]
    await wait_for(ann, long[0], "preparing")
    await wait_for(client, await create(client), "ready")
    assert (await ann.get(f"{PATH}/{long[1]['id']}")).json()["status"] == "waiting"


async def test_others_begin_with_what_an_administrator_shares(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    ann = await service.make_client("ann", Role.MEMBER, scope=KeyScope.RUN)
    await ann.save_settings()
    own = await wait_for(client, await create(client), "ready")
    shared = await wait_for(client, await create(client, shared=True), "ready")
    for method, path in (("GET", ""), ("PATCH", ""), ("DELETE", ""), ("POST", "/prepare")):
        options: Json = {"json": {}} if method == "PATCH" else {}
        answer = await ann.request(method, f"{PATH}/{shared['id']}{path}", **options)
        assert answer.status == 404, (method, path)
    refused = await ann.post(STARTS, json={"environment_id": own["id"]})
    assert (refused.status, refused.json()["code"]) == (404, "not_found")
    begun = await ann.conversation(await ann.start_conversation(environment_id=shared["id"]))
    assert fake_world.sandboxes[begun["sandbox_id"]].order.layer
    assert (await ann.post(PATH, json={"name": "x", "shared": True})).status == 403
    both = {"name": "x", "shared": True, "secrets": ["TOKEN"]}
    assert (await client.post(PATH, json=both)).status == 422


async def test_what_secrets_have_made_is_not_shared_when_they_are_taken_away(
    client: Client, service: Service, fake_agent: TroubledAgent, fake_world: TroubledWorld
) -> None:
    ann = await service.make_client("ann", Role.MEMBER, scope=KeyScope.RUN)
    await ann.save_settings()
    await client.post("/api/v1/secrets", json={"name": "TOKEN", "value": "canary-7"})
    made = await wait_for(client, await create(client, secrets=["TOKEN"]), "ready")
    [old] = fake_world.layers
    fake_agent.on_command("make bad", CommandResult(exit_code=2, stdout="", stderr=""))
    changes: Json = {"secrets": [], "shared": True, "setup_script": "make bad"}
    assert (await client.patch(f"{PATH}/{made['id']}", json=changes)).status == 200
    await wait_for(client, made, "failed")
    refused = await ann.post(STARTS, json={"environment_id": made["id"]})
    assert (refused.status, "is not prepared yet" in refused.text) == (400, True)
    # Its owner goes on with what there was.
    own = await client.conversation(await client.start_conversation(environment_id=made["id"]))
    assert fake_world.sandboxes[own["sandbox_id"]].order.layer == old
    await client.patch(f"{PATH}/{made['id']}", json={"setup_script": ""})
    await wait_for(client, made, "ready")
    begun = await ann.conversation(await ann.start_conversation(environment_id=made["id"]))
    assert fake_world.sandboxes[begun["sandbox_id"]].order.layer not in ("", old)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"name": ""}, 422),
        ({"name": "a\nb"}, 422),
        ({"name": "x", "watched": ["../etc"]}, 422),
        ({"name": "x", "watched": [":(exclude)a"]}, 422),
        ({"name": "x", "variables": {"A=B": "1"}}, 422),
        ({"name": "x", "setup_script": "a\0b"}, 422),
        ({"name": "x", "repository": "https://me:token@example.com/a.git"}, 422),
        ({"name": "x", "sandbox_spec_id": "none-such"}, 404),
    ],
)
async def test_what_cannot_be_meant_is_refused(client: Client, body: Json, status: int) -> None:
    answer = await client.post(PATH, json=body)
    assert answer.status == status, answer.text


@pytest.mark.parametrize(
    ("repository", "provider", "is_so"),
    [
        ("acme/site", None, True),
        ("Acme/Site.git", "gitlab", True),
        ("acme/site", "bitbucket_data_center", False),
        ("acme/other", "gitlab", False),
        ("https://example.com/acme/site", None, False),
    ],
)
def test_an_environment_is_of_one_repository(
    repository: str, provider: str | None, is_so: bool
) -> None:
    one = Definition(name="Site", repository="acme/site", provider=Provider.GITLAB)
    asked = Provider(provider) if provider else None
    assert one.is_of(repository, asked) == is_so


async def test_an_environment_brings_its_repository_and_goes_with_no_other(
    client: Client, tmp_path: Path
) -> None:
    async with GitServer(tmp_path) as git:
        await git.add_repository("acme/site", {"requirements.txt": "one\n"})
        tokens = {"token": git.token.reveal(), "host": f"http://{git.host}"}
        await client.save_settings(secrets_store={"provider_tokens": {"gitlab": tokens}})
        made = await create(client, repository="acme/site", provider="gitlab")
        ready = await wait_for(client, made, "ready")
        named = {"environment_id": ready["id"], "selected_repository": "acme/other"}
        answer = await client.post(STARTS, json=named)
        assert answer.status == 400, answer.text
        assert "is for the repository `acme/site`" in answer.json()["detail"]
        both: tuple[Json, ...] = ({}, {"selected_repository": git.url("acme/site")})
        for more in both:
            begun = await client.start_conversation(environment_id=ready["id"], **more)
            found = (await client.conversation(begun))["selected_repository"]
            assert found == more.get("selected_repository", "acme/site")


async def test_who_began_with_what_was_just_replaced_has_the_set_up_done_again(
    client: Client, fake_agent: TroubledAgent, fake_world: TroubledWorld
) -> None:
    made = await create(client, setup_script="make tools", maintenance_script="make fresh")
    await wait_for(client, made, "ready")
    fake_world.stays_starting = True
    task = await client.start_task(environment_id=made["id"])
    # The one in which it was prepared may still be there, and this one may be about to start.
    await eventually(
        lambda: any(one.order.layer and one.urls for one in fake_world.sandboxes.values())
    )
    [begun] = [one.order.sandbox_id for one in fake_world.sandboxes.values() if one.order.layer]
    fake_world.stays_starting = False
    assert (await client.post(f"{PATH}/{made['id']}/prepare")).status == 200
    await wait_for(client, made, "ready")
    fake_world.finish_start(begun)
    assert (await client.end_of_start(task["id"]))["status"] == "READY"
    commands = fake_agent.sandboxes[begun].commands
    for script in ("make tools", "make fresh"):
        assert len([one for one in commands if script in one]) == 1, script


async def test_who_has_conversations_share_sandboxes_has_one_alone_that_was_prepared(
    client: Client, fake_agent: TroubledAgent, fake_world: TroubledWorld
) -> None:
    ready = await wait_for(client, await create(client), "ready")
    answer = await client.post("/api/v1/settings", json={"sandbox_grouping_strategy": "ADD_TO_ANY"})
    assert answer.status == 200, answer.text
    begun = await client.conversation(await client.start_conversation(environment_id=ready["id"]))
    [sandbox] = [one for one in fake_world.sandboxes.values() if one.order.layer]
    commands = fake_agent.sandboxes[sandbox.order.sandbox_id].commands
    # Where its files are, and not beside them.
    assert [one for one in commands if begun["id"] in one.replace("-", "")] == []
    other = await client.conversation(await client.start_conversation())
    assert other["sandbox_id"] != begun["sandbox_id"]


@pytest.mark.parametrize("more", [{"archive_id": "0" * 32}, {"sandbox_id": "0" * 32}])
async def test_an_environment_goes_into_a_new_sandbox_only(client: Client, more: Json) -> None:
    ready = await wait_for(client, await create(client), "ready")
    answer = await client.post(STARTS, json={"environment_id": ready["id"], **more})
    assert answer.status in (400, 404), answer.text


async def test_a_preparing_that_a_stop_has_interrupted_is_done_again(
    client: Client, service: Service, fake_agent: TroubledAgent, fake_world: TroubledWorld
) -> None:
    nothing = CommandResult(exit_code=0, stdout="", stderr="")
    fake_agent.on_command("take long", nothing, seconds=30)
    made = await create(client, setup_script="take long")
    await eventually(
        lambda: any("take long" in c for s in fake_agent.sandboxes.values() for c in s.commands)
    )
    await service.stop()
    fake_agent.on_command("take long", nothing)
    await service.start()
    ready = await wait_for(service.client_with(client.key), made, "ready")
    assert ready["is_prepared"]
    await eventually(lambda: not fake_world.sandboxes)


async def test_a_start_that_a_stop_has_interrupted_goes_on_with_its_environment(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    made = await create(client, maintenance_script="keep up")
    await wait_for(client, made, "ready")
    fake_agent.hold("keep up", is_command=True)
    task = await client.start_task(environment_id=made["id"])
    await fake_agent.waits("keep up")
    await service.stop()
    fake_agent.let_go()
    await service.start()
    ended = await client.end_of_start(task["id"])
    assert ended["status"] == "READY", ended["detail"]
    commands = fake_agent.sandboxes[ended["sandbox_id"]].commands
    assert sum("keep up" in command for command in commands) == 2


async def test_no_script_is_run_again_once_the_agent_has_begun(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    made = await create(client, maintenance_script="keep up", setup_script="make tools")
    await wait_for(client, made, "ready")
    await reconfigure(service, conversations={"first_answer_seconds": 30.0})
    fake_agent.playbook = Playbook([Reply(text="hello", delay_seconds=1)])
    task = await client.start_task(environment_id=made["id"])
    await eventually(lambda: fake_agent.started() == 1)
    await service.restart()
    ended = await client.end_of_start(task["id"])
    assert ended["status"] == "READY", ended["detail"]
    commands = fake_agent.sandboxes[ended["sandbox_id"]].commands
    assert sum("keep up" in command for command in commands) == 1


async def test_a_layer_that_is_lost_is_prepared_again(
    client: Client, fake_world: TroubledWorld
) -> None:
    made = await create(client)
    await wait_for(client, made, "ready")
    fake_world.layers.clear()
    # Whatever is looked at next finds it out.
    await wait_for(client, await create(client, name="Other"), "ready")
    await eventually(lambda: len(fake_world.layers) == 2)


async def test_a_backend_that_is_not_there_keeps_no_other_from_being_tidied(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    made, other = await create(client), await create(client)
    for one in (made, other):
        await wait_for(client, one, "ready")
    sql = "UPDATE plugin_environments_environments SET backend = 'removed' WHERE id = :id"
    await service.app[DATABASE].write(lambda tx: tx.run(sql, {"id": made["id"]}))
    assert (await client.delete(f"{PATH}/{other['id']}")).status == 200
    await eventually(lambda: not fake_world.layers)
    await service.restart()
    await eventually(lambda: "environments" in service.app[SUPERVISOR].loop_failures())
    assert service.app[SUPERVISOR].loop_failures()["environments"] == 0


async def test_a_backend_without_layers_says_so(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    fake_world.capabilities -= {Capability.LAYERS}
    await service.restart()
    answer = await client.post(PATH, json={"name": "x"})
    assert (answer.status, answer.json()["code"]) == (409, "conflict")
    assert "cannot keep prepared files" in answer.json()["detail"]


async def test_a_backend_that_keeps_nothing_here_and_now_says_why(
    client: Client, fake_agent: TroubledAgent, fake_world: TroubledWorld
) -> None:
    made = await wait_for(client, await create(client), "ready")
    fake_world.why_no_copies = "the cluster has no snapshots"
    answer = await client.post(PATH, json={"name": "x"})
    assert (answer.status, answer.json()["code"]) == (409, "conflict")
    assert answer.json()["detail"].endswith("prepared files: the cluster has no snapshots")
    # What was asked for before is not set up in vain.
    before = len(fake_agent.sandboxes)
    assert (await client.post(f"{PATH}/{made['id']}/prepare")).status == 200
    failed = await wait_for(client, made, "failed")
    assert failed["detail"] == "Its files cannot be stored: the cluster has no snapshots"
    begun = list(fake_agent.sandboxes.values())[before:]
    assert [command for one in begun for command in one.commands] == []


async def test_what_is_removed_keeps_nothing_new_waiting(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    await reconfigure(service, sandboxes={"call_seconds": 3600})
    may_look = fake_world.hold("layers")
    made = await create(client)
    await fake_world.waits("layers")
    await wait_for(client, made, "ready")
    may_look.set()


async def test_what_is_prepared_while_files_are_looked_for_is_kept(
    client: Client, fake_world: TroubledWorld
) -> None:
    held = fake_world.hold("layers")
    first = await create(client)
    await fake_world.waits("layers")
    second = await create(client)
    for made in (first, second):
        await wait_for(client, made, "ready")
    kept = set(fake_world.layers)
    fake_world.held.clear()
    held.set()
    await eventually(lambda: fake_world.count("layers") > 0)
    # Whatever is looked at next would find out that one is gone.
    await wait_for(client, await create(client), "ready")
    await eventually(lambda: fake_world.count("layers") > 1)
    assert (len(kept), fake_world.count("remove_layer")) == (2, 0)
    assert kept <= fake_world.layers.keys()


async def test_a_user_has_only_so_many(client: Client, service: Service) -> None:
    service.config = msgspec.structs.replace(
        service.config, extensions={"environments": {"max_per_user": 1}}
    )
    await service.restart()
    await create(client)
    answer = await client.post(PATH, json={"name": "second"})
    assert (answer.status, answer.json()["code"]) == (429, "quota_exceeded")
