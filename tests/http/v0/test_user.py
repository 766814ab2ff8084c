"""What a user has at git providers, as the older generation tells it."""

import re

import pytest

from tests.git_hosts import GitHosts
from tests.service import Client

USER = "/api/user"
REPOSITORY = f"{USER}/repository/octocat/hello-world/microagents"
BRANCHES = f"{USER}/repository/branches?repository=octocat/hello-world"
EVERYTHING = (
    f"{USER}/info",
    f"{USER}/installations?provider=github",
    f"{USER}/repositories",
    f"{USER}/search/repositories?query=hello",
    f"{USER}/search/branches?repository=octocat/hello-world&query=fix",
    f"{USER}/suggested-tasks",
    BRANCHES,
    REPOSITORY,
    f"{REPOSITORY}/content?file_path=.openhands/microagents/testing.md",
)


async def connect(client: Client, host: str, *providers: str) -> None:
    tokens = {provider: {"token": "good", "host": host} for provider in providers}
    answer = await client.post("/api/add-git-providers", json={"provider_tokens": tokens})
    assert answer.status == 200


@pytest.fixture
async def connected(client: Client, git_hosts: GitHosts) -> Client:
    await connect(client, git_hosts.url, "github", "gitlab")
    return client


async def names(client: Client, path: str, key: str = "full_name") -> list[str]:
    answer = await client.get(f"{USER}{path}")
    assert answer.status == 200, answer.text
    return [one[key] for one in answer.json()]


@pytest.mark.parametrize("path", EVERYTHING)
async def test_without_a_token_it_is_unauthorized(client: Client, path: str) -> None:
    answer = await client.get(path)
    assert answer.status == 401
    assert answer.json()["detail"] == "Git provider token required. (such as GitHub)."


async def test_the_description_has_the_status_of_a_missing_token(client: Client) -> None:
    paths = (await client.get("/openapi.json")).json()["paths"]
    described = [methods["get"] for path, methods in paths.items() if path.startswith(USER)]
    assert described
    assert not [one for one in described if "(403) without" in one["description"]]


async def test_the_user_at_the_provider_is_described(connected: Client) -> None:
    assert (await connected.get(f"{USER}/info")).json() == {
        "id": "583231",
        "login": "octocat",
        "avatar_url": "https://avatars.githubusercontent.com/u/583231?v=4",
        "company": "@github",
        "name": "The Octocat",
        "email": None,
    }


async def test_installations_are_a_list(connected: Client) -> None:
    assert (await connected.get(f"{USER}/installations?provider=github")).json() == ["1", "3"]


async def test_all_repositories_of_all_providers_are_listed(connected: Client) -> None:
    assert await names(connected, "/repositories") == [
        "octocat/Hello-World",
        "octo-org/octo-repo",
        "octocat/Spoon-Knife",
        "diaspora/diaspora-client",
        "john_smith/dotfiles",
        "brightbox/tools/puppet",
    ]


async def test_a_client_finds_the_next_page_in_the_link(connected: Client) -> None:
    path = f"{USER}/repositories?selected_provider=github&per_page=2"
    first = (await connected.get(f"{path}&page=1")).json()
    # What the published front end looks for.
    link = re.search(r'<[^>]*[?&]page=(\d+)(?:&[^>]*)?>;\s*rel="next"', first[0]["link_header"])
    assert link is not None
    second = (await connected.get(f"{path}&page={link.group(1)}")).json()
    assert [one["full_name"] for one in second] == ["octocat/Spoon-Knife"]
    assert second[0]["link_header"] is None


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("sort=full_name&page=1&per_page=30", ["octo-org/octo-repo", "octocat/Hello-World"]),
        ("sort=pushed&page=1&per_page=30", ["octocat/Hello-World", "octo-org/octo-repo"]),
        ("installation_id=1&page=1&per_page=30", ["octo-org/octo-repo"]),
    ],
)
async def test_repositories_are_chosen(connected: Client, query: str, found: list[str]) -> None:
    assert await names(connected, f"/repositories?selected_provider=github&{query}") == found


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("query=hello", ["octocat/Hello-World"]),
        ("query=hello&selected_provider=github", ["octocat/Hello-World"]),
        ("query=dia&selected_provider=gitlab&sort=stars", ["diaspora/diaspora-client"]),
    ],
)
async def test_repositories_are_found(connected: Client, query: str, found: list[str]) -> None:
    assert await names(connected, f"/search/repositories?{query}") == found


async def test_the_url_of_a_repository_finds_it(connected: Client, git_hosts: GitHosts) -> None:
    query = f"query={git_hosts.url}/octocat/Hello-World"
    found = await names(connected, f"/search/repositories?{query}&selected_provider=github")
    assert found == ["octocat/Hello-World"]


async def test_branches_are_a_list_unless_a_page_is_asked_for(connected: Client) -> None:
    both = (await connected.get(BRANCHES)).json()
    assert [one["name"] for one in both] == ["master", "fix-typo"]
    page = (await connected.get(f"{BRANCHES}&page=1&per_page=1")).json()
    assert page == {
        "branches": [both[0]],
        "has_next_page": True,
        "current_page": 1,
        "per_page": 1,
        "total_count": None,
    }
    last = (await connected.get(f"{BRANCHES}&page=2&per_page=1")).json()
    assert (last["branches"], last["has_next_page"], last["current_page"]) == ([both[1]], False, 2)


async def test_a_page_tells_how_many_branches_there_are_if_the_provider_does(
    connected: Client,
) -> None:
    path = f"{USER}/repository/branches?repository=diaspora/diaspora-client&per_page=1"
    assert (await connected.get(path)).json()["total_count"] == 2


async def test_branches_are_found(connected: Client) -> None:
    query = "repository=octocat/hello-world&query=fix&selected_provider=github"
    assert await names(connected, f"/search/branches?{query}", "name") == ["fix-typo"]


async def test_what_there_is_to_do_is_listed(connected: Client) -> None:
    found = (await connected.get(f"{USER}/suggested-tasks")).json()
    assert len(found) == 8
    assert found[0] == {
        "git_provider": "github",
        "task_type": "MERGE_CONFLICTS",
        "repo": "octocat/Hello-World",
        "issue_number": 1347,
        "title": "Amazing new feature",
    }


async def test_microagents_are_listed(connected: Client) -> None:
    changed = "2011-04-14T16:00:49Z"
    assert (await connected.get(REPOSITORY)).json() == [
        {
            "name": name,
            "path": f".openhands/microagents/{name}.md",
            "created_at": changed,
        }
        for name in ("release", "testing")
    ]


async def test_a_microagent_is_read(connected: Client) -> None:
    path = ".openhands/microagents/testing.md"
    assert (await connected.get(f"{REPOSITORY}/content?file_path={path}")).json() == {
        "content": "Run the tests with `make test`.",
        "path": path,
        "triggers": ["pytest", "unit test"],
        "git_provider": "github",
    }


async def test_the_name_of_a_repository_may_have_its_slash_encoded(connected: Client) -> None:
    path = REPOSITORY.replace("octocat/hello-world", "octocat%2Fhello-world")
    assert len((await connected.get(path)).json()) == 2


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/installations", "provider"),
        ("/repositories?sort=luck", "sort"),
        ("/repositories?page=0", "page"),
        ("/repositories?per_page=101", "per_page"),
        ("/repositories?selected_provider=x", "selected_provider"),
        ("/search/repositories", "query"),
        ("/search/repositories?query=a&order=up", "order"),
        ("/search/branches?query=a", "repository"),
        ("/repository/branches?repository=", "repository"),
        ("/repository/a/b/microagents/content", "file_path"),
        ("/repository/octocat/hello-world/microagents/content?file_path=../x", "file_path"),
    ],
)
async def test_a_parameter_that_cannot_be_is_named(connected: Client, path: str, name: str) -> None:
    answer = await connected.get(f"{USER}{path}")
    assert answer.status == 422
    assert answer.json()["detail"][0]["loc"] == ["query", name]


@pytest.mark.parametrize("name", ["octocat/nowhere", "a", "..%2f..", "a/b/c"])
async def test_a_repository_nobody_has_is_not_found(connected: Client, name: str) -> None:
    answer = await connected.get(f"{USER}/repository/{name}/microagents")
    assert answer.status == 404
