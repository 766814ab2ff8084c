"""The schema of settings, which pages are made of."""

from typing import Any

from agentsvc.domain.agent_options import (
    AcpOptions,
    AgentOptions,
    CondenserOptions,
    ContextOptions,
    LlmOptions,
    VerificationOptions,
)
from tests.http.v1.test_settings import read, save
from tests.service import Client

SETTINGS = "/api/v1/settings"


def field_names(*kinds: Any) -> set[str]:
    return {name for kind in kinds for name in kind.__struct_fields__}


async def test_the_agent_schema_has_every_setting_that_has_an_effect(client: Client) -> None:
    schema = (await client.get(f"{SETTINGS}/agent-schema")).json()
    fields = [field for section in schema["sections"] for field in section["fields"]]
    described = {field["key"].rpartition(".")[2] for field in fields}
    settable = field_names(
        LlmOptions, AgentOptions, CondenserOptions, VerificationOptions, ContextOptions
    )
    parts = {"agent_context", "condenser", "verification"}
    of_other_agents = field_names(AcpOptions) | {"agent_kind"}
    without_effect = {"enable_switch_llm_tool", "safety_settings", "load_public_skills"}
    assert settable - parts - of_other_agents - without_effect <= described
    assert schema["model_name"] == "AgentSettings"
    assert all(field["section_label"] for field in fields)


async def test_the_defaults_of_the_schema_are_what_settings_show(newcomer: Client) -> None:
    await save(newcomer)
    settings = await read(newcomer)
    for path, part in (
        ("agent-schema", settings["agent_settings"]),
        ("conversation-schema", settings["conversation_settings"]),
    ):
        schema = (await newcomer.get(f"{SETTINGS}/{path}")).json()
        for section in schema["sections"]:
            for field in section["fields"]:
                value = part
                for step in field["key"].split("."):
                    value = value[step]
                assert value == field["default"], field["key"]


async def test_secrets_and_choices_are_marked(client: Client) -> None:
    schema = (await client.get(f"{SETTINGS}/agent-schema")).json()
    fields = {f["key"]: f for section in schema["sections"] for f in section["fields"]}
    assert {key for key, field in fields.items() if field["secret"]} == {
        "llm.api_key",
        "llm.aws_access_key_id",
        "llm.aws_secret_access_key",
        "llm.aws_session_token",
        "verification.critic_api_key",
    }
    assert [one["value"] for one in fields["llm.api_mode"]["choices"]] == [
        "auto",
        "chat",
        "responses",
    ]
    assert all(need in fields for field in fields.values() for need in field["depends_on"])
