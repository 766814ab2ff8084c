"""Repositories and what they belong to, at every git hosting service."""

from typing import Any

import pytest

from agentsvc.base.errors import BadRequest, GitTokenMissing, InvalidRequest, NotAllowed, NotFound
from agentsvc.domain.orders import Provider
from agentsvc.git import BranchQuery, Listing, OwnerType, Repository, RepositoryQuery, SortBy
from tests.git.conftest import GitUser

GITHUB, GITLAB, FORGEJO = Provider.GITHUB, Provider.GITLAB, Provider.FORGEJO
BITBUCKET, DATA_CENTER = Provider.BITBUCKET, Provider.BITBUCKET_DATA_CENTER

HELLO = Repository(
    id="1296269",
    full_name="octocat/Hello-World",
    provider=GITHUB,
    is_public=True,
    stars=80,
    forks=9,
    pushed_at="2011-01-26T19:06:43Z",
    owner_type=OwnerType.USER,
    main_branch="master",
)
FIRST = {
    GITHUB: HELLO,
    GITLAB: Repository(
        id="4",
        full_name="diaspora/diaspora-client",
        provider=GITLAB,
        is_public=False,
        stars=3,
        forks=2,
        pushed_at="2022-06-24T17:11:26.841Z",
        owner_type=OwnerType.ORGANIZATION,
        main_branch="main",
    ),
    FORGEJO: Repository(
        id="11",
        full_name="earl/garden",
        provider=FORGEJO,
        is_public=True,
        stars=2,
        forks=1,
        pushed_at="2024-02-03T04:05:06+01:00",
        main_branch="main",
    ),
    BITBUCKET: Repository(
        id="{b1}",
        full_name="acme/site",
        provider=BITBUCKET,
        is_public=False,
        pushed_at="2024-05-05T05:05:05.000000+00:00",
        main_branch="release/2",
    ),
    DATA_CENTER: Repository(
        id="1",
        full_name="PRJ/my-repo",
        provider=DATA_CENTER,
        is_public=True,
        owner_type=OwnerType.ORGANIZATION,
    ),
}


async def search(user: GitUser, provider: Provider, **fields: Any) -> Listing[Repository]:
    return await user.providers.search_repositories(user.id, provider, RepositoryQuery(**fields))


def names(found: Listing[Repository]) -> list[str]:
    return [one.full_name for one in found.items]


async def all_names(user: GitUser, provider: Provider, limit: int) -> list[list[str]]:
    """Return the names on each page."""
    found = await search(user, provider, limit=limit)
    pages = [names(found)]
    while found.cursor is not None:
        found = await search(user, provider, limit=limit, cursor=found.cursor)
        pages.append(names(found))
    return pages


@pytest.mark.parametrize(
    ("provider", "limit", "pages"),
    [
        (GITHUB, 2, [["octocat/Hello-World", "octo-org/octo-repo"], ["octocat/Spoon-Knife"]]),
        (
            GITLAB,
            2,
            [["diaspora/diaspora-client", "john_smith/dotfiles"], ["brightbox/tools/puppet"]],
        ),
        (FORGEJO, 2, [["earl/garden", "earl/safe"], ["forgejo/docs"]]),
        (BITBUCKET, 1, [["acme/site"], ["acme/api"], ["emma/notes"]]),
        (DATA_CENTER, 1, [["PRJ/my-repo"], ["~jcitizen/dots"]]),
    ],
)
async def test_the_repositories_of_a_user_come_in_pages(
    user: GitUser, provider: Provider, limit: int, pages: list[list[str]]
) -> None:
    await user.connect(provider)
    assert await all_names(user, provider, limit) == pages


@pytest.mark.parametrize(
    ("provider", "limit"),
    [*((p, 2) for p in (GITHUB, GITLAB, FORGEJO)), (BITBUCKET, 1), (DATA_CENTER, 1)],
)
async def test_a_repository_is_told_in_the_same_words_everywhere(
    user: GitUser, provider: Provider, limit: int
) -> None:
    await user.connect(provider)
    assert (await search(user, provider, limit=limit)).items[0] == FIRST[provider]


@pytest.mark.parametrize(
    ("provider", "text", "installation_id", "found"),
    [
        (GITHUB, "hello", None, ["octocat/Hello-World"]),
        (GITHUB, "octo-org/octo", None, ["octo-org/octo-repo"]),
        (GITHUB, "octo", "1", ["octo-org/octo-repo"]),
        (GITHUB, "", "1", ["octo-org/octo-repo"]),
        (GITLAB, "dia", None, ["diaspora/diaspora-client"]),
        (GITLAB, "", "brightbox/tools", ["brightbox/tools/puppet"]),
        (FORGEJO, "gar", None, ["earl/garden"]),
        (FORGEJO, "forgejo/doc", None, ["forgejo/docs"]),
        (FORGEJO, "doc", "forgejo", ["forgejo/docs"]),
        (FORGEJO, "", "forgejo", ["forgejo/docs"]),
        (BITBUCKET, "acme/ap", None, ["acme/api"]),
        (BITBUCKET, "not", None, ["emma/notes"]),
        (BITBUCKET, "ap", "acme", ["acme/api"]),
        (BITBUCKET, 'a"b\\', "acme", []),
        (BITBUCKET, "", "emma", ["emma/notes"]),
        (DATA_CENTER, "dot", None, ["~jcitizen/dots"]),
        (DATA_CENTER, "PRJ/my", None, ["PRJ/my-repo"]),
        (DATA_CENTER, "my", "PRJ", ["PRJ/my-repo"]),
        (DATA_CENTER, "", "PRJ", ["PRJ/my-repo"]),
    ],
)
async def test_repositories_are_found(
    user: GitUser,
    provider: Provider,
    text: str,
    installation_id: str | None,
    found: list[str],
) -> None:
    await user.connect(provider)
    page = await search(user, provider, text=text, installation_id=installation_id)
    assert names(page) == found


async def test_a_search_goes_on_where_it_ended_and_can_be_turned_round(user: GitUser) -> None:
    await user.connect(GITHUB)
    first = await search(user, GITHUB, text="hello", sort=SortBy.STARS)
    assert (first.cursor, first.total) == ("2", 40)
    second = await search(
        user, GITHUB, text="hello", sort=SortBy.UPDATED, is_ascending=True, cursor=first.cursor
    )
    assert second.cursor is None


async def test_a_search_does_without_organizations_the_token_does_not_tell(user: GitUser) -> None:
    await user.connect(GITHUB)
    user.hosts.forbidden = {"/api/v3/user/orgs"}
    assert names(await search(user, GITHUB, text="spoon")) == ["octocat/Spoon-Knife"]


@pytest.mark.parametrize(("is_ascending", "forks"), [(True, [0, 2, 7]), (False, [7, 2, 0])])
async def test_a_page_is_sorted_here_where_the_provider_does_not(
    user: GitUser, is_ascending: bool, forks: list[int]
) -> None:
    await user.connect(GITLAB)
    page = await search(user, GITLAB, text="e", sort=SortBy.FORKS, is_ascending=is_ascending)
    assert [one.forks for one in page.items] == forks


@pytest.mark.parametrize(
    ("provider", "path", "found"),
    [
        (GITHUB, "octocat/Hello-World", ["octocat/Hello-World"]),
        (GITHUB, "octocat/Hello-World.git", ["octocat/Hello-World"]),
        (GITHUB, "octocat/Hello-World?tab=readme#top", ["octocat/Hello-World"]),
        (GITHUB, "octocat/nowhere", []),
        (GITHUB, "octocat", []),
        (GITLAB, "diaspora/diaspora-client", ["diaspora/diaspora-client"]),
        (FORGEJO, "earl/garden/", ["earl/garden"]),
        (BITBUCKET, "acme/site", ["acme/site"]),
    ],
)
async def test_the_url_of_a_repository_finds_it(
    user: GitUser, provider: Provider, path: str, found: list[str]
) -> None:
    await user.connect(provider)
    assert names(await search(user, provider, text=f"{user.hosts.url}/{path}")) == found


async def test_the_url_of_another_place_finds_nothing_and_asks_nobody(user: GitUser) -> None:
    await user.connect(GITHUB)
    found = await search(user, GITHUB, text="https://git.example.com/octocat/Hello-World")
    assert (names(found), user.hosts.requests) == ([], [])


@pytest.mark.parametrize(
    ("provider", "limit", "pages"),
    [
        (GITHUB, 2, [["1", "3"], ["9"]]),
        (GITLAB, 1, [["diaspora"], ["brightbox/tools"]]),
        (FORGEJO, 1, [["forgejo"], ["codeberg"]]),
        (BITBUCKET, 1, [["acme"], ["emma"]]),
        (DATA_CENTER, 1, [["PRJ"], ["OPS"]]),
    ],
)
async def test_installations_come_in_pages(
    user: GitUser, provider: Provider, limit: int, pages: list[list[str]]
) -> None:
    await user.connect(provider)
    seen: list[list[str]] = []
    cursor: str | None = None
    while not seen or cursor is not None:
        found = await user.providers.search_installations(user.id, provider, cursor, limit)
        seen.append(found.items)
        cursor = found.cursor
    assert seen == pages


async def test_a_token_that_no_app_got_sees_no_installations(user: GitUser) -> None:
    await user.connect(GITHUB)
    found = await user.providers.search_installations(user.id, GITHUB, None, 50)
    assert (found.items, found.cursor) == ([], None)


@pytest.mark.parametrize(
    ("provider", "found"),
    [
        (GITHUB, ["octo-org"]),
        (GITLAB, ["diaspora", "brightbox/tools"]),
        (FORGEJO, ["forgejo"]),
        (BITBUCKET, ["acme", "emma"]),
        (DATA_CENTER, ["PRJ", "OPS"]),
    ],
)
async def test_a_user_has_organizations(
    user: GitUser, provider: Provider, found: list[str]
) -> None:
    await user.connect(provider)
    assert await user.providers.get_organizations(user.id) == (provider, found)


# What cannot be


async def test_without_a_token_nothing_is_asked(user: GitUser) -> None:
    await user.connect(GITLAB)
    with pytest.raises(GitTokenMissing):
        await search(user, GITHUB)
    assert user.hosts.requests == []


@pytest.mark.parametrize("provider", FIRST)
@pytest.mark.parametrize("cursor", ["-1", "x", "", "²", "1" * 30, "http://127.0.0.1/", "../.."])
async def test_a_cursor_that_no_provider_gave_is_refused(
    user: GitUser, provider: Provider, cursor: str
) -> None:
    await user.connect(provider)
    with pytest.raises(InvalidRequest) as caught:
        await search(user, provider, cursor=cursor)
    assert caught.value.loc == ("query", "page_id")


@pytest.mark.parametrize(
    ("provider", "installation_id"),
    [(GITHUB, "octo-org"), (GITHUB, "9" * 30), (GITLAB, ".."), (FORGEJO, "."), (BITBUCKET, "..")],
)
async def test_an_installation_that_cannot_be_is_refused(
    user: GitUser, provider: Provider, installation_id: str
) -> None:
    await user.connect(provider)
    with pytest.raises(InvalidRequest) as caught:
        await search(user, provider, installation_id=installation_id)
    assert caught.value.loc == ("query", "installation_id")


async def test_an_installation_of_somebody_else_is_not_found(user: GitUser) -> None:
    await user.connect(GITHUB)
    with pytest.raises(NotFound):
        await search(user, GITHUB, text="octo", installation_id="77")


@pytest.mark.parametrize("provider", [Provider.AZURE_DEVOPS, Provider.ENTERPRISE_SSO])
async def test_what_a_provider_is_not_asked_for_is_said(user: GitUser, provider: Provider) -> None:
    await user.connect(provider)
    with pytest.raises(BadRequest, match=provider.value):
        await search(user, provider)
    with pytest.raises(BadRequest, match=provider.value):
        await search(user, provider, text=f"{user.hosts.url}/a/b/c")
    with pytest.raises(BadRequest, match=provider.value):
        await user.providers.search_installations(user.id, provider, None, 10)
    query = BranchQuery(repository="a/b/c")
    with pytest.raises(BadRequest, match=provider.value):
        await user.providers.search_branches(user.id, provider, query)
    with pytest.raises(BadRequest, match=provider.value):
        await user.providers.microagents(user.id, "a/b/c")
    with pytest.raises(BadRequest, match=provider.value):
        await user.providers.get_microagent(user.id, "a/b/c", "x.md")


async def test_a_provider_without_a_public_place_needs_a_host(user: GitUser) -> None:
    await user.connect(DATA_CENTER, host="")
    with pytest.raises(BadRequest, match="needs a host"):
        await search(user, DATA_CENTER)


async def test_organizations_need_a_provider(user: GitUser) -> None:
    with pytest.raises(NotAllowed, match="not connected"):
        await user.providers.get_organizations(user.id)


# Pages by number, and several providers at once


async def numbered(
    user: GitUser, provider: Provider | None, page: int | None, **fields: Any
) -> Listing[Repository]:
    query = RepositoryQuery(**fields)
    return await user.providers.repositories_page(user.id, provider, query, page)


@pytest.mark.parametrize(
    ("provider", "page", "limit", "found"),
    [
        (GITHUB, 2, 2, ["octocat/Spoon-Knife"]),
        (GITLAB, 1, 2, ["diaspora/diaspora-client", "john_smith/dotfiles"]),
        (BITBUCKET, 1, 1, ["acme/site"]),
        (BITBUCKET, 2, 1, ["acme/api"]),
        (BITBUCKET, 3, 1, ["emma/notes"]),
        (BITBUCKET, 4, 1, []),
        (BITBUCKET, 1000, 1, []),
        (DATA_CENTER, 2, 30, ["~jcitizen/dots"]),
    ],
)
async def test_a_page_has_a_number(
    user: GitUser, provider: Provider, page: int, limit: int, found: list[str]
) -> None:
    await user.connect(provider)
    assert names(await numbered(user, provider, page, limit=limit)) == found


@pytest.mark.parametrize(("page", "has_more"), [(1, True), (2, True), (3, False)])
async def test_a_page_tells_whether_there_is_more(user: GitUser, page: int, has_more: bool) -> None:
    await user.connect(BITBUCKET)
    assert ((await numbered(user, None, page, limit=1)).cursor is not None) == has_more


async def test_the_pages_of_one_workspace_are_numbered(user: GitUser) -> None:
    await user.connect(BITBUCKET)
    assert names(await numbered(user, BITBUCKET, 2, installation_id="acme", limit=1)) == [
        "acme/api"
    ]


async def test_all_repositories_of_all_providers_are_listed(user: GitUser) -> None:
    await user.connect(FORGEJO, GITHUB)
    assert names(await numbered(user, None, None)) == [
        "octocat/Hello-World",
        "octo-org/octo-repo",
        "octocat/Spoon-Knife",
        "earl/garden",
        "earl/safe",
        "forgejo/docs",
    ]


async def test_a_provider_that_fails_is_left_out(user: GitUser) -> None:
    await user.connect(GITHUB, value="bad")
    await user.connect(FORGEJO)
    assert names(await numbered(user, None, 1)) == ["earl/garden", "earl/safe", "forgejo/docs"]


async def test_if_every_provider_fails_the_first_failure_is_told(user: GitUser) -> None:
    await user.connect(Provider.ENTERPRISE_SSO, Provider.AZURE_DEVOPS)
    with pytest.raises(BadRequest, match="azure_devops"):
        await numbered(user, None, 1)


async def test_a_user_without_workspaces_has_no_repositories(user: GitUser) -> None:
    await user.connect(BITBUCKET)
    user.hosts.body = b'{"values": []}'
    assert names(await search(user, BITBUCKET)) == []
