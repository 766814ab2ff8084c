from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from agentsvc.accounts.keys import KeyRing, Role
from agentsvc.base.errors import InvalidRequest
from agentsvc.base.values import MASK, Secret
from agentsvc.domain.orders import Provider
from agentsvc.settings.fields import SettingsPatch
from agentsvc.settings.secret_store import SecretStore
from agentsvc.settings.store import SettingsStore
from agentsvc.settings.user_secrets import (
    RESERVED_NAMES,
    SECRETS_MAX,
    CustomSecret,
    CustomSecretPatch,
    ProviderToken,
    ProviderTokenPatch,
    SecretsPatch,
    check_secret_name,
    merge_secret,
    merge_token,
    read_secrets,
)
from agentsvc.storage.database import Database
from agentsvc.storage.vault import Vault


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    return Vault.open(tmp_path / "master.key")


@pytest.fixture
def store(db: Database, vault: Vault) -> SecretStore:
    return SecretStore(db, vault)


@pytest.fixture
async def user_id(db: Database) -> str:
    return await KeyRing(db).create_user("alice", Role.MEMBER)


# Reading what clients send


def test_tokens_and_secrets_are_read_in_both_published_forms() -> None:
    patch = read_secrets(
        {
            "provider_tokens": {
                "github": {"token": "gh", "user_id": "al", "host": "ghe.local"},
                "gitlab": "gl",
                "forgejo": {},
            },
            "custom_secrets": {"A_1": {"secret": "v", "description": "d"}, "B": "w", "C": {}},
            "ignored": 1,
        }
    )
    assert patch.provider_tokens == {
        Provider.GITHUB: ProviderTokenPatch(token=Secret("gh"), user_id="al", host="ghe.local"),
        Provider.GITLAB: ProviderTokenPatch(token=Secret("gl")),
        Provider.FORGEJO: ProviderTokenPatch(),
    }
    assert patch.custom_secrets == {
        "A_1": CustomSecretPatch(value=Secret("v"), description="d"),
        "B": CustomSecretPatch(value=Secret("w")),
        "C": CustomSecretPatch(),
    }


def test_a_token_is_kept_without_the_white_space_around_it() -> None:
    [patch] = read_secrets({"provider_tokens": {"github": " t\n"}}).provider_tokens.values()
    assert patch.token == Secret("t")


@pytest.mark.parametrize("raw", [None, {}, {"provider_tokens": None, "custom_secrets": {}}])
def test_nothing_is_read_as_no_change(raw: Any) -> None:
    assert read_secrets(raw) == SecretsPatch()


@pytest.mark.parametrize(
    ("raw", "loc"),
    [
        ([], []),
        ({"provider_tokens": []}, ["provider_tokens"]),
        ({"provider_tokens": {"sourceforge": "t"}}, ["provider_tokens", "sourceforge"]),
        ({"provider_tokens": {"github": 1}}, ["provider_tokens", "github"]),
        ({"provider_tokens": {"github": {"token": 1}}}, ["provider_tokens", "github", "token"]),
        (
            {"provider_tokens": {"github": {"token": "t", "host": "a b"}}},
            ["provider_tokens", "github", "host"],
        ),
        (
            {"provider_tokens": {"github": {"token": "t" * 70000}}},
            ["provider_tokens", "github", "token"],
        ),
        ({"provider_tokens": {"github": "a\nb"}}, ["provider_tokens", "github", "token"]),
        (
            {"provider_tokens": {"github": {"token": "a\r\nhost=x"}}},
            ["provider_tokens", "github", "token"],
        ),
        ({"custom_secrets": {"1A": "v"}}, ["custom_secrets", "1A"]),
        ({"custom_secrets": {"": "v"}}, ["custom_secrets", ""]),
        ({"custom_secrets": {"A-B": "v"}}, ["custom_secrets", "A-B"]),
        ({"custom_secrets": {"A\n": "v"}}, ["custom_secrets", "A\n"]),
        ({"custom_secrets": {"LLM_API_KEY": "v"}}, ["custom_secrets", "LLM_API_KEY"]),
        ({"custom_secrets": {"A": "v\0"}}, ["custom_secrets", "A", "secret"]),
        ({"custom_secrets": {"A": {"secret": []}}}, ["custom_secrets", "A", "secret"]),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(raw: Any, loc: list[str]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_secrets(raw)
    assert list(caught.value.loc) == ["body", "secrets_store", *loc]


@pytest.mark.parametrize("name", [*sorted(RESERVED_NAMES), "LLM_", "LLM_MODEL"])
def test_a_reserved_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"reserved for the sandbox itself: `{name}`"):
        check_secret_name(name)


@pytest.mark.parametrize("name", ["A", "_", "a_b9", "LLM", "MY_LLM_KEY", "x" * 256])
def test_other_names_of_variables_are_taken(name: str) -> None:
    check_secret_name(name)


def test_a_name_that_is_too_long_is_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_secret_name("x" * 257, loc=("body", "secrets"))
    assert caught.value.loc == ("body", "secrets")


# How a change applies

texts = st.none() | st.text(max_size=5)
tokens = st.none() | st.builds(
    ProviderToken, token=st.builds(Secret, st.text(min_size=1)), host=texts, user_id=texts
)


@given(tokens, st.sampled_from([None, Secret(""), Secret(MASK)]))
def test_an_empty_token_changes_nothing(old: ProviderToken | None, empty: Secret | None) -> None:
    assert merge_token(old, ProviderTokenPatch(token=empty)) == old


def test_a_token_is_replaced_and_its_host_kept_unless_sent() -> None:
    old = ProviderToken(token=Secret("a"), host="h", user_id="u")
    new = merge_token(old, ProviderTokenPatch(token=Secret("b")))
    assert new == ProviderToken(token=Secret("b"), host="h", user_id="u")
    new = merge_token(old, ProviderTokenPatch(host=None, user_id=""))
    assert new == ProviderToken(token=Secret("a"))
    new = merge_token(old, ProviderTokenPatch(host="other", user_id=UNSET))
    assert new == ProviderToken(token=Secret("a"), host="other", user_id="u")


def test_a_secret_keeps_its_value_and_description_unless_sent() -> None:
    old = CustomSecret(value=Secret("a"), description="d")
    assert merge_secret(old, CustomSecretPatch()) == old
    assert merge_secret(None, CustomSecretPatch(description="d")) is None
    new = merge_secret(old, CustomSecretPatch(value=Secret("b"), description=None))
    assert new == CustomSecret(value=Secret("b"))


# What is kept


async def test_a_change_keeps_what_it_does_not_mention(store: SecretStore, user_id: str) -> None:
    await store.patch(
        user_id,
        read_secrets(
            {
                "provider_tokens": {"github": {"token": "gh", "host": "h"}, "gitlab": "gl"},
                "custom_secrets": {"A": {"secret": "1", "description": "d"}, "B": "2"},
            }
        ),
    )
    await store.patch(
        user_id,
        read_secrets(
            {
                "provider_tokens": {"github": {"token": ""}, "forgejo": {"token": ""}},
                "custom_secrets": {"B": "3", "C": {"secret": None}},
            }
        ),
    )
    assert await store.provider_tokens(user_id) == {
        "github": ProviderToken(token=Secret("gh"), host="h"),
        "gitlab": ProviderToken(token=Secret("gl")),
    }
    assert await store.custom_secrets(user_id) == {
        "A": CustomSecret(value=Secret("1"), description="d"),
        "B": CustomSecret(value=Secret("3")),
    }
    assert await store.provider_hosts(user_id) == {"github": "h", "gitlab": None}
    assert await store.custom_secret_names(user_id) == {"A": "d", "B": None}


async def test_the_store_of_settings_keeps_their_secrets(
    db: Database, vault: Vault, store: SecretStore, user_id: str
) -> None:
    patch = SettingsPatch(secrets_store=read_secrets({"custom_secrets": {"A": "1"}}))
    await SettingsStore(db, vault).patch(user_id, patch)
    assert (await store.custom_secrets(user_id)).get("A") == CustomSecret(value=Secret("1"))


async def test_a_single_secret_is_found_by_name(store: SecretStore, user_id: str) -> None:
    await store.set_custom_secret(user_id, "A", Secret("1"), "d")
    await store.set_custom_secret(user_id, "A", Secret("2"))
    assert (await store.custom_secrets(user_id)).get("A") == CustomSecret(value=Secret("2"))
    assert (await store.custom_secrets(user_id)).get("a") is None
    assert await store.find_provider_token(user_id, "github") is None


async def test_a_secret_no_sandbox_can_take_is_not_stored(store: SecretStore, user_id: str) -> None:
    with pytest.raises(InvalidRequest):
        await store.set_custom_secret(user_id, "LLM_API_KEY", Secret("1"))
    with pytest.raises(InvalidRequest):
        await store.set_custom_secret(user_id, "A", Secret("1\0"))
    with pytest.raises(InvalidRequest, match="must not be empty"):
        await store.set_custom_secret(user_id, "A", Secret(""))
    assert await store.custom_secrets(user_id) == {}


async def test_stars_that_stand_for_nothing_are_refused(store: SecretStore, user_id: str) -> None:
    stars = Secret(MASK)
    with pytest.raises(InvalidRequest, match="none is stored"):
        await store.set_custom_secret(user_id, "A", stars)
    with pytest.raises(InvalidRequest, match="none is stored"):
        await store.add_custom_secret(user_id, "A", stars)
    with pytest.raises(InvalidRequest, match="none is stored"):
        await store.set_provider_tokens(user_id, {Provider.GITHUB: ProviderTokenPatch(token=stars)})
    await store.set_custom_secret(user_id, "A", Secret("1"))
    await store.set_custom_secret(user_id, "A", stars, "d")
    found = CustomSecret(value=Secret("1"), description="d")
    assert await store.custom_secrets(user_id) == {"A": found}


def test_no_more_secrets_are_looked_at_than_a_user_may_have() -> None:
    many = {f"1 is no letter {number}": "1" for number in range(SECRETS_MAX + 1)}
    with pytest.raises(InvalidRequest, match="at most 1000 members") as caught:
        read_secrets({"custom_secrets": many})
    assert caught.value.loc == ("body", "secrets_store", "custom_secrets")


async def test_a_user_has_so_many_secrets_and_no_more(store: SecretStore, user_id: str) -> None:
    many = {f"A{number}": CustomSecretPatch(value=Secret("1")) for number in range(SECRETS_MAX)}
    await store.patch(user_id, SecretsPatch(custom_secrets=many))
    with pytest.raises(InvalidRequest, match="at most 1000"):
        await store.set_custom_secret(user_id, "B", Secret("1"))
    await store.set_custom_secret(user_id, "A0", Secret("2"))
    await store.delete_custom_secret(user_id, "A1")
    await store.set_custom_secret(user_id, "B", Secret("1"))


async def test_a_new_set_of_tokens_forgets_the_others(store: SecretStore, user_id: str) -> None:
    first = {Provider.GITHUB: ProviderTokenPatch(token=Secret("a"))}
    await store.set_provider_tokens(user_id, first)
    second = {
        Provider.GITHUB: ProviderTokenPatch(token=Secret("")),
        Provider.GITLAB: ProviderTokenPatch(token=Secret("b")),
    }
    await store.set_provider_tokens(user_id, second)
    found = await store.find_provider_token(user_id, Provider.GITHUB)
    assert found == ProviderToken(token=Secret("a"))
    await store.set_provider_tokens(user_id, {Provider.GITLAB: ProviderTokenPatch()})
    assert list(await store.provider_tokens(user_id)) == ["gitlab"]
    await store.delete_provider_tokens(user_id)
    assert await store.provider_tokens(user_id) == {}


async def test_a_deleted_secret_is_gone(store: SecretStore, user_id: str) -> None:
    await store.set_custom_secret(user_id, "A", Secret("1"))
    assert await store.delete_custom_secret(user_id, "A") is True
    assert await store.delete_custom_secret(user_id, "A") is False
    assert await store.custom_secrets(user_id) == {}


async def test_users_have_secrets_of_their_own(
    store: SecretStore, db: Database, user_id: str
) -> None:
    other = await KeyRing(db).create_user("bob", Role.MEMBER)
    await store.set_custom_secret(user_id, "A", Secret("1"))
    assert await store.custom_secrets(other) == {}
    assert await store.delete_custom_secret(other, "A") is False
    assert (await store.custom_secrets(user_id)).get("A") is not None
