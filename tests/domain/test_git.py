import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentsvc.base.errors import InvalidRequest
from agentsvc.base.values import Secret
from agentsvc.domain.orders import Provider
from agentsvc.domain.repositories import (
    check_branch,
    check_host,
    check_repository,
    clone_url,
    credentials,
    locate,
    token_variable,
)


@pytest.mark.parametrize(
    ("provider", "repository", "host", "url"),
    [
        (Provider.GITHUB, "a/b", None, "https://github.com/a/b.git"),
        (Provider.GITHUB, "a/b.git", None, "https://github.com/a/b.git"),
        (Provider.GITHUB, "a/b", "", "https://github.com/a/b.git"),
        (Provider.GITHUB, "a/b", "ghe.example.com", "https://ghe.example.com/a/b.git"),
        (Provider.GITHUB, "a/b", "http://127.0.0.1:8080", "http://127.0.0.1:8080/a/b.git"),
        (Provider.GITHUB, "a/b", "[::1]:8080", "https://[::1]:8080/a/b.git"),
        (Provider.GITLAB, "group/sub/deep/b", None, "https://gitlab.com/group/sub/deep/b.git"),
        (Provider.GITLAB, "a/b", "https://host/gitlab/", "https://host/gitlab/a/b.git"),
        (Provider.BITBUCKET, "a/b", None, "https://bitbucket.org/a/b.git"),
        (Provider.BITBUCKET_DATA_CENTER, "P/b", "bb.local", "https://bb.local/scm/P/b.git"),
        (Provider.BITBUCKET_DATA_CENTER, "~me/b", "bb.local", "https://bb.local/scm/~me/b.git"),
        (Provider.FORGEJO, "a/b", None, "https://codeberg.org/a/b.git"),
        (Provider.AZURE_DEVOPS, "o/p/r", None, "https://dev.azure.com/o/p/_git/r"),
        (Provider.AZURE_DEVOPS, "o/my p/r", None, "https://dev.azure.com/o/my%20p/_git/r"),
        (Provider.ENTERPRISE_SSO, "a/b", "git.local", "https://git.local/a/b.git"),
    ],
)
def test_every_provider_has_its_clone_url(
    provider: Provider, repository: str, host: str | None, url: str
) -> None:
    assert clone_url(provider, repository, host) == url


@pytest.mark.parametrize("provider", [Provider.BITBUCKET_DATA_CENTER, Provider.ENTERPRISE_SSO])
def test_a_provider_without_a_public_place_needs_a_host(provider: Provider) -> None:
    with pytest.raises(InvalidRequest, match=f"`{provider}` needs a host"):
        clone_url(provider, "a/b")


@pytest.mark.parametrize(
    "repository",
    [
        "",
        "a",
        "a/",
        "/b",
        "a/b/c",
        "a//b",
        "../b",
        "a/..",
        "a/.git",
        "-a/b",
        "a/-b",
        "a/b c\n",
        " a/b",
        "a/b;c",
        "a/$(b)",
        "a/b\0",
        "a/" + "b" * 2000,
        "ä/b",
        "git@github.com:a/b",
    ],
)
def test_a_name_that_is_no_repository_is_refused(repository: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        clone_url(Provider.GITHUB, repository)
    assert caught.value.loc == ("body", "selected_repository")


def test_providers_nest_repositories_as_deep_as_they_do() -> None:
    assert check_repository("a/b/c/d", Provider.GITLAB) == ["a", "b", "c", "d"]
    assert check_repository("a/b/c") == ["a", "b", "c"]
    with pytest.raises(InvalidRequest, match="`organisation/project/name`"):
        check_repository("a/b", Provider.AZURE_DEVOPS)
    with pytest.raises(InvalidRequest):
        check_repository("a/b/c", Provider.BITBUCKET)


def test_a_short_name_belongs_to_the_given_provider() -> None:
    remote = locate(
        "g/s/name", Provider.GITLAB, {Provider.GITLAB: "gl.local", Provider.GITHUB: None}
    )
    assert remote.url == "https://gl.local/g/s/name.git"
    assert remote.directory == "name"
    assert remote.provider is Provider.GITLAB


def test_a_short_name_without_provider_belongs_to_the_only_token() -> None:
    assert locate("a/b", hosts={Provider.FORGEJO: "f.local"}).url == "https://f.local/a/b.git"
    assert locate("a/b").url == "https://github.com/a/b.git"
    both: dict[str, str | None] = {Provider.GITLAB: None, Provider.FORGEJO: None}
    assert locate("a/b", hosts=both).provider is Provider.GITHUB


@pytest.mark.parametrize(
    ("url", "provider", "owner"),
    [
        ("https://github.com/a/b", None, Provider.GITHUB),
        ("https://GitHub.com:443/a/b.git", None, Provider.GITHUB),
        ("https://gl.local:8443/gitlab/a/b", None, Provider.GITLAB),
        ("https://gl.local:8443/other/a/b", None, None),
        ("https://gl.local/gitlab/a/b", None, None),
        ("http://github.com/a/b", None, None),
        ("https://github.com.evil.example/a/b", None, None),
        ("https://elsewhere.example/a/b", Provider.GITHUB, None),
        ("https://github.com/a/b", Provider.GITLAB, None),
    ],
)
def test_a_url_goes_with_the_token_of_its_host_only(
    url: str, provider: Provider | None, owner: Provider | None
) -> None:
    hosts: dict[str, str | None] = {
        Provider.GITHUB: None,
        Provider.GITLAB: "https://gl.local:8443/gitlab",
    }
    remote = locate(url, provider, hosts)
    assert remote.provider is owner
    assert remote.url == url
    assert remote.directory == "b"


@pytest.mark.parametrize(
    "url",
    [
        "https://user:token@github.com/a/b",
        "https://token@github.com/a/b",
        "ssh://git@github.com/a/b",
        "file:///etc/passwd",
        "ext::sh -c true://x",
        "https://github.com",
        "https://github.com/",
        "https://github.com/a/b?c=d",
        "https://github.com/a/b#c",
        "https://github.com/a/b c",
        "https://github.com/a/..",
        "https://github.com/a/-b",
        "https://github.com:99999/a/b",
        "https://[::1/a/b",
        "https:///a/b",
        "https://h/" + "a" * 2000,
    ],
)
def test_a_url_that_git_must_not_get_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match="A repository URL is"):
        locate(url)


@pytest.mark.parametrize(
    "host", ["ftp://h", "http://", "http://u:p@h", "h?x", "h#x", "h h", "h\nx", "", "h:x", "h\\x"]
)
def test_a_host_that_is_none_is_refused(host: str) -> None:
    with pytest.raises(InvalidRequest, match="A host looks like") as caught:
        check_host(host, loc=("body", "x"))
    assert caught.value.loc == ("body", "x")


BRANCHES = [
    "main",
    "feature/x",
    "a.b",
    "a-b",
    "ünïcode",
    "a@b",
    "@a",
    "a}",
    "x" * 200,
    "",
    "-a",
    "--upload-pack=x",
    "HEAD",
    ".a",
    "a/.b",
    "a.lock",
    "a.lock/b",
    "a..b",
    "a//b",
    "/a",
    "a/",
    "a.",
    "a b",
    "a~b",
    "a^b",
    "a:b",
    "a?b",
    "a*b",
    "a[b",
    "a\\b",
    "a@{b",
    "a\tb",
    "a\x7fb",
]


@pytest.mark.parametrize("branch", BRANCHES)
def test_a_branch_name_is_taken_exactly_if_git_takes_it(branch: str) -> None:
    git = subprocess.run(
        ["git", "check-ref-format", "--branch", branch], capture_output=True, cwd="/", check=False
    )
    if git.returncode == 0:
        check_branch(branch)
    else:
        with pytest.raises(InvalidRequest) as caught:
            check_branch(branch)
        assert caught.value.loc == ("body", "selected_branch")


def test_the_short_form_of_head_is_no_branch() -> None:
    with pytest.raises(InvalidRequest):
        check_branch("@")


@given(st.text(max_size=12, alphabet="ab-./@{~^:?*[\\ \0\n"))
def test_a_branch_that_is_taken_is_no_option_and_no_pattern(branch: str) -> None:
    try:
        check_branch(branch)
    except InvalidRequest:
        return
    assert not branch.startswith(("-", "/", "."))
    assert not set(branch) & set("~^:?*[\\ \0\n")


def test_a_token_is_the_password_of_a_fixed_name() -> None:
    token = Secret("t0ken")
    assert credentials(Provider.GITHUB, token) == ("x-access-token", token)
    assert credentials(Provider.GITLAB, token) == ("oauth2", token)
    assert credentials(Provider.BITBUCKET, token) == ("x-token-auth", token)
    assert {credentials(provider, token)[1] for provider in Provider} == {token}


def test_a_bitbucket_app_password_brings_its_own_name() -> None:
    assert credentials(Provider.BITBUCKET, Secret("me:pass")) == ("me", Secret("pass"))
    assert credentials(Provider.GITHUB, Secret("a:b"))[1] == Secret("a:b")


def test_the_agent_finds_tokens_in_variables_named_for_the_provider() -> None:
    assert token_variable(Provider.GITHUB) == "GITHUB_TOKEN"
    assert token_variable(Provider.BITBUCKET_DATA_CENTER) == "BITBUCKET_DATA_CENTER_TOKEN"
