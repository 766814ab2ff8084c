"""Branches of repositories, at every git hosting service."""

import pytest

from agentsvc.base.errors import GitProviderUnavailable, InvalidRequest, NotFound
from agentsvc.domain.orders import Provider
from agentsvc.git import Branch, BranchQuery
from tests.git.conftest import GitUser

GITHUB, GITLAB, FORGEJO = Provider.GITHUB, Provider.GITLAB, Provider.FORGEJO
BITBUCKET, DATA_CENTER = Provider.BITBUCKET, Provider.BITBUCKET_DATA_CENTER

REPOSITORIES = {
    GITHUB: "octocat/hello-world",
    GITLAB: "diaspora/diaspora-client",
    FORGEJO: "earl/garden",
    BITBUCKET: "acme/site",
    DATA_CENTER: "PRJ/my-repo",
}
MASTER = "c5b97d5ae6c19d5c5df71a34c7fbeeda2479ccbc"
FIX = "6dcb09b5b57875f334f61aebed695e2e4193db5e"


async def walk(user: GitUser, provider: Provider, text: str, limit: int) -> list[list[str]]:
    """Return the names on each page."""
    await user.connect(provider)
    pages: list[list[str]] = []
    cursor: str | None = None
    while not pages or cursor is not None:
        query = BranchQuery(
            repository=REPOSITORIES[provider], text=text, cursor=cursor, limit=limit
        )
        found = await user.providers.search_branches(user.id, provider, query)
        pages.append([one.name for one in found.items])
        cursor = found.cursor
    return pages


@pytest.mark.parametrize(
    ("provider", "pages"),
    [
        (GITHUB, [["master"], ["fix-typo"]]),
        (GITLAB, [["main"], ["fix"]]),
        (FORGEJO, [["main"], ["fix/roses"]]),
        (BITBUCKET, [["release/2"], ["fix"]]),
        (DATA_CENTER, [["master"], ["fix"]]),
    ],
)
async def test_branches_come_in_pages(
    user: GitUser, provider: Provider, pages: list[list[str]]
) -> None:
    assert await walk(user, provider, "", 1) == pages


@pytest.mark.parametrize(
    ("provider", "text", "limit", "pages"),
    [
        (GITHUB, "fix", 1, [["fix-typo"], ["hotfix/1"]]),
        (GITLAB, "fi", 30, [["fix"]]),
        (FORGEJO, "fix", 2, [["fix/roses", "Fix-lawn"], ["suffix"]]),
        (FORGEJO, "weeds", 2, [[]]),
        (BITBUCKET, "fi", 30, [["fix"]]),
        (DATA_CENTER, "fi", 30, [["fix"]]),
    ],
)
async def test_branches_are_found_by_a_part_of_the_name(
    user: GitUser, provider: Provider, text: str, limit: int, pages: list[list[str]]
) -> None:
    assert await walk(user, provider, text, limit) == pages


@pytest.mark.parametrize(
    ("provider", "text", "branch"),
    [
        (GITHUB, "", Branch(name="master", commit_sha=MASTER, is_protected=True)),
        (
            GITHUB,
            "fix",
            Branch(name="fix-typo", commit_sha=FIX, pushed_at="2011-04-14T16:00:49Z"),
        ),
        (
            GITLAB,
            "fi",
            Branch(name="fix", commit_sha=FIX, pushed_at="2024-06-27T05:51:39.000Z"),
        ),
        (
            FORGEJO,
            "",
            Branch(
                name="main",
                commit_sha="f" * 40,
                is_protected=True,
                pushed_at="2024-02-03T04:05:06+01:00",
            ),
        ),
        (
            BITBUCKET,
            "fi",
            Branch(name="fix", commit_sha="b" * 40, pushed_at="2024-05-05T05:05:05+00:00"),
        ),
        (
            DATA_CENTER,
            "fi",
            Branch(name="fix", commit_sha="8d51122def5632836d1cb1026e879069e10a1e13"),
        ),
    ],
)
async def test_a_branch_is_told_in_the_same_words_everywhere(
    user: GitUser, provider: Provider, text: str, branch: Branch
) -> None:
    await user.connect(provider)
    query = BranchQuery(repository=REPOSITORIES[provider], text=text, limit=2)
    assert (await user.providers.search_branches(user.id, provider, query)).items[0] == branch


async def test_a_repository_that_moved_is_followed(user: GitUser) -> None:
    await user.connect(GITHUB)
    query = BranchQuery(repository="octocat/old-name", limit=30)
    found = await user.providers.search_branches(user.id, GITHUB, query)
    assert [one.name for one in found.items] == ["master"]


async def test_branches_of_nothing_are_not_found(user: GitUser) -> None:
    await user.connect(GITHUB)
    query = BranchQuery(repository="octocat/nowhere", text="fix")
    with pytest.raises(NotFound):
        await user.providers.search_branches(user.id, GITHUB, query)


@pytest.mark.parametrize("text", ["", "fix"])
@pytest.mark.parametrize("provider", REPOSITORIES)
@pytest.mark.parametrize("repository", ["..", "a/..", "a", "a/b?x=1", "a//b", "a/b%2f..", "/a/b"])
async def test_a_name_that_is_no_repository_is_refused(
    user: GitUser, provider: Provider, repository: str, text: str
) -> None:
    await user.connect(provider)
    query = BranchQuery(repository=repository, text=text)
    with pytest.raises(InvalidRequest) as caught:
        await user.providers.search_branches(user.id, provider, query)
    assert caught.value.loc == ("query", "repository")
    assert user.hosts.requests == []


async def test_a_cursor_of_branches_that_is_too_long_is_refused(user: GitUser) -> None:
    await user.connect(GITHUB)
    query = BranchQuery(repository="octocat/hello-world", text="fix", cursor="x" * 300)
    with pytest.raises(InvalidRequest):
        await user.providers.search_branches(user.id, GITHUB, query)


# Where nobody says whose repository it is


@pytest.mark.parametrize("provider", [GITHUB, GITLAB])
async def test_a_repository_is_looked_for_at_every_provider(
    user: GitUser, provider: Provider
) -> None:
    await user.connect(GITHUB, GITLAB, Provider.AZURE_DEVOPS)
    query = BranchQuery(repository=REPOSITORIES[provider], limit=30)
    found = await user.providers.search_branches(user.id, None, query)
    assert found.items[0].name in ("master", "main")


async def test_a_repository_that_nobody_has_is_not_found(user: GitUser) -> None:
    await user.connect(GITHUB, GITLAB)
    with pytest.raises(NotFound, match="octocat/nowhere"):
        await user.providers.search_branches(
            user.id, None, BranchQuery(repository="octocat/nowhere")
        )


async def test_while_a_provider_is_away_nothing_is_said_not_to_exist(user: GitUser) -> None:
    await user.connect(GITHUB)
    await user.connect(GITLAB, host="http://127.0.0.1:1")
    query = BranchQuery(repository="octocat/nowhere")
    with pytest.raises(GitProviderUnavailable):
        await user.providers.search_branches(user.id, None, query)


@pytest.mark.parametrize(
    ("page", "names"), [(1, ["master"]), (2, ["fix-typo"]), (None, ["master", "fix-typo"])]
)
async def test_branches_have_pages_with_numbers(
    user: GitUser, page: int | None, names: list[str]
) -> None:
    await user.connect(GITHUB)
    query = BranchQuery(repository="octocat/hello-world", limit=1)
    found = await user.providers.branches_page(user.id, query, page)
    assert [one.name for one in found.items] == names
