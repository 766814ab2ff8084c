"""What V1 makes of settings and back, for every record: nothing is lost on the way."""

import json
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from agentsvc.base.values import MASK, Secret
from agentsvc.domain.agent_options import (
    AgentOptions,
    CondenserOptions,
    ContextOptions,
    Llm,
    LlmOptions,
    Tool,
    VerificationOptions,
)
from agentsvc.http.v1.settings import SettingsBody, from_settings, to_change
from agentsvc.settings.fields import Settings
from tests.settings.test_settings import for_every, secrets, settings_records, words

amounts = st.floats(0, 1e9).map(lambda value: round(value, 3))
parts = st.floats(0.001, 0.999).map(lambda value: round(value, 3))
counts = st.integers(1, 1000)
texts = words.filter(lambda word: word != MASK)
bodies = st.dictionaries(texts, st.recursive(counts | texts, lambda inner: st.dictionaries(texts, inner, max_size=2)), max_size=3)  # fmt: skip


def maybe[T](values: st.SearchStrategy[T]) -> st.SearchStrategy[T | None]:
    return st.none() | values


llm_options = st.builds(
    LlmOptions,
    temperature=maybe(amounts),
    top_p=maybe(parts),
    num_retries=maybe(counts),
    timeout=maybe(counts),
    aws_access_key_id=maybe(secrets),
    aws_region_name=maybe(texts),
    extra_headers=maybe(st.dictionaries(texts, secrets, max_size=3)),
    litellm_extra_body=maybe(bodies),
    capability_overrides=maybe(st.dictionaries(texts, st.booleans() | texts, max_size=2)),
    api_mode=maybe(st.sampled_from(["auto", "chat", "responses"])),
    drop_params=maybe(st.booleans()),
    reasoning_effort=maybe(st.sampled_from(["low", "high"])),
)
agent_options = st.builds(
    AgentOptions,
    tools=maybe(st.lists(st.builds(Tool, name=texts.filter(bool), params=bodies), max_size=3)),
    enable_sub_agents=maybe(st.booleans()),
    tool_concurrency_limit=maybe(counts),
    persona=maybe(texts.filter(bool)),
    agent_context=st.builds(
        ContextOptions, system_message_suffix=maybe(texts), load_user_skills=maybe(st.booleans())
    ),
    condenser=st.builds(
        CondenserOptions,
        condenser_kind=maybe(st.sampled_from(["llm_summarizing", "no_op"])),
        keep_first=maybe(counts),
        minimum_progress=maybe(parts),
    ),
    verification=st.builds(
        VerificationOptions,
        critic_enabled=maybe(st.booleans()),
        critic_threshold=maybe(parts),
        critic_api_key=maybe(secrets),
        critic_server_url=maybe(texts),
    ),
)
models = st.builds(Llm, model=maybe(texts), api_key=maybe(secrets), options=llm_options)
profiles = st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), models, max_size=2)


@st.composite
def records(draw: st.DrawFn) -> Settings:
    return msgspec.structs.replace(
        draw(settings_records),
        llm_options=draw(llm_options),
        agent_options=draw(agent_options),
        llm_profiles=draw(profiles),
    )


def shown(settings: Settings) -> dict[str, Any]:
    """Return what a client reads, through JSON."""
    read: dict[str, Any] = json.loads(msgspec.json.encode(from_settings(settings, {})))
    return read


def as_posted(read: dict[str, Any]) -> dict[str, Any]:
    """Return what was read as a client posts it back: the nested objects as parts."""
    body = dict(read)
    for name in ("agent_settings", "conversation_settings"):
        body[f"{name}_diff"] = body.pop(name)
    return body


def changed(settings: Settings, body: dict[str, Any]) -> Settings:
    return to_change(msgspec.json.decode(json.dumps(body), type=SettingsBody))(settings)


@for_every
@given(records())
def test_posting_back_what_was_read_changes_nothing_that_can_be_read(settings: Settings) -> None:
    read = shown(settings)
    after = changed(settings, as_posted(read))
    assert shown(after) == read
    assert after.llm_options == settings.llm_options
    assert after.agent_options == settings.agent_options
    assert after.llm_profiles == settings.llm_profiles


@for_every
@given(records())
def test_posting_back_the_nested_objects_alone_changes_nothing_at_all(settings: Settings) -> None:
    body = as_posted(shown(settings))
    parts_only = {name: value for name, value in body.items() if name.endswith("_diff")}
    after = changed(settings, parts_only)
    assert msgspec.structs.replace(after, mcp_config=settings.mcp_config) == settings


@for_every
@given(records())
def test_no_secret_is_ever_shown(settings: Settings) -> None:
    marked = Secret("never-shown")
    marked_options = LlmOptions(
        aws_access_key_id=marked, aws_session_token=marked, extra_headers={"A": marked}
    )
    with_secrets = msgspec.structs.replace(
        settings,
        llm_api_key=marked,
        llm_options=marked_options,
        llm_profiles={"p": Llm(model="m", api_key=marked, options=marked_options)},
        agent_options=AgentOptions(verification=VerificationOptions(critic_api_key=marked)),
    )
    assert "never-shown" not in json.dumps(shown(with_secrets))
    assert "never-shown" not in repr(with_secrets)
