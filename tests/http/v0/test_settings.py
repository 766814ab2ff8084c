"""Settings of the older generation, through the socket."""

import json
from typing import Any

import pytest

from agentsvc.accounts.keys import Role
from tests.docs.generate import render_settings
from tests.service import Client, Service

PATH = "/api/settings"

DEFAULTS: dict[str, Any] = {
    "language": None,
    "agent": None,
    "max_iterations": None,
    "security_analyzer": None,
    "confirmation_mode": None,
    "llm_model": None,
    "llm_api_key": None,
    "llm_base_url": None,
    "remote_runtime_resource_factor": None,
    "secrets_store": {"provider_tokens": {}},
    "enable_default_condenser": True,
    "enable_sound_notifications": False,
    "enable_proactive_conversation_starters": True,
    "enable_solvability_analysis": True,
    "user_consents_to_analytics": None,
    "sandbox_base_container_image": None,
    "sandbox_runtime_container_image": None,
    "mcp_config": None,
    "search_api_key": None,
    "sandbox_api_key": None,
    "max_budget_per_task": None,
    "condenser_max_size": None,
    "email": None,
    "email_verified": None,
    "git_user_name": None,
    "git_user_email": None,
    "v1_enabled": True,
    "provider_tokens_set": {},
    "llm_api_key_set": False,
    "search_api_key_set": False,
}

OTHERS: dict[str, Any] = {
    "language": "en",
    "agent": "CodeActAgent",
    "max_iterations": 20,
    "security_analyzer": "llm",
    "confirmation_mode": True,
    "llm_model": "openai/m",
    "llm_base_url": "http://llm.example/v1",
    "remote_runtime_resource_factor": 2,
    "enable_default_condenser": False,
    "enable_sound_notifications": True,
    "enable_proactive_conversation_starters": False,
    "enable_solvability_analysis": False,
    "user_consents_to_analytics": False,
    "sandbox_base_container_image": "base:1",
    "sandbox_runtime_container_image": "runtime:1",
    "max_budget_per_task": 2.5,
    "condenser_max_size": 50,
    "email": "al@example.com",
    "email_verified": True,
    "git_user_name": "Al",
    "git_user_email": "al@example.com",
    "v1_enabled": False,
}

SECRETS = {"llm_api_key": "sk-secret", "search_api_key": "tvly-secret", "sandbox_api_key": "sbk"}


@pytest.fixture
async def newcomer(service: Service) -> Client:
    """A client of a user who has not saved settings."""
    return await service.make_client()


async def store(client: Client, **fields: Any) -> None:
    answer = await client.post(PATH, json=fields)
    assert answer.status == 200, answer.text
    assert answer.json() == {"message": "Settings stored"}


async def read(client: Client) -> dict[str, Any]:
    answer = await client.get(PATH)
    assert answer.status == 200, answer.text
    settings: dict[str, Any] = answer.json()
    return settings


async def test_before_the_first_save_there_are_no_settings(newcomer: Client) -> None:
    answer = await newcomer.get(PATH)
    body = answer.json()
    assert answer.status == 404
    assert body.pop("request_id")
    assert body == {
        "detail": "Settings not found",
        "code": "not_found",
        "error": "Settings not found",
    }


async def test_an_empty_body_stores_the_defaults(newcomer: Client) -> None:
    await store(newcomer)
    assert await read(newcomer) == DEFAULTS


async def test_every_field_is_stored_and_returned(newcomer: Client) -> None:
    await store(newcomer, **OTHERS, **SECRETS)
    flags = {"llm_api_key_set": True, "search_api_key_set": True}
    assert await read(newcomer) == {**DEFAULTS, **OTHERS, **flags}


async def test_a_field_that_is_not_sent_stays(newcomer: Client) -> None:
    await store(newcomer, **OTHERS, **SECRETS)
    before = await read(newcomer)
    await store(newcomer, language="fr")
    assert await read(newcomer) == {**before, "language": "fr"}


async def test_null_puts_a_field_back_but_for_those_a_client_cannot_read(
    newcomer: Client,
) -> None:
    await store(newcomer, **OTHERS, **SECRETS)
    await store(newcomer, **dict.fromkeys((*OTHERS, *SECRETS)))
    kept = {name: OTHERS[name] for name in ("llm_model", "llm_base_url")}
    flags = {"llm_api_key_set": True, "search_api_key_set": True}
    assert await read(newcomer) == {**DEFAULTS, **kept, **flags}


async def test_an_empty_text_clears_a_secret(newcomer: Client) -> None:
    await store(newcomer, **SECRETS)
    await store(newcomer, llm_api_key="", search_api_key="")
    settings = await read(newcomer)
    assert (settings["llm_api_key_set"], settings["search_api_key_set"]) == (False, False)


NEWER: dict[str, Any] = {
    "git_full_clone": True,
    "disabled_skills": ["a"],
    "user_version": 3,
    "sandbox_grouping_strategy": "ADD_TO_ANY",
    "default_sandbox_spec_id": "s",
    "title_llm_profile": "p",
    "mcp_config": {"a": {"url": "http://a/mcp"}},
}


@pytest.mark.parametrize("path", [PATH, "/api/v1/settings"])
async def test_null_and_an_empty_text_do_to_each_setting_what_the_readme_says(
    newcomer: Client, path: str
) -> None:
    rows = [
        [cell.strip("` ") for cell in line.split("|")[1:-1]]
        for line in render_settings().splitlines()[2:]
    ]
    values = {**OTHERS, **SECRETS, **NEWER}
    if path == PATH:
        values = {**OTHERS, **SECRETS, "mcp_config": {"shttp_servers": ["http://a/mcp"]}}
    assert {row[0] for row in rows} >= set(values)
    answer = await newcomer.post(path, json=values)
    assert answer.status == 200, answer.text
    for name, default, null, empty in rows:
        if name not in values:
            continue
        # V1 is on where nothing else is said, and keys are not shown.
        shown = "llm_api_key_set" if name == "llm_api_key" else name
        shown = "search_api_key_set" if name == "search_api_key" else shown
        unset = {"v1_enabled": True, "llm_api_key_set": False, "search_api_key_set": False}
        unset = {name: json.loads(default)} | unset
        before = (await newcomer.get(path)).json()
        assert name == "sandbox_api_key" or before[shown] != unset[shown], name

        answer = await newcomer.post(path, json={name: ""})
        assert answer.status == (422 if empty == "refused" else 200), name
        after = (await newcomer.get(path)).json()
        assert after[shown] == (before[shown] if empty == "refused" else unset[shown]), name

        assert (await newcomer.post(path, json={name: values[name]})).status == 200
        assert (await newcomer.post(path, json={name: None})).status == 200
        after = (await newcomer.get(path)).json()
        assert after[shown] == (before[shown] if null == "stays" else unset[shown]), name


async def test_what_was_read_can_be_posted_back(newcomer: Client) -> None:
    servers = {
        "sse_servers": ["http://a.b/sse", {"url": "http://c/sse", "api_key": "k"}],
        "stdio_servers": [{"name": "f_1", "command": "npx", "args": '-y "a b"', "env": "A=1,B=2"}],
        "shttp_servers": [{"url": "http://h/mcp"}],
    }
    await store(newcomer, **OTHERS, **SECRETS, mcp_config=servers)
    before = await read(newcomer)
    await store(newcomer, **before)
    assert await read(newcomer) == before
    assert before["mcp_config"] == {
        "sse_servers": [
            {"url": "http://a.b/sse", "api_key": None},
            {"url": "http://c/sse", "api_key": "**********"},
        ],
        "stdio_servers": [
            {
                "name": "f_1",
                "command": "npx",
                "args": ["-y", "a b"],
                "env": {"A": "**********", "B": "**********"},
            }
        ],
        "shttp_servers": [{"url": "http://h/mcp", "api_key": None, "timeout": 60}],
    }


async def test_tokens_in_the_settings_are_kept_and_shown_by_their_host(newcomer: Client) -> None:
    tokens = {"github": {"token": "gh", "user_id": None, "host": None}, "gitlab": "gl"}
    await store(newcomer, secrets_store={"provider_tokens": tokens, "custom_secrets": {"X": "v"}})
    settings = await read(newcomer)
    assert settings["provider_tokens_set"] == {"github": None, "gitlab": None}
    assert settings["secrets_store"] == {"provider_tokens": {}}


async def test_no_secret_is_ever_returned(newcomer: Client) -> None:
    await store(
        newcomer,
        **SECRETS,
        mcp_config={"sse_servers": [{"url": "http://c/sse", "api_key": "mcp-secret"}]},
        secrets_store={"custom_secrets": {"X": {"secret": "custom-secret", "description": "d"}}},
    )
    text = (await newcomer.get(PATH)).text
    for secret in (*SECRETS.values(), "mcp-secret", "custom-secret"):
        assert secret not in text


async def test_unknown_fields_pass(newcomer: Client) -> None:
    await store(newcomer, bogus=1, llm_model="m")
    assert (await read(newcomer))["llm_model"] == "m"


async def test_each_user_has_their_own_settings(service: Service, newcomer: Client) -> None:
    await store(newcomer, llm_model="mine")
    other = await service.make_client("other", Role.MEMBER)
    assert (await other.get(PATH)).status == 404


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        ({"max_iterations": "many"}, ["body", "max_iterations"]),
        ({"max_iterations": 0}, ["body", "max_iterations"]),
        ({"max_iterations": 1.5}, ["body", "max_iterations"]),
        ({"max_iterations": 2**63}, None),
        ({"max_budget_per_task": 0}, ["body", "max_budget_per_task"]),
        ({"max_budget_per_task": -1}, ["body", "max_budget_per_task"]),
        ({"max_budget_per_task": 10**30}, None),
        ({"remote_runtime_resource_factor": 0}, ["body", "remote_runtime_resource_factor"]),
        ({"condenser_max_size": 5}, ["body", "condenser_max_size"]),
        ({"confirmation_mode": "yes"}, ["body", "confirmation_mode"]),
        ({"llm_api_key": 3}, ["body", "llm_api_key"]),
        ({"secrets_store": 3}, ["body", "secrets_store"]),
        (
            {"secrets_store": {"provider_tokens": {"svn": "x"}}},
            ["body", "secrets_store", "provider_tokens", "svn"],
        ),
        ({"mcp_config": {"bogus": []}}, ["body", "mcp_config", "bogus"]),
        (
            {"mcp_config": {"sse_servers": ["http://a.b/sse", {"url": "nope"}]}},
            ["body", "mcp_config", "sse_servers", 1, "url"],
        ),
        ([], ["body"]),
    ],
)
async def test_a_value_that_does_not_fit_is_named(
    newcomer: Client, body: Any, loc: list[str | int] | None
) -> None:
    answer = await newcomer.post(PATH, json=body)
    assert answer.status == 422, answer.text
    [problem] = answer.json()["detail"]
    assert loc is None or problem["loc"] == loc


async def test_a_refused_change_changes_nothing(newcomer: Client) -> None:
    await store(newcomer, language="en")
    assert (await newcomer.post(PATH, json={"language": "fr", "max_iterations": 0})).status == 422
    assert (await read(newcomer))["language"] == "en"


async def test_a_front_end_learns_where_it_is(client: Client) -> None:
    answer = await client.get("/api/options/config")
    assert answer.json() == {
        "APP_MODE": "oss",
        "GITHUB_CLIENT_ID": "",
        "POSTHOG_CLIENT_KEY": "",
        "FEATURE_FLAGS": {"ENABLE_BILLING": False, "HIDE_LLM_SETTINGS": False},
    }


@pytest.mark.parametrize("path", [PATH, "/api/conversations", "/api/options/config"])
async def test_nothing_answers_without_a_key(service: Service, path: str) -> None:
    stranger = await service.make_client(None)
    answer = await stranger.get(path)
    assert (answer.status, answer.json()["detail"]) == (401, "Unauthorized")
