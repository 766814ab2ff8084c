"""The catalogue of language models, through the socket; the agent packages are installed here."""

from typing import Any

import pytest

from tests.service import Client, Service

MODELS = "/api/v1/config/models/search"
PROVIDERS = "/api/v1/config/providers/search"


async def search(client: Client, path: str, **query: Any) -> list[dict[str, Any]]:
    """Return every item of every page."""
    found: list[dict[str, Any]] = []
    page_id: str | None = None
    while True:
        params = {name: str(value) for name, value in query.items()} | {"limit": "100"}
        answer = await client.get(path, params=params | ({"page_id": page_id} if page_id else {}))
        assert answer.status == 200, answer.text
        page = answer.json()
        found += page["items"]
        page_id = page["next_page_id"]
        if page_id is None:
            return found


async def test_models_of_a_provider_are_listed_verified_ones_first(client: Client) -> None:
    models = await search(client, MODELS, provider__eq="anthropic")
    assert {model["provider"] for model in models} == {"anthropic"}
    verified = [model["verified"] for model in models]
    assert verified == sorted(verified, reverse=True)
    assert set(verified) == {True, False}
    assert set(models[0]) == {"provider", "name", "verified", "hidden", "canonical"}


@pytest.mark.parametrize("verified", ["true", "false"])
async def test_models_are_filtered(client: Client, verified: str) -> None:
    models = await search(client, MODELS, query="CLAUDE", verified__eq=verified)
    assert models
    assert all("claude" in model["name"].lower() for model in models)
    assert {model["verified"] for model in models} == {verified == "true"}


async def test_the_service_s_own_provider_comes_first_then_verified_ones(client: Client) -> None:
    providers = await search(client, PROVIDERS)
    assert providers[0] == {"name": "openhands", "verified": True}
    verified = [provider["verified"] for provider in providers]
    assert verified == sorted(verified, reverse=True)
    assert len({provider["name"] for provider in providers}) == len(providers)


async def test_providers_are_filtered(client: Client) -> None:
    assert await search(client, PROVIDERS, query="ANTHROP", verified__eq="true") == [
        {"name": "anthropic", "verified": True}
    ]


async def test_there_are_fifty_on_a_page_unless_asked_for_more_or_fewer(client: Client) -> None:
    page = (await client.get(MODELS)).json()
    assert len(page["items"]) == 50
    assert page["next_page_id"]
    assert len((await client.get(f"{MODELS}?limit=3")).json()["items"]) == 3


@pytest.mark.parametrize("path", [MODELS, PROVIDERS])
@pytest.mark.parametrize("query", ["limit=101", "limit=0", "verified__eq=x", "page_id=zzz"])
async def test_a_query_that_does_not_fit_is_refused(client: Client, path: str, query: str) -> None:
    answer = await client.get(f"{path}?{query}")
    assert answer.status == 422
    assert answer.json()["detail"][0]["loc"] == ["query", query.partition("=")[0]]


@pytest.mark.parametrize("path", [MODELS, PROVIDERS])
async def test_the_catalogue_needs_a_key(service: Service, path: str) -> None:
    nobody = await service.make_client(None)
    assert (await nobody.get(path)).status == 401
