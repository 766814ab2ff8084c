"""What there is to do for a user, and what a repository has to say to agents."""

import pytest

from agentsvc.base.errors import GitProviderUnavailable, GitTokenMissing, InvalidRequest, NotFound
from agentsvc.domain.orders import Provider, SuggestedTask, TaskType
from agentsvc.git import File
from tests.git.conftest import GitUser

GITHUB, GITLAB, FORGEJO = Provider.GITHUB, Provider.GITLAB, Provider.FORGEJO
BITBUCKET, DATA_CENTER = Provider.BITBUCKET, Provider.BITBUCKET_DATA_CENTER

CONFLICTS, CHECKS = TaskType.MERGE_CONFLICTS, TaskType.FAILING_CHECKS
COMMENTS, ISSUE = TaskType.UNRESOLVED_COMMENTS, TaskType.OPEN_ISSUE


@pytest.mark.parametrize(
    ("provider", "repository", "found"),
    [
        (
            GITHUB,
            "octocat/Hello-World",
            [(CONFLICTS, 1347), (CHECKS, 1348), (COMMENTS, 1349), (ISSUE, 1)],
        ),
        (
            GITLAB,
            "diaspora/diaspora-client",
            [(CONFLICTS, 1), (CHECKS, 2), (COMMENTS, 3), (ISSUE, 6)],
        ),
        (FORGEJO, "earl/garden", [(CONFLICTS, 1), (CHECKS, 2), (COMMENTS, 3), (ISSUE, 9)]),
        (BITBUCKET, "acme/site", [(COMMENTS, 5)]),
        (DATA_CENTER, "PRJ/my-repo", [(CONFLICTS, 1), (COMMENTS, 2)]),
    ],
)
async def test_what_needs_something_is_suggested(
    user: GitUser, provider: Provider, repository: str, found: list[tuple[TaskType, int]]
) -> None:
    await user.connect(provider)
    tasks = await user.providers.suggested_tasks(user.id)
    assert [(one.task_type, one.issue_number) for one in tasks] == found
    assert {(one.provider, one.repo) for one in tasks} == {(provider.value, repository)}


async def test_a_task_has_its_title(user: GitUser) -> None:
    await user.connect(GITHUB)
    assert (await user.providers.suggested_tasks(user.id))[0] == SuggestedTask(
        provider=Provider.GITHUB,
        task_type=CONFLICTS,
        repo="octocat/Hello-World",
        issue_number=1347,
        title="Amazing new feature",
    )


async def test_the_tasks_of_all_providers_are_suggested(user: GitUser) -> None:
    await user.connect(*(one for one in Provider if one is not Provider.ENTERPRISE_SSO))
    tasks = await user.providers.suggested_tasks(user.id)
    assert [one.provider for one in tasks].index(Provider.GITLAB) == 4
    assert {one.provider for one in tasks} == {
        "github",
        "gitlab",
        "bitbucket",
        "bitbucket_data_center",
        "forgejo",
    }


async def test_without_a_provider_there_is_nobody_to_ask(user: GitUser) -> None:
    with pytest.raises(GitTokenMissing):
        await user.providers.suggested_tasks(user.id)


# Microagents

REPOSITORIES = {
    GITHUB: "octocat/hello-world",
    GITLAB: "diaspora/diaspora-client",
    FORGEJO: "earl/garden",
    BITBUCKET: "acme/site",
    DATA_CENTER: "PRJ/my-repo",
}
CHANGED = {
    GITHUB: "2011-04-14T16:00:49Z",
    GITLAB: "2021-09-20T11:50:22.001+00:00",
    FORGEJO: "2024-02-03T04:05:06+01:00",
    BITBUCKET: "2024-05-05T05:05:05+00:00",
    DATA_CENTER: "2015-12-02T17:03:50.000000Z",
}
DIRECTORY = ".openhands/microagents"


@pytest.mark.parametrize("provider", REPOSITORIES)
async def test_the_microagents_of_a_repository_are_listed(
    user: GitUser, provider: Provider
) -> None:
    await user.connect(provider)
    found, changed_at = await user.providers.microagents(user.id, REPOSITORIES[provider])
    assert File(name="testing", path=f"{DIRECTORY}/testing.md") in found
    assert [one.name for one in found if one.name != "testing"] == (
        ["release"] if provider is GITHUB else []
    )
    assert changed_at == CHANGED[provider]


@pytest.mark.parametrize("provider", REPOSITORIES)
async def test_a_microagent_is_read(user: GitUser, provider: Provider) -> None:
    await user.connect(provider)
    found, where = await user.providers.get_microagent(
        user.id, REPOSITORIES[provider], f"{DIRECTORY}/testing.md"
    )
    assert found.triggers == ["pytest", "unit test"]
    assert found.content == "Run the tests with `make test`."
    assert where is provider


async def test_a_repository_may_have_no_microagents(user: GitUser) -> None:
    await user.connect(GITHUB)
    assert await user.providers.microagents(user.id, "octocat/Spoon-Knife") == ([], None)


async def test_a_repository_that_does_not_exist_has_none_either(user: GitUser) -> None:
    await user.connect(GITHUB)
    with pytest.raises(NotFound):
        await user.providers.microagents(user.id, "octocat/nowhere")


async def test_an_empty_repository_has_no_files(user: GitUser) -> None:
    await user.connect(BITBUCKET)
    assert await user.providers.microagents(user.id, "acme/empty") == ([], None)


@pytest.mark.parametrize(
    ("provider", "name"),
    [
        (GITHUB, "absent.md"),
        (GITHUB, "large.md"),
        (GITHUB, "folder.md"),
        (FORGEJO, "module.md"),
        (FORGEJO, "folder.md"),
    ],
)
async def test_what_is_no_file_is_not_found(user: GitUser, provider: Provider, name: str) -> None:
    await user.connect(provider)
    with pytest.raises(NotFound):
        await user.providers.get_microagent(user.id, REPOSITORIES[provider], f"{DIRECTORY}/{name}")


async def test_a_file_in_another_form_than_it_says_is_a_fault_of_the_provider(
    user: GitUser,
) -> None:
    await user.connect(GITHUB)
    with pytest.raises(GitProviderUnavailable):
        await user.providers.get_microagent(user.id, "octocat/hello-world", f"{DIRECTORY}/odd.md")


@pytest.mark.parametrize("provider", [GITHUB, GITLAB, FORGEJO, DATA_CENTER])
@pytest.mark.parametrize(
    "path", ["../x.md", "a/../../x.md", "/etc/x.md", "a//b.md", "README", ".", ""]
)
async def test_a_path_that_leads_elsewhere_is_refused(
    user: GitUser, provider: Provider, path: str
) -> None:
    await user.connect(provider)
    with pytest.raises(InvalidRequest) as caught:
        await user.providers.get_microagent(user.id, REPOSITORIES[provider], path)
    assert caught.value.loc == ("query", "file_path")
