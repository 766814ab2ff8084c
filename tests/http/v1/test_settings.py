"""Settings of the newer generation, through the socket, and that both see one record."""

from typing import Any

import msgspec
import pytest

from agentsvc.accounts.keys import Role
from agentsvc.base.values import MASK
from agentsvc.config.sandboxes import SpecConfig
from agentsvc.http.keys import SETTINGS as SETTINGS_STORE
from agentsvc.settings.fields import Settings
from agentsvc.testing.llm import ScriptedModel
from tests.fake_agent import FakeAgent
from tests.service import Answer, Client, Service
from tests.troubles import reconfigure

SETTINGS = "/api/v1/settings"
OLD = "/api/settings"


async def save(client: Client, **body: Any) -> None:
    answer = await client.post(SETTINGS, json=body)
    assert (answer.status, answer.text) == (200, '{"message":"Settings stored"}')


async def save_agent(client: Client, **diff: Any) -> None:
    await save(client, agent_settings_diff=diff)


async def read(client: Client) -> dict[str, Any]:
    answer = await client.get(SETTINGS)
    assert answer.status == 200, answer.text
    settings: dict[str, Any] = answer.json()
    return settings


async def read_old(client: Client) -> dict[str, Any]:
    settings: dict[str, Any] = (await client.get(OLD)).json()
    return settings


async def started_with(client: Client, fake_agent: FakeAgent) -> dict[str, Any]:
    """Return what the agent server was asked to start a conversation with."""
    await client.start_conversation(None)
    [sandbox] = fake_agent.sandboxes.values()
    [body] = [body for path, body in sandbox.bodies if path == "/api/conversations"]
    return body


def shape_of(answer: Answer) -> tuple[int, str, str]:
    body = answer.json()
    return answer.status, body.get("error", ""), body["code"]


async def test_there_are_no_settings_before_the_first_save(newcomer: Client) -> None:
    assert shape_of(await newcomer.get(SETTINGS)) == (404, "Settings not found", "not_found")


async def test_settings_spell_out_every_field(newcomer: Client) -> None:
    await save(newcomer)
    settings = await read(newcomer)
    assert settings["language"] is None
    assert settings["secrets_store"] == {"provider_tokens": {}}
    assert settings["enable_proactive_conversation_starters"] is True
    assert settings["v1_enabled"] is True
    assert settings["sandbox_grouping_strategy"] == "NO_GROUPING"
    assert settings["conversation_settings"] == {
        "schema_version": 1,
        "max_iterations": 500,
        "confirmation_mode": False,
        "security_analyzer": None,
    }
    agent = settings["agent_settings"]
    assert (agent["agent_kind"], agent["agent"]) == ("openhands", "CodeActAgent")
    assert (agent["llm"]["model"], agent["llm"]["num_retries"]) == (None, 5)
    assert agent["condenser"]["max_size"] == 240
    assert agent["mcp_config"] == {}
    assert settings["llm_profiles"] == {"profiles": {}, "active": None}
    assert settings["provider_tokens_set"] == {}
    assert (settings["llm_api_key_set"], settings["search_api_key_set"]) == (False, False)


@pytest.mark.parametrize(
    ("part", "value", "old_name"),
    [
        ({"llm": {"model": "openai/x"}}, "openai/x", "llm_model"),
        ({"llm": {"base_url": "http://m/v1"}}, "http://m/v1", "llm_base_url"),
        ({"condenser": {"enabled": False}}, False, "enable_default_condenser"),
        ({"condenser": {"max_size": 77}}, 77, "condenser_max_size"),
    ],
)
async def test_what_the_new_form_sets_the_old_one_reads(
    newcomer: Client, part: dict[str, Any], value: Any, old_name: str
) -> None:
    await save_agent(newcomer, **part)
    assert (await read_old(newcomer))[old_name] == value
    assert (await read(newcomer))[old_name] == value


@pytest.mark.parametrize("path", [OLD, SETTINGS])
async def test_what_the_old_form_sets_the_new_one_reads(newcomer: Client, path: str) -> None:
    await newcomer.post(
        path,
        json={
            "llm_model": "openai/x",
            "llm_api_key": "key-1",
            "llm_base_url": "http://m/v1",
            "agent": "CodeActAgent",
            "max_iterations": 9,
            "confirmation_mode": True,
            "security_analyzer": "llm",
            "enable_default_condenser": False,
            "condenser_max_size": 77,
            "mcp_config": {"sse_servers": [{"url": "http://a", "api_key": "k"}]},
        },
    )
    settings = await read(newcomer)
    agent = settings["agent_settings"]
    assert agent["agent"] == "CodeActAgent"
    assert (agent["llm"]["model"], agent["llm"]["base_url"]) == ("openai/x", "http://m/v1")
    assert (agent["condenser"]["enabled"], agent["condenser"]["max_size"]) == (False, 77)
    assert agent["mcp_config"]["sse_0"]["headers"] == {"Authorization": MASK}
    assert settings["conversation_settings"] == {
        "schema_version": 1,
        "max_iterations": 9,
        "confirmation_mode": True,
        "security_analyzer": "llm",
    }
    assert settings["llm_api_key_set"] is True


async def test_conversation_settings_are_one_with_the_flat_ones(newcomer: Client) -> None:
    await save(
        newcomer,
        conversation_settings_diff={
            "max_iterations": 7,
            "confirmation_mode": True,
            "security_analyzer": "none",
        },
    )
    old = await read_old(newcomer)
    assert (old["max_iterations"], old["confirmation_mode"]) == (7, True)
    await save(newcomer, conversation_settings_diff={"max_iterations": None})
    settings = await read(newcomer)
    assert settings["max_iterations"] is None
    assert settings["conversation_settings"]["max_iterations"] == 500
    assert settings["conversation_settings"]["confirmation_mode"] is True


@pytest.mark.parametrize("path", [OLD, SETTINGS])
@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("security_analyzer", "invariant", "`llm` or `none`"),
        ("agent", "Other", "`CodeActAgent`"),
        ("llm_base_url", "localhost:11434", "`http://localhost:11434/v1`"),
        ("llm_base_url", "ftp://a", "URL of http or https"),
        ("llm_base_url", "http://", "URL of http or https"),
        ("llm_base_url", "http://a b", "URL of http or https"),
        ("llm_base_url", "http://a:99999", "URL of http or https"),
    ],
)
async def test_a_value_that_can_never_work_is_refused_with_what_can(
    newcomer: Client, path: str, name: str, given: str, words: str
) -> None:
    answer = await newcomer.post(path, json={name: given, "language": "en"})
    assert answer.status == 422, answer.text
    [problem] = answer.json()["detail"]
    assert problem["loc"] == ["body", name]
    assert words in problem["msg"]
    assert (await newcomer.get(path)).status == 404


async def test_what_was_stored_when_it_was_taken_may_come_back(
    client: Client, service: Service
) -> None:
    store = service.app[SETTINGS_STORE]
    user_id = (await client.get("/api/v1/users/me")).json()["id"].replace("-", "")
    await store.change(
        user_id,
        lambda old: msgspec.structs.replace(
            old or Settings(), agent="Other", security_analyzer="invariant", llm_base_url="nope"
        ),
    )
    known = {"agent": "Other", "security_analyzer": "invariant", "llm_base_url": "nope"}
    for path in (OLD, SETTINGS):
        before = (await client.get(path)).json()
        assert {name: before[name] for name in known} == known
        assert (await client.post(path, json=known)).status == 200
    assert (await read(client))["conversation_settings"]["security_analyzer"] is None
    assert (await client.post(OLD, json=dict.fromkeys(known, ""))).status == 200
    after = (await client.get(OLD)).json()
    assert [after[name] for name in known] == [None, None, None]


async def test_a_part_is_merged_deeply(newcomer: Client) -> None:
    await save_agent(
        newcomer,
        llm={"temperature": 0.5, "litellm_extra_body": {"a": {"b": 1}, "c": 2}},
        condenser={"keep_first": 4},
        verification={"critic_enabled": True, "critic_threshold": 0.9},
    )
    await save_agent(
        newcomer,
        llm={"top_p": 0.25, "litellm_extra_body": {"a": {"d": 3}, "c": None}},
        verification={"critic_threshold": 0.5},
    )
    agent = (await read(newcomer))["agent_settings"]
    assert (agent["llm"]["temperature"], agent["llm"]["top_p"]) == (0.5, 0.25)
    assert agent["llm"]["litellm_extra_body"] == {"a": {"b": 1, "d": 3}}
    assert agent["condenser"]["keep_first"] == 4
    assert agent["verification"]["critic_enabled"] is True
    assert agent["verification"]["critic_threshold"] == 0.5


async def test_null_in_a_part_is_the_default_again(newcomer: Client) -> None:
    await save_agent(
        newcomer,
        llm={"num_retries": 1, "base_url": "http://m/v1", "model": "openai/x"},
        condenser={"max_size": 50},
        tools=[{"name": "terminal"}],
    )
    await save_agent(
        newcomer,
        llm={"num_retries": None, "base_url": None, "model": None},
        condenser={"max_size": None},
        tools=None,
    )
    agent = (await read(newcomer))["agent_settings"]
    assert (agent["llm"]["num_retries"], agent["llm"]["base_url"]) == (5, None)
    assert agent["llm"]["model"] == "openai/x"
    assert agent["condenser"]["max_size"] == 240
    assert agent["tools"] is None


async def test_null_for_an_object_is_null_for_each_field_but_secrets_and_the_model(
    client: Client, fake_agent: FakeAgent
) -> None:
    condenser = {"enabled": False, "max_size": 50, "keep_first": 4}
    llm = {"base_url": "http://a", "temperature": 0.5, "aws_access_key_id": "aws-2"}
    default = (await read(client))["agent_settings"]
    await save_agent(client, llm=llm, condenser=condenser)
    await save_agent(client, llm=None, condenser=None)
    assert (await read(client))["agent_settings"] == default
    # What another kind of agent does not show, too.
    await save_agent(client, agent_kind="acp")
    await save_agent(client, llm=None)
    await save_agent(client, agent_kind="openhands")
    llm = (await started_with(client, fake_agent))["agent"]["llm"]
    assert (llm["api_key"], llm["aws_access_key_id"]) == ("model-key-1", "aws-2")


async def test_the_older_form_keeps_what_only_the_newer_one_can_say(client: Client) -> None:
    await save_agent(
        client,
        llm={"temperature": 0.5},
        condenser={"keep_first": 4},
        mcp_config={"s": {"url": "http://a", "headers": {"X-A": "1"}}},
    )
    before = await read(client)
    answer = await client.post(OLD, json=await read_old(client))
    assert answer.status == 200
    assert await read(client) == before


async def test_posting_back_what_was_read_changes_nothing(client: Client) -> None:
    await save_agent(
        client,
        llm={"temperature": 0.5, "extra_headers": {"X-A": "1"}, "aws_access_key_id": "aws-1"},
        verification={"critic_enabled": True, "critic_api_key": "critic-1"},
        mcp_config={"s": {"url": "http://a", "auth": "token-1"}},
        persona="A pirate",
    )
    await client.post(f"{SETTINGS}/profiles/one")
    before = await read(client)
    body = {name: value for name, value in before.items() if not name.endswith("_settings")}
    await save(
        client,
        **body,
        agent_settings_diff=before["agent_settings"],
        conversation_settings_diff=before["conversation_settings"],
    )
    assert await read(client) == before


async def test_secrets_in_settings_are_kept(newcomer: Client) -> None:
    store = {"custom_secrets": {"A": {"secret": "1", "description": "d"}}}
    await save(newcomer, secrets_store=store)
    await save(newcomer, secrets_store=(await read(newcomer))["secrets_store"])
    listed = (await newcomer.get("/api/v1/secrets/search")).json()
    assert listed["items"] == [{"name": "A", "description": "d"}]


async def test_secrets_in_settings_that_do_not_fit_are_refused(newcomer: Client) -> None:
    answer = await newcomer.post(SETTINGS, json={"language": "de", "secrets_store": 5})
    assert answer.status == 422
    assert answer.json()["detail"][0]["loc"] == ["body", "secrets_store"]
    assert (await newcomer.get(SETTINGS)).status == 404


async def test_tool_servers_are_replaced_as_a_whole(newcomer: Client) -> None:
    await save_agent(newcomer, mcp_config={"a": {"url": "http://a"}, "b": {"command": "b"}})
    await save_agent(newcomer, mcp_config={"b": {"command": "c"}})
    servers = (await read(newcomer))["agent_settings"]["mcp_config"]
    assert list(servers) == ["b"]
    await save_agent(newcomer, mcp_config={})
    assert (await read(newcomer))["agent_settings"]["mcp_config"] == {}


async def test_no_secret_is_shown(newcomer: Client) -> None:
    secret = "never-shown"  # noqa: S105  # not one
    await save_agent(
        newcomer,
        llm={
            "api_key": secret,
            "aws_access_key_id": secret,
            "aws_secret_access_key": secret,
            "aws_session_token": secret,
            "extra_headers": {"X-A": secret},
        },
        verification={"critic_api_key": secret},
        mcp_config={
            "a": {"url": "http://a", "headers": {"X-A": secret}},
            "b": {"url": "http://b", "auth": {"strategy": "bearer", "value": secret}},
            "c": {"command": "c", "env": {"A": secret}},
        },
    )
    await newcomer.post(f"{SETTINGS}/profiles/one")
    await save(newcomer, search_api_key=secret, sandbox_api_key=secret)
    for path in (SETTINGS, OLD, f"{SETTINGS}/profiles", f"{SETTINGS}/profiles/one"):
        assert secret not in (await newcomer.get(path)).text
    settings = await read(newcomer)
    assert settings["agent_settings"]["llm"]["api_key"] is None
    assert settings["agent_settings"]["llm"]["extra_headers"] == {"X-A": MASK}
    assert settings["llm_profiles"]["profiles"]["one"]["api_key"] == MASK


@pytest.mark.parametrize("sent", [None, MASK])
async def test_a_secret_that_comes_back_hidden_stays(
    client: Client, fake_agent: FakeAgent, sent: str | None
) -> None:
    await save_agent(client, llm={"api_key": "key-2", "aws_access_key_id": "aws-2"})
    await save_agent(client, llm={"api_key": sent, "aws_access_key_id": sent})
    llm = (await started_with(client, fake_agent))["agent"]["llm"]
    assert (llm["api_key"], llm["aws_access_key_id"]) == ("key-2", "aws-2")


@pytest.mark.parametrize(
    "diff",
    [
        {"llm": MASK},
        {"condenser": MASK},
        {"condenser": {"enabled": MASK}},
        {"condenser": {"max_size": MASK}},
        {"llm": {"model": MASK}},
    ],
)
async def test_stars_in_any_place_change_nothing(client: Client, diff: dict[str, Any]) -> None:
    before = await read(client)
    await save_agent(client, **diff)
    assert await read(client) == before


async def test_an_empty_key_is_forgotten(client: Client) -> None:
    await save_agent(client, llm={"api_key": ""})
    assert (await read(client))["llm_api_key_set"] is False


async def test_what_is_set_reaches_the_agent(client: Client, fake_agent: FakeAgent) -> None:
    await save_agent(
        client,
        llm={"temperature": 0.5, "extra_headers": {"X-A": "1"}},
        condenser={"keep_first": 4, "max_size": 50},
        mcp_config={"s": {"url": "http://a", "auth": "token-1"}},
        agent_context={"system_message_suffix": "Be brief."},
    )
    await save(client, conversation_settings_diff={"max_iterations": 3})
    body = await started_with(client, fake_agent)
    agent = body["agent"]
    assert body["max_iterations"] == 3
    assert agent["llm"]["temperature"] == 0.5
    assert agent["llm"]["extra_headers"] == {"X-A": "1"}
    assert (agent["condenser"]["keep_first"], agent["condenser"]["max_size"]) == (4, 50)
    assert agent["mcp_config"]["s"]["headers"] == {"Authorization": "Bearer token-1"}
    assert agent["agent_context"]["system_message_suffix"] == "Be brief."


@pytest.mark.parametrize(("wanted", "found"), [("second", "second"), ("no such spec", "first")])
async def test_a_conversation_starts_in_the_user_s_usual_spec_if_there_is_one(
    client: Client, service: Service, wanted: str, found: str
) -> None:
    specs = {name: SpecConfig(id=name, backend="fake") for name in ("first", "second")}
    service.config = msgspec.structs.replace(service.config, specs=specs)
    await service.restart()
    await save(client, default_sandbox_spec_id=wanted)
    conversation = await client.conversation(await client.start_conversation(None))
    sandbox = await client.sandbox(conversation["sandbox_id"])
    assert sandbox is not None
    assert sandbox["sandbox_spec_id"] == found


@pytest.mark.parametrize(
    "body",
    [
        {"agent_settings": {"llm": {}}},
        {"conversation_settings": None},
        {"agent_settings": 1, "language": "en"},
    ],
)
async def test_the_whole_nested_objects_are_refused(client: Client, body: dict[str, Any]) -> None:
    answer = await client.post(SETTINGS, json=body)
    found = answer.json()
    assert answer.status == 422
    assert found["error"] == "Use *_diff nested settings payloads instead of legacy keys"
    assert found["keys"] == [name for name in body if name.endswith("_settings")]
    assert found["detail"][0]["loc"] == ["body", found["keys"][0]]
    assert (await read(client))["language"] is None


@pytest.mark.parametrize(
    ("diff", "words"),
    [
        ({"llm": {"temperature": "hot"}}, "llm.temperature"),
        ({"llm": {"temperature": -1}}, "llm.temperature"),
        ({"llm": {"model": 5}}, "llm.model"),
        ({"llm": {"model": "a\nb"}}, "control characters"),
        ({"llm": {"auth_type": "subscription"}}, "llm.auth_type"),
        ({"llm": {"aws_access_key_id": 5}}, "llm.aws_access_key_id"),
        ({"llm": {"aws_access_key_id": "a\nb"}}, "llm.aws_access_key_id"),
        ({"llm": 5}, "llm"),
        ({"condenser": {"max_size": 19}}, "condenser.max_size"),
        ({"verification": {"critic_mode": "x"}}, "verification.critic_mode"),
        ({"agent_kind": "other"}, "agent_kind"),
        ({"tools": [{}]}, "tools.0.name"),
        ({"mcp_config": {"s": {"url": "nope"}}}, "mcp_config.s.url"),
        ({"mcp_config": {"s": {"url": "http://a", "headers": {"A": MASK}}}}, "none is stored"),
        ({"agent": "Other"}, "agent: Input should be `CodeActAgent`"),
        ({"llm": {"base_url": "nope"}}, "llm.base_url: Input should be a URL of http or https"),
    ],
)
async def test_a_nested_value_that_does_not_fit_is_a_bad_request(
    client: Client, diff: dict[str, Any], words: str
) -> None:
    answer = await client.post(SETTINGS, json={"agent_settings_diff": diff, "language": "en"})
    body = answer.json()
    assert answer.status == 400
    assert words in body["error"]
    assert body["detail"] == body["error"]
    assert (await read(client))["language"] is None


@pytest.mark.parametrize(
    "diff",
    [{"max_iterations": 0}, {"confirmation_mode": "yes"}, {"security_analyzer": "invariant"}],
)
async def test_so_is_one_of_the_conversation(client: Client, diff: dict[str, Any]) -> None:
    answer = await client.post(SETTINGS, json={"conversation_settings_diff": diff})
    assert (answer.status, answer.json()["code"]) == (400, "bad_request")


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        ([], ["body"]),
        ({"language": 5}, ["body", "language"]),
        ({"agent_settings_diff": []}, ["body", "agent_settings_diff"]),
        ({"sandbox_grouping_strategy": "X"}, ["body", "sandbox_grouping_strategy"]),
        ({"disabled_skills": "a"}, ["body", "disabled_skills"]),
        ({"max_iterations": 0}, ["body", "max_iterations"]),
        ({"mcp_config": {"s": {"url": "nope"}}}, ["body", "mcp_config", "s", "url"]),
    ],
)
async def test_a_top_level_value_that_does_not_fit_is_refused_at_its_place(
    client: Client, body: Any, loc: list[str]
) -> None:
    answer = await client.post(SETTINGS, json=body)
    assert (answer.status, answer.json()["detail"][0]["loc"]) == (422, loc)


async def test_what_is_not_known_is_ignored(client: Client) -> None:
    await save(
        client,
        language="en",
        llm_profiles={"profiles": {"x": {}}},
        unknown=1,
        agent_settings_diff={"unknown": 1, "llm": {"unknown": 1}},
    )
    settings = await read(client)
    assert settings["language"] == "en"
    assert settings["llm_profiles"]["profiles"] == {}


async def test_the_nested_form_counts_where_both_are_sent(client: Client) -> None:
    await save(client, llm_model="openai/flat", agent_settings_diff={"llm": {"model": "openai/n"}})
    assert (await read(client))["llm_model"] == "openai/n"


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    "path", ["", "/agent-schema", "/conversation-schema", "/profiles", "/profiles/one"]
)
async def test_settings_need_a_key(service: Service, method: str, path: str) -> None:
    nobody = await service.make_client(None)
    assert (await nobody.request(method, SETTINGS + path)).status in (401, 405)


async def test_the_stored_model_is_tested_but_not_inside(
    client: Client, newcomer: Client, service: Service
) -> None:
    async with ScriptedModel() as model:
        await save(
            client,
            llm_model="openai/scripted",
            llm_base_url=model.url,
            llm_api_key=model.key.reveal(),
        )
        found = (await client.post(f"{SETTINGS}/test-model")).json()
        assert found["outcome"] == "untested"
        assert "`sandboxes.model_hosts`" in found["message"]
        assert model.requests == []
        host = model.url.removeprefix("http://").removesuffix("/v1")
        assert found["host"] == host
        hosts = "/api/v1/model-hosts"
        assert (await newcomer.post(hosts, json={"host": host})).status == 403
        assert (await client.post(hosts, json={"host": "a b"})).status == 422
        added = (await client.post(hosts, json={"host": host})).json()
        assert added == {"configured": [], "added": [host]}
        found = (await client.post(f"{SETTINGS}/test-model")).json()
        assert (found["outcome"], found["status"], found["host"]) == ("answers", 200, "")
        assert (await client.delete(f"{hosts}/{host}")).json()["added"] == []
        assert (await client.delete(f"{hosts}/{host}")).status == 404
        await reconfigure(service, sandboxes={"model_hosts": (host,)})
        found = (await client.post(f"{SETTINGS}/test-model")).json()
        assert (found["outcome"], found["status"]) == ("answers", 200)
        assert len(model.requests) == 2
    found = (await newcomer.post(f"{SETTINGS}/test-model")).json()
    assert (found["outcome"], found["message"]) == (
        "untested",
        "No model is named in the settings.",
    )


async def test_another_agent_is_started_as_the_settings_say(
    client: Client, fake_agent: FakeAgent
) -> None:
    usual = (await client.get(SETTINGS)).json()["agent_settings"]
    first = await client.start_conversation()
    wrong: dict[str, Any] = {"agent_kind": "acp", "acp_server": "custom"}
    answer = await client.post(SETTINGS, json={"agent_settings_diff": wrong})
    assert (answer.status, "needs a command" in answer.text) == (400, True)
    chosen = {"agent_kind": "acp", "acp_server": "codex", "acp_args": ["--fast"]}
    await save(client, agent_settings_diff=chosen)
    shown = (await client.get(SETTINGS)).json()["agent_settings"]
    assert chosen.items() <= shown.items()
    assert "llm" not in shown

    conversation_id = await client.start_conversation()
    found = await client.conversation(conversation_id)
    assert (found["agent_kind"], found["acp_server"]) == ("acp", "codex")
    told = fake_agent.find_conversation(conversation_id)
    assert told is not None
    assert "agent" not in told.body
    assert chosen.items() <= told.body["agent_settings"].items()
    key = {"kind": "StaticSecret", "value": "model-key-1", "description": None}
    assert told.body["secrets"]["OPENAI_API_KEY"] == key

    for one, status in ((conversation_id, 200), (first, 400)):
        path = f"/api/v1/app-conversations/{one}/switch_acp_model"
        assert (await client.post(path, json={"model": "big"})).status == status
    assert told.body["agent_settings"]["acp_model"] == "big"

    await save(client, agent_settings_diff={"agent_kind": "openhands"})
    assert (await client.get(SETTINGS)).json()["agent_settings"] == usual


async def test_another_agent_needs_no_model(service: Service, fake_agent: FakeAgent) -> None:
    other = await service.make_client("ann", Role.MEMBER)
    await save(other, agent_settings_diff={"agent_kind": "acp"})
    told = fake_agent.find_conversation(await other.start_conversation())
    assert told is not None
    assert "ANTHROPIC_API_KEY" not in told.body["secrets"]
