import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from msgspec import UNSET

from agentsvc.accounts.keys import KeyRing, Role
from agentsvc.base.errors import InvalidRequest
from agentsvc.base.values import MASK, MAX_INT, Secret, now, to_stored
from agentsvc.domain.agent_options import Llm, LlmOptions
from agentsvc.domain.mcp import McpConfig, ShttpServer, SseServer, StdioServer, read_mcp_config
from agentsvc.domain.secret_json import encode_revealed
from agentsvc.settings.fields import (
    AGENTS,
    FLAT_FIELDS,
    KEPT_ON_NULL,
    SECRET_FIELDS,
    SECURITY_ANALYZERS,
    GroupingStrategy,
    Settings,
    SettingsPatch,
)
from agentsvc.settings.profiles import delete_profile, save_profile
from agentsvc.settings.store import SettingsStore, check_patch, merge, show_settings
from agentsvc.settings.user_secrets import read_secrets
from agentsvc.storage.database import Database
from agentsvc.storage.vault import Vault


def to_patch(given: dict[str, Any]) -> SettingsPatch:
    return SettingsPatch(**given)


# Values a record may have

words = st.text(st.characters(exclude_categories=["C"]), max_size=12)
secrets = st.builds(Secret, words.filter(lambda word: word not in ("", MASK)))
urls = st.from_regex(
    r"(https?|wss?)://[a-z]{1,8}(:[1-9][0-9]{0,3})?(/[a-z?=&]{0,8})?", fullmatch=True
)
variables = st.from_regex(r"[A-Z_][A-Z0-9_]{0,5}", fullmatch=True)
sse_servers = st.builds(SseServer, url=urls, api_key=st.none() | secrets)
shttp_servers = st.builds(
    ShttpServer, url=urls, api_key=st.none() | secrets, timeout_seconds=st.integers(1, 3600)
)
stdio_servers = st.builds(
    StdioServer,
    name=st.from_regex(r"[A-Za-z0-9_-]{1,8}", fullmatch=True),
    command=st.from_regex(r"[a-z/]{1,8}", fullmatch=True),
    args=st.lists(words, max_size=3).map(tuple),
    env=st.dictionaries(variables, secrets, max_size=3),
)
mcp_configs = st.builds(
    McpConfig,
    sse_servers=st.lists(sse_servers, max_size=3, unique_by=lambda s: s.url).map(tuple),
    stdio_servers=st.lists(stdio_servers, max_size=3, unique_by=lambda s: s.name).map(tuple),
    shttp_servers=st.lists(shttp_servers, max_size=3, unique_by=lambda s: s.url).map(tuple),
)
BY_FIELD: dict[str, st.SearchStrategy[Any]] = {
    "max_iterations": st.integers(1, MAX_INT),
    "remote_runtime_resource_factor": st.integers(1, MAX_INT),
    "condenser_max_size": st.integers(20, MAX_INT),
    "user_version": st.integers(0, MAX_INT),
    "sandbox_grouping_strategy": st.sampled_from(GroupingStrategy),
    "max_budget_per_task": st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    "disabled_skills": st.lists(words, max_size=3).map(tuple),
    "mcp_config": mcp_configs,
    **dict.fromkeys(SECRET_FIELDS, secrets),
    "llm_model": words.filter(bool),
    "llm_base_url": urls.filter(lambda url: url.startswith("http")),
    "agent": st.sampled_from(AGENTS),
    "security_analyzer": st.sampled_from(SECURITY_ANALYZERS),
}
PLAIN = {name for name, value in msgspec.structs.asdict(Settings()).items() if value is not None}
FIELDS = FLAT_FIELDS


def values_of(field: msgspec.structs.FieldInfo) -> st.SearchStrategy[Any]:
    if field.name in BY_FIELD:
        return BY_FIELD[field.name]
    return st.booleans() if field.type in (bool, bool | None) else words


fields_with_values = {
    field.name: values_of(field)
    for field in msgspec.structs.fields(Settings)
    if field.name in FIELDS
}
settings_records = st.builds(
    Settings,
    **{
        name: value if name in PLAIN else st.none() | value
        for name, value in fields_with_values.items()
    },
)
patches_without_stars = st.fixed_dictionaries(
    {}, optional={name: st.none() | value for name, value in fields_with_values.items()}
).map(to_patch)


def patch_of(body: dict[str, Any]) -> SettingsPatch:
    given = dict(body)
    for name in SECRET_FIELDS & given.keys():
        given[name] = None if given[name] is None else Secret(given[name])
    if given.get("mcp_config") is not None:
        given["mcp_config"] = read_mcp_config(given["mcp_config"])
    if given.get("disabled_skills") is not None:
        given["disabled_skills"] = tuple(given["disabled_skills"])
    if "secrets_store" in given:
        given["secrets_store"] = read_secrets(given["secrets_store"])
    return SettingsPatch(**given)


# What holds for every record

for_every = hypothesis_settings(
    # The time limit of a test is pytest's; a busy machine makes single examples slow.
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)


@for_every
@given(settings_records)
def test_posting_back_what_was_read_changes_nothing(settings: Settings) -> None:
    body = json.loads(json.dumps(show_settings(settings)))
    patch = patch_of(body)
    check_patch(patch)
    assert merge(settings, patch) == settings


@for_every
@given(settings_records)
def test_posting_back_stars_for_every_secret_changes_nothing(settings: Settings) -> None:
    body = show_settings(settings) | dict.fromkeys(SECRET_FIELDS, MASK)
    assert merge(settings, patch_of(body)) == settings


@for_every
@given(settings_records, st.sets(st.sampled_from(FIELDS)))
def test_fields_that_are_absent_stay_as_they_are(settings: Settings, sent: set[str]) -> None:
    shown = show_settings(settings)
    assert merge(settings, patch_of({name: shown[name] for name in sent})) == settings


@for_every
@given(settings_records, patches_without_stars)
def test_a_change_sets_what_it_mentions_and_nothing_else(
    settings: Settings, patch: SettingsPatch
) -> None:
    after = merge(settings, patch)
    for name in FIELDS:
        sent = getattr(patch, name)
        if sent is UNSET or (sent is None and name in KEPT_ON_NULL):
            assert getattr(after, name) == getattr(settings, name)
        elif sent is None or (sent == "" and getattr(settings, name) != ""):
            assert getattr(after, name) == getattr(Settings(), name)
        else:
            assert getattr(after, name) == sent


@for_every
@given(settings_records, patches_without_stars)
def test_the_same_change_twice_is_one_change(settings: Settings, patch: SettingsPatch) -> None:
    once = merge(settings, patch)
    assert merge(once, patch) == once


@for_every
@given(settings_records)
def test_null_everywhere_leaves_only_what_is_never_shown(settings: Settings) -> None:
    after = merge(settings, to_patch(dict.fromkeys(FIELDS)))
    kept = {name: getattr(settings, name) for name in KEPT_ON_NULL}
    assert after == Settings(**kept)


@for_every
@given(settings_records)
def test_an_empty_text_clears_what_null_leaves(settings: Settings) -> None:
    body: dict[str, Any] = dict.fromkeys(KEPT_ON_NULL, "")
    after = merge(settings, patch_of(body))
    assert [getattr(after, name) for name in KEPT_ON_NULL] == [None] * len(KEPT_ON_NULL)
    cleared = dict.fromkeys(KEPT_ON_NULL)
    assert after == msgspec.structs.replace(settings, **cleared)


def test_no_secret_is_shown() -> None:
    marked = Secret("never-shown")
    mcp_config = McpConfig(
        sse_servers=(SseServer(url="http://a", api_key=marked),),
        shttp_servers=(ShttpServer(url="http://a", api_key=marked),),
        stdio_servers=(StdioServer(name="a", command="a", env={"A": marked}),),
    )
    keys = dict.fromkeys(SECRET_FIELDS, marked)
    settings = Settings(mcp_config=mcp_config, llm_model="m", **keys)  # type: ignore[arg-type]  # the keys are the three secrets
    assert "never-shown" not in json.dumps(show_settings(settings))
    assert "never-shown" not in repr(settings)


def test_a_patch_has_every_field_of_the_record() -> None:
    assert set(SettingsPatch.__struct_fields__) == {*FIELDS, "secrets_store"}


# Bounds


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("git_user_name", "a\nb", "must not contain control characters"),
        ("llm_api_key", Secret("a\r\nb"), "must not contain control characters"),
        ("llm_model", "x" * 5000, "must not be longer than 4096 characters"),
        ("disabled_skills", ("a", "b\0"), "must not contain control characters"),
    ],
)
def test_a_text_that_cannot_be_kept_is_refused_at_its_field(
    name: str, value: Any, message: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_patch(SettingsPatch(**{name: value}))
    assert caught.value.loc == ("body", name)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_iterations", 1),
        ("max_iterations", MAX_INT),
        ("condenser_max_size", 20),
        ("max_budget_per_task", 0.001),
        ("max_budget_per_task", 5),
        ("email_verified", False),
        ("disabled_skills", ()),
        ("mcp_config", McpConfig()),
    ],
)
def test_a_value_at_its_bounds_is_taken(name: str, value: Any) -> None:
    patch = SettingsPatch(**{name: value})
    check_patch(patch)
    assert getattr(merge(Settings(), patch), name) == value


# What is kept


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    return Vault.open(tmp_path / "master.key")


@pytest.fixture
def store(db: Database, vault: Vault) -> SettingsStore:
    return SettingsStore(db, vault)


@pytest.fixture
async def user_id(db: Database) -> str:
    return await KeyRing(db).create_user("alice", Role.MEMBER)


async def test_settings_that_were_never_saved_are_the_defaults(
    store: SettingsStore, user_id: str
) -> None:
    assert await store.find(user_id) is None
    assert await store.get(user_id) == Settings()


async def test_an_empty_change_saves_the_defaults(store: SettingsStore, user_id: str) -> None:
    assert await store.patch(user_id, SettingsPatch()) == Settings()
    assert await store.find(user_id) == Settings()


async def test_what_is_stored_is_read_back_whole(store: SettingsStore, user_id: str) -> None:
    patch = patch_of(
        {
            "llm_model": "openai/x",
            "llm_api_key": "sk-1",
            "max_budget_per_task": 2.5,
            "max_iterations": MAX_INT,
            "enable_default_condenser": False,
            "disabled_skills": ["a"],
            "mcp_config": {
                "sse_servers": [{"url": "http://a", "api_key": "k"}],
                "stdio_servers": [{"name": "s", "command": "c", "env": "A=1"}],
                "shttp_servers": ["http://b"],
            },
        }
    )
    stored = await store.patch(user_id, patch)
    assert await store.get(user_id) == stored
    assert stored.llm_api_key == Secret("sk-1")
    assert stored.mcp_config is not None
    assert stored.mcp_config.stdio_servers[0].env == {"A": Secret("1")}


async def test_changes_add_up(store: SettingsStore, user_id: str) -> None:
    await store.patch(user_id, patch_of({"llm_api_key": "sk-1", "language": "en"}))
    await store.patch(user_id, patch_of({"llm_api_key": None, "language": None, "email": "A"}))
    assert await store.get(user_id) == Settings(llm_api_key=Secret("sk-1"), email="A")


async def test_a_refused_change_changes_nothing(store: SettingsStore, user_id: str) -> None:
    before = await store.patch(user_id, patch_of({"language": "en"}))
    stars = {"sse_servers": [{"url": "http://a", "api_key": MASK}]}
    with pytest.raises(InvalidRequest, match="none is stored"):
        await store.patch(user_id, patch_of({"language": "de", "mcp_config": stars}))
    with pytest.raises(InvalidRequest, match="control characters"):
        await store.patch(user_id, patch_of({"language": "de", "email": "a\n"}))
    assert await store.get(user_id) == before


async def test_a_record_does_not_grow_without_bounds(store: SettingsStore, user_id: str) -> None:
    body = {"a": "x" * 200_000}

    def save(settings: Settings | None, name: str) -> Settings:
        llm = Llm(model=name, options=LlmOptions(litellm_extra_body=body))
        return save_profile(settings or Settings(), name, llm)

    for name in "abcde":
        await store.change(user_id, partial(save, name=name))
    before = await store.get(user_id)
    with pytest.raises(InvalidRequest, match="at most 1 MiB"):
        await store.change(user_id, partial(save, name="f"))
    assert await store.get(user_id) == before


async def test_a_record_of_an_earlier_version_can_get_smaller(
    store: SettingsStore, db: Database, vault: Vault, user_id: str
) -> None:
    llm = Llm(options=LlmOptions(litellm_extra_body={"a": "x" * 600_000}))
    large = Settings(llm_profiles=dict.fromkeys("abc", llm))
    sealed = vault.seal(encode_revealed(large), f"settings/{user_id}")
    row = {"user_id": user_id, "sealed": sealed, "updated_at": to_stored(now())}
    await db.write(lambda tx: tx.insert("settings", row))
    smaller = await store.change(user_id, lambda old: delete_profile(old or large, "a"))
    assert list(smaller.llm_profiles) == ["b", "c"]
    with pytest.raises(InvalidRequest, match="at most 1 MiB"):
        await store.patch(user_id, SettingsPatch(llm_model="model"))


async def test_users_have_settings_of_their_own(
    store: SettingsStore, db: Database, user_id: str
) -> None:
    other = await KeyRing(db).create_user("bob", Role.MEMBER)
    await store.patch(user_id, patch_of({"language": "en"}))
    assert await store.find(other) is None


async def test_the_database_has_no_secret_in_clear(
    store: SettingsStore, user_id: str, tmp_path: Path
) -> None:
    marked = "clear-text-marker"
    await store.patch(
        user_id,
        patch_of(
            {
                "llm_api_key": marked,
                "secrets_store": {
                    "provider_tokens": {"github": {"token": marked}},
                    "custom_secrets": {"X": marked},
                },
            }
        ),
    )
    contents = await asyncio.to_thread(contents_of, tmp_path)
    assert len(contents) >= 2
    assert not [content for content in contents if marked.encode() in content]


def contents_of(directory: Path) -> list[bytes]:
    return [file.read_bytes() for file in directory.iterdir() if file.is_file()]


async def test_a_record_of_another_version_is_read(
    store: SettingsStore, db: Database, vault: Vault, user_id: str
) -> None:
    await store.patch(user_id, SettingsPatch())
    sealed = vault.seal(b'{"language":"en","from_the_future":1}', f"settings/{user_id}")
    await db.write(lambda tx: tx.run("UPDATE settings SET sealed = :sealed", {"sealed": sealed}))
    assert await store.get(user_id) == Settings(language="en")
