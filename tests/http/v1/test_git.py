"""What a user has at git providers, through the socket."""

from typing import Any

import pytest

from agentsvc.accounts.keys import Role
from tests.git_hosts import GitHosts
from tests.service import Client, Service

GIT = "/api/v1/git"
REPOSITORIES = f"{GIT}/repositories/search?provider=github"
TASKS = f"{GIT}/suggested-tasks/search"
BRANCHES = f"{GIT}/branches/search?provider=github&repository=octocat/hello-world"
EVERYTHING = (
    f"{GIT}/installations/search?provider=github",
    REPOSITORIES,
    f"{BRANCHES}&query=",
    TASKS,
    "/api/v1/users/git-organizations",
)


async def connect(client: Client, host: str, *providers: str, token: str = "good") -> None:  # noqa: S107  # a test's
    tokens = {provider: {"token": token, "host": host} for provider in providers}
    path = "/api/v1/secrets/git-providers"
    assert (await client.post(path, json={"provider_tokens": tokens})).status == 200


@pytest.fixture
async def connected(client: Client, git_hosts: GitHosts) -> Client:
    await connect(client, git_hosts.url, "github", "gitlab")
    return client


async def pages(client: Client, path: str) -> list[list[Any]]:
    """Return the items on each page."""
    found: list[list[Any]] = []
    page_id = ""
    while True:
        answer = await client.get(f"{path}&page_id={page_id}" if page_id else path)
        assert answer.status == 200, answer.text
        found.append(answer.json()["items"])
        page_id = answer.json()["next_page_id"]
        if page_id is None:
            return found


async def test_repositories_are_shown_in_pages(connected: Client) -> None:
    [first, second] = await pages(connected, f"{REPOSITORIES}&limit=2")
    assert first[0] == {
        "id": "1296269",
        "full_name": "octocat/Hello-World",
        "git_provider": "github",
        "is_public": True,
        "stargazers_count": 80,
        "link_header": None,
        "pushed_at": "2011-01-26T19:06:43Z",
        "owner_type": "user",
        "main_branch": "master",
    }
    assert [one["full_name"] for one in first + second] == [
        "octocat/Hello-World",
        "octo-org/octo-repo",
        "octocat/Spoon-Knife",
    ]


@pytest.mark.parametrize(
    "query",
    [
        "query=hello&sort_order=stars-desc",
        "query=hello",
        "query=&limit=30",
        "installation_id=1",
        "query=octo&installation_id=1",
    ],
)
async def test_repositories_are_chosen_by_words_installation_and_order(
    connected: Client, query: str
) -> None:
    answer = await connected.get(f"{REPOSITORIES}&{query}")
    assert (answer.status, bool(answer.json()["items"])) == (200, True)


@pytest.mark.parametrize("query", ["sort_order=stars-desc", "sort_order=stars-desc&query="])
async def test_an_order_needs_a_query(connected: Client, query: str) -> None:
    answer = await connected.get(f"{REPOSITORIES}&{query}")
    assert (answer.status, answer.json()["code"]) == (400, "bad_request")


async def test_branches_are_shown_in_pages(connected: Client) -> None:
    assert await pages(connected, f"{BRANCHES}&query=fix&limit=1") == [
        [
            {
                "name": "fix-typo",
                "commit_sha": "6dcb09b5b57875f334f61aebed695e2e4193db5e",
                "protected": False,
                "last_push_date": "2011-04-14T16:00:49Z",
            }
        ],
        [
            {
                "name": "hotfix/1",
                "commit_sha": "c3d0be41ecbe669545ee3e94d31ed9a4bc91ee3c",
                "protected": True,
                "last_push_date": "2011-06-17T14:53:35Z",
            }
        ],
    ]


async def test_installations_are_shown_in_pages(connected: Client) -> None:
    path = f"{GIT}/installations/search?provider=github&limit=2"
    assert await pages(connected, path) == [["1", "3"], ["9"]]


async def test_what_there_is_to_do_is_shown_in_pages(connected: Client) -> None:
    found = await pages(connected, f"{TASKS}?limit=5")
    assert [len(page) for page in found] == [5, 3]
    assert found[0][0] == {
        "git_provider": "github",
        "task_type": "MERGE_CONFLICTS",
        "repo": "octocat/Hello-World",
        "issue_number": 1347,
        "title": "Amazing new feature",
    }


async def test_a_suggested_task_starts_a_conversation(connected: Client) -> None:
    [task, *_] = (await connected.get(TASKS)).json()["items"]
    started = await connected.start_task(None, suggested_task=task)
    assert started["request"]["suggested_task"] == task


async def test_organizations_are_those_at_the_first_provider(connected: Client) -> None:
    answer = await connected.get("/api/v1/users/git-organizations")
    assert answer.json() == {"provider": "github", "organizations": ["octo-org"]}


# What cannot be


@pytest.mark.parametrize("path", EVERYTHING)
async def test_without_a_token_it_is_forbidden(client: Client, path: str) -> None:
    answer = await client.get(path)
    assert (answer.status, answer.json()["code"]) == (403, "not_allowed")


async def test_what_is_missing_is_named_as_clients_know_it(client: Client) -> None:
    answer = await client.get(REPOSITORIES)
    assert answer.json()["detail"] == "Git provider token required (such as GitHub)."


async def test_the_tokens_of_another_user_are_not_used(
    connected: Client, service: Service, git_hosts: GitHosts
) -> None:
    other = await service.make_client("bob", Role.MEMBER)
    assert [(await other.get(path)).status for path in EVERYTHING] == [403] * len(EVERYTHING)
    assert git_hosts.requests == []


@pytest.mark.parametrize("path", EVERYTHING)
async def test_a_token_that_is_refused_is_unauthorized(
    client: Client, git_hosts: GitHosts, path: str
) -> None:
    await connect(client, git_hosts.url, "github", token="revoked")  # noqa: S106  # a test's
    answer = await client.get(path)
    assert answer.status == 401
    assert "valid github token" in answer.json()["detail"]


@pytest.mark.parametrize("path", EVERYTHING)
async def test_a_provider_that_wants_fewer_requests_says_when_to_come_back(
    connected: Client, git_hosts: GitHosts, path: str
) -> None:
    git_hosts.status, git_hosts.headers = 429, {"Retry-After": "17"}
    answer = await connected.get(path)
    assert (answer.status, answer.json()["code"]) == (429, "git_provider_rate_limited")
    assert answer.headers["Retry-After"] == "17"


@pytest.mark.parametrize("path", EVERYTHING)
async def test_a_provider_that_does_not_answer_is_a_bad_gateway(
    client: Client, unreachable_url: str, path: str
) -> None:
    await connect(client, unreachable_url, "github")
    answer = await client.get(path)
    assert (answer.status, answer.json()["code"]) == (502, "git_provider_unavailable")
    assert answer.headers["Retry-After"] == "1"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (f"{GIT}/installations/search", "provider"),
        (f"{GIT}/installations/search?provider=sourceforge", "provider"),
        (f"{GIT}/repositories/search", "provider"),
        (f"{REPOSITORIES}&sort_order=stars", "sort_order"),
        (f"{REPOSITORIES}&limit=101", "limit"),
        (f"{REPOSITORIES}&page_id=x", "page_id"),
        (f"{REPOSITORIES}&page_id=WyJ4Il0", "page_id"),
        (f"{REPOSITORIES}&installation_id=acme", "installation_id"),
        (f"{REPOSITORIES}&query={'x' * 300}", "query"),
        (BRANCHES, "query"),
        (f"{GIT}/branches/search?provider=github&query=", "repository"),
        (f"{GIT}/branches/search?provider=github&query=&repository=..", "repository"),
        (f"{TASKS}?page_id=WyJ4Il0", "page_id"),
        (f"{TASKS}?limit=0", "limit"),
    ],
)
async def test_a_parameter_that_cannot_be_is_named(connected: Client, path: str, name: str) -> None:
    answer = await connected.get(path)
    assert answer.status == 422
    assert answer.json()["detail"][0]["loc"] == ["query", name]
