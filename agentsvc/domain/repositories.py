"""Git hosting services: clone URLs of repositories, and the user names for their tokens.

Pure functions; nothing here runs git. URLs made here never contain credentials, and `locate` returns
whose token a URL may get, so that no token reaches a host it was not issued for.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Final
from urllib.parse import SplitResult, quote, urlsplit

from msgspec import Meta, Struct

from agentsvc.base import CLONE_URL, InvalidRequest, Secret, stated, with_check
from agentsvc.domain.orders import Provider

DEFAULT_HOSTS: Final[Mapping[Provider, str]] = {
    Provider.GITHUB: "github.com",
    Provider.GITLAB: "gitlab.com",
    Provider.BITBUCKET: "bitbucket.org",
    Provider.FORGEJO: "codeberg.org",
    Provider.AZURE_DEVOPS: "dev.azure.com",
}
"""The host of a provider if none is configured; the other providers have no public host."""

_USERNAMES: Final[Mapping[Provider, str]] = {
    Provider.GITHUB: "x-access-token",
    Provider.GITLAB: "oauth2",
    Provider.BITBUCKET: "x-token-auth",
    Provider.BITBUCKET_DATA_CENTER: "x-token-auth",
    Provider.FORGEJO: "oauth2",
    Provider.AZURE_DEVOPS: "x-access-token",
    Provider.ENTERPRISE_SSO: "x-access-token",
}
_NESTING: Final[Mapping[Provider, tuple[int, int]]] = {
    Provider.GITLAB: (2, 21),  # GitLab nests groups up to twenty deep.
    Provider.AZURE_DEVOPS: (3, 3),
    Provider.ENTERPRISE_SSO: (2, 21),
}
_ONE_OWNER: Final = (2, 2)
_PORTS: Final = {"http": 80, "https": 443}
_MAX_LENGTH: Final = 1024
MAX_BRANCH_BYTES: Final = 255

_SEGMENT = re.compile(r"[A-Za-z0-9_.~+ -]+")
BRANCH_PATTERN: Final = (
    r"\A(?![-/.])(?!(?:@|HEAD)\Z)(?!.*(?:\.\.|@\{|//|/\.|\.lock/))(?!.*(?:\.|/|\.lock)\Z)"
    r"[^\0-\x20\x7f~^:?*\[\\]+\Z"
)
"""The branch names that git accepts."""
_BRANCH = re.compile(BRANCH_PATTERN)

_NAME: Final = (
    r"(?!-|\.+(?:/|\Z)|\.git(?:/|\Z))[A-Za-z0-9_.~+-](?:[A-Za-z0-9_.~+ -]*[A-Za-z0-9_.~+-])?"
)
_SOURCE_PATTERN: Final = rf"\A(?:{_NAME}(?:/{_NAME}){{1,20}}|{CLONE_URL})?\Z"
"""A repository's name or URL, or empty; the number of parts of a name depends on the provider."""
_SOURCE = re.compile(_SOURCE_PATTERN)

_NO_CREDENTIALS: Final = (
    "A repository URL is http(s), has a path, and contains no user name or password"
)

REPOSITORY_LOC: Final = ("body", "selected_repository")
BRANCH_LOC: Final = ("body", "selected_branch")


class Remote(Struct, frozen=True, kw_only=True):
    """The clone URL of a repository."""

    url: str
    directory: str
    """The name of the directory to clone into."""
    provider: Provider | None
    """The provider whose token may be sent to this URL; None if no token may be."""


def locate(
    repository: str,
    provider: Provider | None = None,
    hosts: Mapping[str, str | None] | None = None,
    *,
    loc: Sequence[str | int] = REPOSITORY_LOC,
) -> Remote:
    """Return the clone URL of `owner/name` or of a full URL.

    `hosts` has, for every provider with a token, the configured host, or None for the default one.
    Without `provider`, a short name belongs to the only provider with a token, otherwise to GitHub.
    A full URL gets the token of the provider at its host.
    """
    known = dict(hosts or {})
    if "://" in repository:
        return _from_url(repository, provider, known, loc)
    chosen = provider or (Provider(next(iter(known))) if len(known) == 1 else Provider.GITHUB)
    url = clone_url(chosen, repository, known.get(chosen), loc=loc)
    return Remote(url=url, directory=_directory(repository), provider=chosen)


def clone_url(
    provider: Provider,
    repository: str,
    host: str | None = None,
    *,
    loc: Sequence[str | int] = REPOSITORY_LOC,
) -> str:
    """Return the URL of `owner/name` at a provider; raises InvalidRequest if that is not possible.

    `host` may have a scheme, a port and a path, as self-hosted services need.
    """
    segments = check_repository(repository, provider, loc=loc)
    base = _base_url(provider, host, loc)
    path = [quote(segment) for segment in segments]
    match provider:
        case Provider.AZURE_DEVOPS:
            organisation, project, name = path
            return f"{base}/{organisation}/{project}/_git/{name}"
        case Provider.BITBUCKET_DATA_CENTER:
            return f"{base}/scm/{'/'.join(path)}.git"
        case _:
            return f"{base}/{'/'.join(path)}.git"


def check_repository(
    repository: str,
    provider: Provider | None = None,
    *,
    loc: Sequence[str | int] = REPOSITORY_LOC,
) -> list[str]:
    """Split `owner/name`, without a trailing `.git`; raises InvalidRequest if it is invalid."""
    segments = repository.removesuffix(".git").split("/")
    least, most = _NESTING.get(provider, _ONE_OWNER) if provider else (2, 21)
    well_formed = len(repository) <= _MAX_LENGTH and all(map(_is_segment, segments))
    if not (well_formed and least <= len(segments) <= most):
        form = "organisation/project/name" if least > _ONE_OWNER[0] else "owner/name"
        raise InvalidRequest(f"A repository looks like `{form}` or is an https URL", loc=loc)
    return segments


def refuse_credentials(repository: str, *, loc: Sequence[str | int] = REPOSITORY_LOC) -> None:
    """Raise InvalidRequest for a URL with a user name or password, which would be stored."""
    if "://" in repository and "@" in repository.partition("://")[2].partition("/")[0]:
        raise InvalidRequest(_NO_CREDENTIALS, loc=loc)


def check_branch(branch: str, *, loc: Sequence[str | int] = BRANCH_LOC) -> None:
    """Raise InvalidRequest unless git accepts this as a branch name."""
    if len(branch.encode()) > MAX_BRANCH_BYTES or not _BRANCH.match(branch):
        raise InvalidRequest("This is not a valid name of a git branch", loc=loc)


def _check_source(text: str, *, loc: Sequence[str | int]) -> None:
    if not _SOURCE.match(text):
        raise InvalidRequest("A repository looks like `owner/name` or is an https URL", loc=loc)


def _check_branch(text: str, *, loc: Sequence[str | int]) -> None:
    if text:
        check_branch(text, loc=loc)


type SentRepository = Annotated[
    str, Meta(max_length=_MAX_LENGTH), stated(pattern=_SOURCE_PATTERN), with_check(_check_source)
]
"""A repository to clone, in a request; empty for none."""
type SentBranch = Annotated[
    str,
    Meta(max_length=MAX_BRANCH_BYTES),
    stated(anyOf=[{"maxLength": 0}, {"pattern": BRANCH_PATTERN}]),
    with_check(_check_branch),
]
"""A branch to check out, in a request; empty for the default branch."""


def check_host(host: str, *, loc: Sequence[str | int] = ("body", "host")) -> str:
    """Return the base URL of a host, without a trailing slash; raises InvalidRequest if invalid."""
    parts = _split(host if "://" in host else f"https://{host}")
    if parts is None or parts.query or parts.fragment:
        raise InvalidRequest("A host looks like `git.example.com` or is an http(s) URL", loc=loc)
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def credentials(provider: Provider, token: Secret) -> tuple[str, Secret]:
    """Return the user name and password with which git uses a token."""
    name, colon, password = token.reveal().partition(":")
    if provider is Provider.BITBUCKET and colon:
        # Bitbucket app passwords are entered together with their user name.
        return name, Secret(password)
    return _USERNAMES[provider], token


def token_variable(provider: Provider) -> str:
    """Return the environment variable for a provider's token in sandboxes."""
    return f"{provider.value.upper()}_TOKEN"


def _from_url(
    url: str, provider: Provider | None, hosts: Mapping[str, str | None], loc: Sequence[str | int]
) -> Remote:
    parts = _split(url)
    path = parts.path.strip("/") if parts else ""
    directory = _directory(path)
    if parts is None or parts.query or parts.fragment or not _is_segment(directory):
        raise InvalidRequest(_NO_CREDENTIALS, loc=loc)
    clean = f"{parts.scheme}://{parts.netloc}/{path}"
    return Remote(url=clean, directory=directory, provider=_owner(clean, provider, hosts))


def _owner(url: str, provider: Provider | None, hosts: Mapping[str, str | None]) -> Provider | None:
    for candidate in [provider] if provider else list(Provider):
        host = hosts.get(candidate) or DEFAULT_HOSTS.get(candidate)
        if host and is_below(url, check_host(host)):
            return candidate
    return None


def is_below(url: str, base: str) -> bool:
    """Return whether a URL has the same origin as another one and is below its path."""
    one, two = urlsplit(url), urlsplit(base)
    return _address(one) == _address(two) and one.path.startswith(two.path + "/")


def _address(parts: SplitResult) -> tuple[str, str | None, int | None]:
    return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)


def _base_url(provider: Provider, host: str | None, loc: Sequence[str | int]) -> str:
    chosen = host or DEFAULT_HOSTS.get(provider)
    if chosen is None:
        raise InvalidRequest(f"The provider `{provider}` needs a host next to its token", loc=loc)
    return check_host(chosen, loc=loc)


def _split(url: str) -> SplitResult | None:
    """Split an http(s) URL without credentials; None for anything else."""
    if len(url) > _MAX_LENGTH or re.search(r"[\s\0-\x1f\x7f\\]", url):
        return None
    try:
        parts = urlsplit(url)
        usable = parts.hostname and parts.port != 0
    except ValueError:
        return None
    return parts if usable and parts.scheme in _PORTS and "@" not in parts.netloc else None


def _directory(path: str) -> str:
    return path.removesuffix(".git").rsplit("/", 1)[-1]


def _is_segment(segment: str) -> bool:
    return (
        bool(_SEGMENT.fullmatch(segment))
        and segment.strip() == segment
        and segment.strip(".") != ""
        and segment != ".git"
        and not segment.startswith("-")
    )
