"""Language models saved under names, through the socket."""

from typing import Any

import pytest

from agentsvc.accounts.keys import Role
from agentsvc.base.values import MASK
from tests.fake_agent import FakeAgent
from tests.service import Answer, Client, Service

SETTINGS = "/api/v1/settings"
PROFILES = f"{SETTINGS}/profiles"


async def save(client: Client, name: str, **body: Any) -> Answer:
    answer = await client.post(f"{PROFILES}/{name}", json=body)
    assert answer.status == 201, answer.text
    return answer


async def listed(client: Client) -> list[dict[str, Any]]:
    profiles: list[dict[str, Any]] = (await client.get(PROFILES)).json()["profiles"]
    return profiles


async def active(client: Client) -> str | None:
    name: str | None = (await client.get(PROFILES)).json()["active_profile"]
    return name


async def config(client: Client, name: str) -> dict[str, Any]:
    found: dict[str, Any] = (await client.get(f"{PROFILES}/{name}")).json()
    return found


async def started_with(client: Client, fake_agent: FakeAgent) -> dict[str, Any]:
    """Return the model a new conversation is started with."""
    await client.start_conversation(None)
    sandbox = list(fake_agent.sandboxes.values())[-1]
    [body] = [body for path, body in sandbox.bodies if path == "/api/conversations"]
    llm: dict[str, Any] = body["agent"]["llm"]
    return llm


async def test_there_are_no_profiles_at_first(client: Client) -> None:
    assert (await client.get(PROFILES)).json() == {"profiles": [], "active_profile": None}


@pytest.mark.parametrize("options", [{}, {"json": None}, {"json": {}}])
async def test_without_a_model_the_current_one_is_saved(
    client: Client, options: dict[str, Any]
) -> None:
    answer = await client.post(f"{PROFILES}/now", **options)
    assert answer.status == 201
    assert answer.json() == {"name": "now", "message": "Profile 'now' saved"}
    assert await listed(client) == [
        {"name": "now", "model": "openai/scripted", "base_url": None, "api_key_set": True}
    ]


async def test_a_saved_model_shows_all_but_its_secrets(client: Client) -> None:
    llm = {
        "model": "openai/x",
        "api_key": "key-x",
        "base_url": "http://m/v1",
        "temperature": 0.5,
        "aws_access_key_id": "aws-x",
        "extra_headers": {"X-A": "header-x"},
    }
    await save(client, "x", llm=llm)
    shown = await config(client, "x")
    assert (shown["name"], shown["api_key_set"]) == ("x", True)
    assert shown["config"]["model"] == "openai/x"
    assert shown["config"]["temperature"] == 0.5
    assert shown["config"]["api_key"] is None
    assert shown["config"]["aws_access_key_id"] is None
    assert shown["config"]["extra_headers"] == {"X-A": MASK}


async def test_secrets_are_left_out_if_that_is_asked(client: Client) -> None:
    await save(client, "x", llm={"model": "m", "api_key": "k"}, include_secrets=False)
    assert (await config(client, "x"))["api_key_set"] is False


@pytest.mark.parametrize(
    ("again", "key"),
    [
        ({"llm": {"model": "n"}, "preserve_existing_api_key": True}, "key-1"),
        ({"llm": {"model": "n", "api_key": MASK}}, "key-1"),
        ({"llm": {"model": "n", "api_key": "key-2"}, "preserve_existing_api_key": True}, "key-2"),
    ],
)
async def test_the_key_of_a_profile_stays_if_it_is_to(
    client: Client, fake_agent: FakeAgent, again: dict[str, Any], key: str
) -> None:
    await save(client, "x", llm={"model": "m", "api_key": "key-1"})
    await save(client, "x", **again)
    await client.post(f"{PROFILES}/x/activate")
    llm = await started_with(client, fake_agent)
    assert (llm["model"], llm["api_key"]) == ("n", key)


async def test_a_profile_saved_without_its_key_has_none(client: Client) -> None:
    await save(client, "x", llm={"model": "m", "api_key": "key-1"})
    await save(client, "x", llm={"model": "n"})
    assert (await config(client, "x"))["api_key_set"] is False


async def test_all_that_is_secret_stays_where_stars_come_back(
    client: Client, fake_agent: FakeAgent
) -> None:
    await save(
        client,
        "x",
        llm={"model": "m", "aws_access_key_id": "aws-1", "extra_headers": {"X-A": "1"}},
    )
    llm = {"model": "m", "extra_headers": {"X-A": MASK, "X-B": "2", "X-C": MASK}}
    await save(client, "x", llm=llm, preserve_existing_api_key=True)
    await client.post(f"{PROFILES}/x/activate")
    sent = await started_with(client, fake_agent)
    assert sent["aws_access_key_id"] == "aws-1"
    assert sent["extra_headers"] == {"X-A": "1", "X-B": "2"}


async def test_what_a_profile_shows_can_be_posted_back(client: Client) -> None:
    await save(client, "x", llm={"model": "m", "api_key": "k", "temperature": 0.5})
    before = await config(client, "x")
    await save(client, "x", llm=before["config"], preserve_existing_api_key=True)
    assert await config(client, "x") == before


async def test_an_activated_profile_is_the_model_of_the_settings(
    client: Client, fake_agent: FakeAgent
) -> None:
    await save(client, "x", llm={"model": "openai/x", "api_key": "key-x", "temperature": 0.5})
    answer = await client.post(f"{PROFILES}/x/activate")
    assert answer.status == 200
    assert answer.json() == {
        "name": "x",
        "message": "Profile 'x' activated",
        "model": "openai/x",
    }
    assert await active(client) == "x"
    settings = (await client.get(SETTINGS)).json()
    assert settings["llm_model"] == "openai/x"
    assert settings["llm_profiles"]["active"] == "x"
    sent = await started_with(client, fake_agent)
    assert (sent["api_key"], sent["temperature"]) == ("key-x", 0.5)


async def test_a_profile_without_a_key_is_used_with_the_key_there_is(
    client: Client, fake_agent: FakeAgent
) -> None:
    await save(client, "x", llm={"model": "openai/x"})
    await client.post(f"{PROFILES}/x/activate")
    assert await active(client) == "x"
    assert (await started_with(client, fake_agent))["api_key"] == "model-key-1"


async def test_a_profile_is_active_while_the_settings_agree_with_it(client: Client) -> None:
    await save(client, "now")
    await client.post(f"{PROFILES}/now/activate")
    await client.save_settings(llm_model="openai/other")
    assert await active(client) is None
    await client.save_settings()
    assert await active(client) == "now"


async def test_a_renamed_profile_keeps_its_place_and_stays_active(client: Client) -> None:
    for name in ("a", "b"):
        await save(client, name)
    await client.post(f"{PROFILES}/a/activate")
    answer = await client.post(f"{PROFILES}/a/rename", json={"new_name": "c"})
    assert (answer.status, answer.json()["name"]) == (200, "c")
    assert [one["name"] for one in await listed(client)] == ["c", "b"]
    assert await active(client) == "c"


async def test_a_renamed_profile_goes_on_making_titles(client: Client) -> None:
    await save(client, "a")
    for named, after in (("a", "b"), ("other", "other")):
        await client.post("/api/v1/settings", json={"title_llm_profile": named})
        await client.post(f"{PROFILES}/a/rename", json={"new_name": "b"})
        settings = (await client.get("/api/v1/settings")).json()
        assert settings["title_llm_profile"] == after
        await client.post(f"{PROFILES}/b/rename", json={"new_name": "a"})


async def test_a_profile_may_be_renamed_to_its_own_name(client: Client) -> None:
    await save(client, "a")
    assert (await client.post(f"{PROFILES}/a/rename", json={"new_name": "a"})).status == 200


async def test_a_deleted_profile_is_gone_and_its_model_stays_in_use(client: Client) -> None:
    await save(client, "x", llm={"model": "openai/x"})
    await client.post(f"{PROFILES}/x/activate")
    answer = await client.delete(f"{PROFILES}/x")
    assert (answer.status, answer.json()["message"]) == (200, "Profile 'x' deleted")
    assert await listed(client) == []
    assert await active(client) is None
    assert (await client.get(SETTINGS)).json()["llm_model"] == "openai/x"


async def test_deleting_what_is_not_there_is_fine(client: Client, service: Service) -> None:
    assert (await client.delete(f"{PROFILES}/x")).status == 200
    newcomer = await service.make_client("newcomer", Role.MEMBER)
    assert (await newcomer.delete(f"{PROFILES}/x")).status == 200
    assert (await newcomer.get(SETTINGS)).status == 404


async def test_there_can_be_ten(client: Client) -> None:
    for number in range(10):
        await save(client, f"p{number}")
    answer = await client.post(f"{PROFILES}/p10")
    assert (answer.status, answer.json()["code"]) == (409, "conflict")
    await save(client, "p0", llm={"model": "again"})


async def test_a_name_that_is_taken_is_not_given_twice(client: Client) -> None:
    for name in ("a", "b"):
        await save(client, name)
    answer = await client.post(f"{PROFILES}/a/rename", json={"new_name": "b"})
    assert (answer.status, answer.json()["detail"]) == (409, "Profile 'b' already exists")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "x", None),
        ("POST", "x/activate", None),
        ("POST", "x/rename", {"new_name": "y"}),
    ],
)
async def test_a_profile_that_is_not_there_is_not_found(
    client: Client, method: str, path: str, body: Any
) -> None:
    answer = await client.request(method, f"{PROFILES}/{path}", json=body)
    assert (answer.status, answer.json()["detail"]) == (404, "Profile 'x' not found")


@pytest.mark.parametrize(
    ("path", "body"), [("x", None), ("x/activate", None), ("x/rename", {"new_name": "y"})]
)
async def test_without_settings_there_is_nothing_to_save_or_to_use(
    service: Service, path: str, body: Any
) -> None:
    newcomer = await service.make_client("newcomer", Role.MEMBER)
    answer = await newcomer.post(f"{PROFILES}/{path}", json=body)
    assert (answer.status, answer.json()["error"]) == (404, "Settings not found")


@pytest.mark.parametrize("name", ["a b", "x" * 65, "ä", "a%2Fb"])
async def test_a_profile_cannot_be_called_anything(client: Client, name: str) -> None:
    answer = await client.post(f"{PROFILES}/{name}")
    assert answer.status == 422
    assert answer.json()["detail"][0]["loc"] == ["path", "name"]


@pytest.mark.parametrize(
    ("path", "body", "loc"),
    [
        ("x", {"llm": {"model": "m", "custom_header": "x"}}, ["body", "llm", "custom_header"]),
        ("x", {"llm": {"model": 5}}, ["body", "llm", "model"]),
        ("x", {"llm": {"model": "m", "base_url": "nope"}}, ["body", "llm", "base_url"]),
        ("x", {"llm": 5}, ["body", "llm"]),
        ("x/rename", {"new_name": "a b"}, ["body", "new_name"]),
        ("x/rename", {}, ["body", "new_name"]),
    ],
)
async def test_a_body_that_does_not_fit_is_refused_at_its_place(
    client: Client, path: str, body: Any, loc: list[str]
) -> None:
    answer = await client.post(f"{PROFILES}/{path}", json=body)
    assert (answer.status, answer.json()["detail"][0]["loc"]) == (422, loc)


async def test_users_have_profiles_of_their_own(client: Client, service: Service) -> None:
    await save(client, "mine")
    other = await service.make_client("bob", Role.MEMBER)
    await other.save_settings()
    assert await listed(other) == []
    assert (await other.get(f"{PROFILES}/mine")).status == 404
