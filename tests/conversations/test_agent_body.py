from typing import Any

import msgspec
import pytest

from agentsvc.base.errors import BadRequest
from agentsvc.base.values import Secret
from agentsvc.conversations.secret_lookup import SecretLookup
from agentsvc.conversations.starting.agent_request import (
    AgentInputs,
    make_agent_body,
    require_model,
)
from agentsvc.conversations.starting.prompts import first_message
from agentsvc.domain.agent_options import (
    AgentOptions,
    CondenserOptions,
    ContextOptions,
    LlmOptions,
    Tool,
    VerificationOptions,
)
from agentsvc.domain.mcp import McpConfig, SseServer
from agentsvc.domain.orders import (
    AgentType,
    Content,
    ContentKind,
    Message,
    Provider,
    StartOrder,
    SuggestedTask,
    TaskType,
)
from agentsvc.settings.fields import Settings

CONVERSATION = "0f" * 16
USABLE = ["terminal", "file_editor", "task_tracker", "task_tool_set", "glob", "grep"]
HELLO = Message(content=(Content(kind=ContentKind.TEXT, text="hello"),))


def body(order: StartOrder | None = None, **settings: Any) -> dict[str, Any]:
    chosen = Settings(**{"llm_model": "openai/gpt", "llm_api_key": Secret("key-1"), **settings})
    inputs = AgentInputs(
        conversation_id=CONVERSATION,
        order=order or StartOrder(),
        settings=chosen,
        working_dir="/srv/project",
        first_message=HELLO,
        lookups={
            "DEPLOY_KEY": SecretLookup(
                url="http://here/secrets/DEPLOY_KEY",
                header="X-Session-API-Key",
                key=Secret("session-1"),
                description="for releases",
            )
        },
        usable_tools=USABLE,
        has_public_skills=False,
        hook_config=None,
    )
    return make_agent_body(inputs)


def test_model_key_and_url_reach_the_agent_and_the_condenser() -> None:
    agent = body(llm_base_url="http://models/v1")["agent"]
    assert agent["llm"] == {
        "model": "openai/gpt",
        "api_key": "key-1",
        "base_url": "http://models/v1",
        "usage_id": "agent",
        "stream": True,
    }
    assert agent["condenser"]["llm"]["usage_id"] == "condenser"
    assert agent["condenser"]["llm"]["stream"] is False
    assert agent["condenser"]["max_size"] == 240


def test_the_condenser_follows_the_settings() -> None:
    assert body(enable_default_condenser=False)["agent"]["condenser"] is None
    assert body(condenser_max_size=33)["agent"]["condenser"]["max_size"] == 33


@pytest.mark.parametrize(
    ("mode", "analyzer", "policy", "rater"),
    [
        (None, None, "NeverConfirm", None),
        (False, "llm", "NeverConfirm", "LLMSecurityAnalyzer"),
        (True, "llm", "ConfirmRisky", "LLMSecurityAnalyzer"),
        (True, None, "AlwaysConfirm", None),
        (True, "invariant", "AlwaysConfirm", None),
    ],
)
def test_confirmation_follows_mode_and_analyzer(
    *, mode: bool | None, analyzer: str | None, policy: str, rater: str | None
) -> None:
    made = body(confirmation_mode=mode, security_analyzer=analyzer)
    assert made["confirmation_policy"]["kind"] == policy
    assert (made["security_analyzer"] or {}).get("kind") == rater


def test_the_iteration_limit_follows_the_settings() -> None:
    assert body()["max_iterations"] == 500
    assert body(max_iterations=7)["max_iterations"] == 7


def test_a_model_of_the_request_wins_over_the_settings() -> None:
    assert body(StartOrder(llm_model="openai/other"))["agent"]["llm"]["model"] == "openai/other"


def told_to_other_agent(server: str, model: str) -> dict[str, str]:
    """Return the variables that another agent gets beside the secrets of its user."""
    options = AgentOptions(agent_kind="acp", acp_server=server)  # type: ignore[arg-type]
    made = body(agent_options=options, llm_model=model, llm_base_url="http://models/v1")
    return {name: one["value"] for name, one in made["secrets"].items() if "value" in one}


def test_other_agents_are_told_the_model_in_their_own_way() -> None:
    plain = {"OPENAI_API_KEY": "key-1", "OPENAI_BASE_URL": "http://models/v1"}
    assert told_to_other_agent("custom", "openai/vendor/one") == plain
    assert told_to_other_agent("gemini-cli", "openai/vendor/one") == {}
    for server, variable, model in (
        ("codex", "CODEX_CONFIG", "vendor/one"),
        ("opencode", "OPENCODE_CONFIG_CONTENT", "agentsvc/vendor/one"),
    ):
        told = told_to_other_agent(server, "openai/vendor/one")
        written = msgspec.json.decode(told.pop(variable))
        assert told == plain
        assert written["model"] == model
        assert "http://models/v1" in str(written)
        assert "key-1" not in str(written)


def test_another_agent_does_not_show_a_providers_key_to_another_provider() -> None:
    for server in ("codex", "custom", "opencode"):
        assert told_to_other_agent(server, "anthropic/claude-sonnet-4-5") == {}


def test_no_model_at_all_is_refused_with_the_remedy() -> None:
    with pytest.raises(BadRequest, match="llm_model"):
        require_model(StartOrder(), Settings())


def test_a_local_model_without_a_key_gets_some_key() -> None:
    made = body(llm_api_key=None, llm_base_url="http://models/v1")
    assert made["agent"]["llm"]["api_key"] == "none"
    assert body(llm_api_key=None)["agent"]["llm"]["api_key"] is None


def test_stored_secrets_are_looked_up_and_given_ones_are_handed_over() -> None:
    secrets = body(StartOrder(secrets={"TOKEN": Secret("t-1")}))["secrets"]
    assert secrets["DEPLOY_KEY"]["kind"] == "LookupSecret"
    assert secrets["DEPLOY_KEY"]["url"] == "http://here/secrets/DEPLOY_KEY"
    assert secrets["DEPLOY_KEY"]["headers"] == {"X-Session-API-Key": "session-1"}
    assert secrets["TOKEN"] == {"kind": "StaticSecret", "value": "t-1", "description": None}


def test_only_tools_that_the_agent_server_offers_are_given() -> None:
    names = [tool["name"] for tool in body()["agent"]["tools"]]
    assert names == ["terminal", "file_editor", "task_tracker"]


def test_a_planner_reads_and_is_told_its_role() -> None:
    agent = body(StartOrder(agent_type=AgentType.PLAN, system_message_suffix="Be brief."))["agent"]
    assert [tool["name"] for tool in agent["tools"]] == ["glob", "grep"]
    suffix = agent["agent_context"]["system_message_suffix"]
    assert suffix.startswith("Be brief.")
    assert "PLAN.md" in suffix


def test_tool_servers_of_the_request_replace_those_of_the_settings() -> None:
    mine = McpConfig(sse_servers=(SseServer(url="http://mine/sse", api_key=Secret("m")),))
    other = McpConfig(sse_servers=(SseServer(url="http://other/sse"),))
    servers = body(StartOrder(mcp_config=other), mcp_config=mine)["agent"]["mcp_config"]
    assert [server["url"] for server in servers.values()] == ["http://other/sse"]
    servers = body(mcp_config=mine)["agent"]["mcp_config"]
    assert servers["sse_0"]["headers"] == {"Authorization": "Bearer m"}


def test_a_search_key_brings_a_search_server() -> None:
    servers = body(search_api_key=Secret("tvly-1"))["agent"]["mcp_config"]
    assert servers["tavily"]["headers"] == {"Authorization": "Bearer tvly-1"}
    assert body(search_api_key=Secret("other"))["agent"]["mcp_config"] == {}


def test_disabled_skills_are_named_to_the_agent() -> None:
    context = body(disabled_skills=("deploy",))["agent"]["agent_context"]
    assert context["disabled_skills"] == ["deploy"]


def test_images_go_along_with_the_text() -> None:
    image = Content(kind=ContentKind.IMAGE, image_urls=("data:image/png;base64,AA",))
    message = msgspec.structs.replace(HELLO, content=(*HELLO.content, image))
    inputs = AgentInputs(
        conversation_id=CONVERSATION,
        order=StartOrder(),
        settings=Settings(llm_model="m"),
        working_dir="/w",
        first_message=message,
        lookups={},
        usable_tools=None,
        has_public_skills=False,
        hook_config={"stop": []},
    )
    made = make_agent_body(inputs)
    assert [item["type"] for item in made["initial_message"]["content"]] == ["text", "image"]
    assert made["hook_config"] == {"stop": []}
    assert made["conversation_id"] == "0f0f0f0f-0f0f-0f0f-0f0f-0f0f0f0f0f0f"


def suggested(kind: TaskType) -> SuggestedTask:
    return SuggestedTask(
        provider=Provider.GITHUB,
        task_type=kind,
        repo="o/r",
        issue_number=7,
        title="Crash on start",
    )


@pytest.mark.parametrize(
    "kind",
    [kind for kind in TaskType if kind not in (TaskType.OPEN_PR, TaskType.CREATE_MICROAGENT)],
)
def test_a_suggested_task_becomes_the_first_message(kind: TaskType) -> None:
    message = first_message(StartOrder(suggested_task=suggested(kind)))
    assert message is not None
    text = message.content[0].text
    assert "o/r" in text
    assert "#7" in text
    assert "Crash on start" in text


def test_a_suggested_task_beside_a_message_is_refused() -> None:
    with pytest.raises(BadRequest, match="together"):
        first_message(
            StartOrder(initial_message=HELLO, suggested_task=suggested(TaskType.OPEN_ISSUE))
        )


def test_a_suggested_task_without_a_text_is_refused() -> None:
    with pytest.raises(BadRequest, match="CREATE_MICROAGENT"):
        first_message(StartOrder(suggested_task=suggested(TaskType.CREATE_MICROAGENT)))


# What only the newer generation's settings can say


def test_options_of_the_model_reach_the_agent_and_the_condenser() -> None:
    options = LlmOptions(
        temperature=0.2, max_output_tokens=4096, extra_headers={"X-Team": Secret("team-1")}
    )
    agent = body(llm_options=options)["agent"]
    for llm in (agent["llm"], agent["condenser"]["llm"]):
        assert llm["temperature"] == 0.2
        assert llm["max_output_tokens"] == 4096
        assert llm["extra_headers"] == {"X-Team": "team-1"}
        assert "top_p" not in llm


def test_no_option_overrides_what_makes_the_model_the_one_chosen() -> None:
    order = StartOrder(llm_model="openai/other")
    llm = body(order, llm_options=LlmOptions(temperature=1.0))["agent"]["llm"]
    assert (llm["model"], llm["temperature"]) == ("openai/other", 1.0)


def test_the_condenser_is_tuned() -> None:
    options = AgentOptions(condenser=CondenserOptions(keep_first=5, max_tokens=1000))
    condenser = body(agent_options=options)["agent"]["condenser"]
    assert (condenser["keep_first"], condenser["max_tokens"]) == (5, 1000)
    assert "condenser_kind" not in condenser


def test_a_condenser_that_does_nothing_is_none() -> None:
    options = AgentOptions(condenser=CondenserOptions(condenser_kind="no_op"))
    assert body(agent_options=options)["agent"]["condenser"] is None


@pytest.mark.parametrize(
    ("options", "tools"),
    [
        (AgentOptions(), ["terminal", "file_editor", "task_tracker"]),
        (AgentOptions(tools=[Tool(name="glob"), Tool(name="absent")]), ["glob"]),
        (AgentOptions(tools=[]), []),
    ],
)
def test_tools_are_those_of_the_settings_that_are_there(
    options: AgentOptions, tools: list[str]
) -> None:
    agent = body(agent_options=options)["agent"]
    assert [tool["name"] for tool in agent["tools"]] == tools


def test_sub_agents_are_a_tool() -> None:
    agent = body(agent_options=AgentOptions(enable_sub_agents=True))["agent"]
    assert [tool["name"] for tool in agent["tools"]][-1] == "task_tool_set"


def test_a_planner_keeps_its_tools() -> None:
    order = StartOrder(agent_type=AgentType.PLAN)
    agent = body(order, agent_options=AgentOptions(tools=[Tool(name="terminal")]))["agent"]
    assert [tool["name"] for tool in agent["tools"]] == ["glob", "grep"]


@pytest.mark.parametrize(
    ("given", "critic"),
    [
        (VerificationOptions(), None),
        (VerificationOptions(critic_threshold=0.5), None),
        (
            VerificationOptions(critic_enabled=True),
            {
                "kind": "APIBasedCritic",
                "api_key": "key-1",
                "mode": "finish_and_message",
                "iterative_refinement": None,
            },
        ),
        (
            VerificationOptions(
                critic_enabled=True,
                critic_mode="all_actions",
                critic_api_key=Secret("critic-1"),
                critic_server_url="http://critic",
                enable_iterative_refinement=True,
                critic_threshold=0.0,
            ),
            {
                "kind": "APIBasedCritic",
                "api_key": "critic-1",
                "mode": "all_actions",
                "server_url": "http://critic",
                "iterative_refinement": {"success_threshold": 0.0, "max_iterations": 3},
            },
        ),
    ],
)
def test_the_critic_follows_the_settings(
    given: VerificationOptions, critic: dict[str, Any] | None
) -> None:
    assert body(agent_options=AgentOptions(verification=given))["agent"].get("critic") == critic


def test_a_critic_without_any_key_is_none() -> None:
    options = AgentOptions(verification=VerificationOptions(critic_enabled=True))
    assert "critic" not in body(llm_api_key=None, agent_options=options)["agent"]


def test_what_the_agent_is_told_comes_from_settings_and_order() -> None:
    context = ContextOptions(
        system_message_suffix="always", user_message_suffix="briefly", load_user_skills=False
    )
    options = AgentOptions(agent_context=context, persona="A pirate", tool_concurrency_limit=3)
    agent = body(StartOrder(system_message_suffix="today"), agent_options=options)["agent"]
    assert agent["agent_context"]["system_message_suffix"] == "always\n\ntoday"
    assert agent["agent_context"]["user_message_suffix"] == "briefly"
    assert agent["agent_context"]["load_user_skills"] is False
    assert agent["agent_context"]["load_project_skills"] is True
    assert (agent["persona"], agent["tool_concurrency_limit"]) == ("A pirate", 3)


def test_a_user_cannot_load_public_skills_that_the_operator_does_not_allow() -> None:
    options = AgentOptions(agent_context=ContextOptions(load_public_skills=True))
    assert body(agent_options=options)["agent"]["agent_context"]["load_public_skills"] is False
