"""How what the older generation's clients send becomes an order, a patch, a message or a range."""

import json
from typing import Any

import msgspec
import pytest

from agentsvc.base.errors import BadRequest, InvalidRequest
from agentsvc.base.values import Secret
from agentsvc.domain.orders import (
    Content,
    ContentKind,
    Message,
    Provider,
    StartOrder,
    TaskType,
    Trigger,
)
from agentsvc.http.v0.conversations import StartBody, to_order
from agentsvc.http.v0.settings import SettingsBody, from_settings, to_patch
from agentsvc.http.v0.transcripts import select
from agentsvc.http.v0.user_actions import ActionBody, to_user_action
from agentsvc.http.wire import decode
from agentsvc.settings.fields import Settings, SettingsPatch
from agentsvc.settings.store import merge

TASK = {
    "git_provider": "gitlab",
    "task_type": "OPEN_ISSUE",
    "repo": "a/b",
    "issue_number": 7,
    "title": "Broken",
}


def order(**members: Any) -> StartOrder:
    return to_order(decode(json.dumps(members).encode(), StartBody))


def patch(**members: Any) -> SettingsPatch:
    return to_patch(decode(json.dumps(members).encode(), SettingsBody))


def test_an_empty_body_is_an_order_that_waits_for_input() -> None:
    assert order() == StartOrder(trigger=Trigger.GUI, settings_required=True)


def test_every_field_null_is_the_same_as_none_sent() -> None:
    names = [
        "repository",
        "git_provider",
        "selected_branch",
        "initial_user_msg",
        "image_urls",
        "replay_json",
        "suggested_task",
        "create_microagent",
        "conversation_instructions",
        "mcp_config",
    ]
    assert order(**dict.fromkeys(names)) == order()


def test_text_and_images_are_one_message() -> None:
    message = order(initial_user_msg="look", image_urls=["data:a", "https://b"]).initial_message
    assert message is not None
    assert message.content == (
        Content(kind=ContentKind.TEXT, text="look"),
        Content(kind=ContentKind.IMAGE, image_urls=("data:a", "https://b")),
    )


def test_the_source_is_kept() -> None:
    made = order(repository="a/b", git_provider="gitlab", selected_branch="dev")
    assert (made.repository, made.provider, made.branch) == ("a/b", Provider.GITLAB, "dev")


def test_a_repository_may_be_a_url() -> None:
    assert order(repository="https://git.example/a/b").repository == "https://git.example/a/b"


def test_a_suggested_task_goes_before_the_first_message() -> None:
    made = order(suggested_task=TASK, initial_user_msg="hi")
    assert made.initial_message is None
    assert made.trigger is Trigger.SUGGESTED_TASK
    assert made.suggested_task is not None
    assert made.suggested_task.task_type is TaskType.OPEN_ISSUE
    assert made.suggested_task.provider == "gitlab"


def test_a_skill_to_write_names_the_repository_unless_one_is_given() -> None:
    asked = {"repo": "c/d", "git_provider": "github", "title": "t"}
    made = order(create_microagent=asked)
    assert (made.repository, made.provider) == ("c/d", Provider.GITHUB)
    assert made.trigger is Trigger.MICROAGENT_MANAGEMENT
    assert order(create_microagent=asked, repository="a/b").repository == "a/b"


def test_instructions_follow_the_system_prompt() -> None:
    assert order(conversation_instructions="be nice").system_message_suffix == "be nice"


def test_tool_servers_of_a_conversation_are_read() -> None:
    config = order(mcp_config={"sse_servers": ["http://a.b/sse"]}).mcp_config
    assert config is not None
    assert config.sse_servers[0].url == "http://a.b/sse"


@pytest.mark.parametrize(
    ("given", "conversation_id", "alias"),
    [
        ("6f1c9b0e-6f0e-4b52-9c56-6a8a0b0f3a11", "6f1c9b0e6f0e4b529c566a8a0b0f3a11", None),
        ("6f1c9b0e6f0e4b529c566a8a0b0f3a11", "6f1c9b0e6f0e4b529c566a8a0b0f3a11", None),
        ("my-conv_1", None, "my-conv_1"),
    ],
)
def test_an_id_that_is_no_uuid_is_the_clients_own_name(
    given: str, conversation_id: str | None, alias: str | None
) -> None:
    made = order(conversation_id=given)
    assert (made.conversation_id, made.alias) == (conversation_id, alias)


@pytest.mark.parametrize(
    ("members", "loc", "kind"),
    [
        ({"bogus": 1}, ("body", "bogus"), "extra_forbidden"),
        ({"git_provider": "svn"}, ("body", "git_provider"), "enum"),
        ({"suggested_task": {}}, ("body", "suggested_task", "git_provider"), "missing"),
        ({"mcp_config": {"bogus": []}}, ("body", "mcp_config", "bogus"), "extra_forbidden"),
        ({"mcp_config": {"sse_servers": ["nope"]}}, None, "value_error"),
        ({"initial_user_msg": 3}, ("body", "initial_user_msg"), "string_type"),
        (
            {"image_urls": ["file:///etc/passwd"]},
            ("body", "image_urls", 0),
            "string_pattern_mismatch",
        ),
        ({"conversation_id": "../bad"}, ("body", "conversation_id"), "string_pattern_mismatch"),
        ({"conversation_id": ""}, ("body", "conversation_id"), "string_pattern_mismatch"),
        ({"conversation_id": "a" * 101}, ("body", "conversation_id"), "string_pattern_mismatch"),
        ({"conversation_id": "name\n"}, ("body", "conversation_id"), "string_pattern_mismatch"),
        ({"repository": "--upload-pack=x"}, ("body", "repository"), "value_error"),
        ({"repository": "ext::sh -c x"}, ("body", "repository"), "value_error"),
        ({"repository": "file:///etc"}, ("body", "repository"), "value_error"),
        ({"selected_branch": "-x"}, ("body", "selected_branch"), "value_error"),
        ({"suggested_task": {**TASK, "issue_number": 2**63}}, None, None),
    ],
)
def test_what_does_not_fit_is_named_where_it_is(
    members: dict[str, Any], loc: tuple[str | int, ...] | None, kind: str | None
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        order(**members)
    assert loc is None or caught.value.loc == loc
    assert kind is None or caught.value.kind == kind


def test_an_empty_replay_is_none() -> None:
    assert order(replay_json="") == order()


def test_settings_that_are_not_sent_change_nothing() -> None:
    assert patch() == SettingsPatch()


def test_settings_are_read_with_their_nested_parts() -> None:
    made = patch(
        llm_api_key="sk-x",
        max_iterations=20,
        max_budget_per_task=3,
        mcp_config={
            "sse_servers": ["http://a.b/sse", {"url": "http://c/sse", "api_key": "k"}],
            "stdio_servers": [{"name": "f", "command": "npx", "args": '-y "a b"', "env": "A=1"}],
        },
        secrets_store={
            "provider_tokens": {"github": {"token": "gh", "host": "git.example.com"}},
            "custom_secrets": {"X": {"secret": "v", "description": "d"}, "Y": "w"},
        },
    )
    settings = merge(Settings(), made)
    assert settings.llm_api_key == Secret("sk-x")
    assert settings.max_budget_per_task == 3.0
    assert settings.mcp_config is not None
    assert settings.mcp_config.stdio_servers[0].args == ("-y", "a b")
    store = made.secrets_store
    assert not isinstance(store, msgspec.UnsetType)
    assert store.provider_tokens[Provider.GITHUB].token == Secret("gh")
    assert store.custom_secrets["Y"].value == Secret("w")


def test_settings_that_are_read_and_posted_back_change_nothing() -> None:
    settings = merge(
        Settings(),
        patch(
            llm_model="openai/m",
            llm_api_key="sk-x",
            mcp_config={"shttp_servers": [{"url": "http://h/mcp", "api_key": "k"}]},
        ),
    )
    shown = from_settings(settings, {"github": None})
    posted = merge(settings, patch(**shown))
    assert from_settings(posted, {"github": None}) == shown
    # What is not set is shown as what it means, and may be set to that.
    assert posted == msgspec.structs.replace(settings, v1_enabled=True)


def test_settings_show_whether_secrets_are_set_and_never_the_secrets() -> None:
    shown = from_settings(merge(Settings(), patch(llm_api_key="sk-x")), {"gitlab": "git.example"})
    assert shown["llm_api_key"] is None
    assert (shown["llm_api_key_set"], shown["search_api_key_set"]) == (True, False)
    assert shown["provider_tokens_set"] == {"gitlab": "git.example"}
    assert shown["secrets_store"] == {"provider_tokens": {}}


@pytest.mark.parametrize(
    ("wanted", "numbers", "has_more"),
    [
        ((0, None, False, 20), [0, 1, 2, 3, 4], False),
        ((0, None, False, 2), [0, 1], True),
        ((0, None, False, 0), [], True),
        ((3, None, False, 20), [3, 4], False),
        ((1, 3, False, 2), [1, 2], True),
        ((1, 3, True, 2), [3, 2], True),
        ((0, None, True, 2), [4, 3], True),
        ((0, 1, True, 20), [1, 0], False),
        ((-5, 99, False, 20), [0, 1, 2, 3, 4], False),
        ((5, None, False, 20), [], False),
        ((3, 1, False, 20), [], False),
        ((0, -1, False, 20), [], False),
        ((9, None, False, 0), [], False),
    ],
)
def test_a_range_has_both_its_ends(
    wanted: tuple[int, int | None, bool, int], numbers: list[int], has_more: bool
) -> None:
    events = [str(number).encode() for number in range(5)]
    first, last, reverse, limit = wanted
    taken, more = select(events, first, last, reverse=reverse, limit=limit)
    assert [int(event) for event in taken] == numbers
    assert more is has_more


def test_a_message_action_is_read_with_its_images() -> None:
    message = to_user_action(
        ActionBody(action="message", args={"content": "x", "image_urls": ["data:y"], "extra": 1})
    )
    assert isinstance(message, Message)
    assert [part.kind for part in message.content] == [ContentKind.TEXT, ContentKind.IMAGE]


@pytest.mark.parametrize(
    "body",
    [
        ActionBody(),
        ActionBody(action="run", args={"command": "ls"}),
        ActionBody(action="message"),
        ActionBody(action="message", args={"content": 3}),
        ActionBody(action="message", args={"content": ""}),
    ],
)
def test_an_action_that_says_nothing_is_refused(body: ActionBody) -> None:
    with pytest.raises(BadRequest):
        to_user_action(body)
