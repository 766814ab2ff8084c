"""Git hosting services beside GitHub and GitLab: Bitbucket, its Data Center, Forgejo, Azure DevOps."""

from collections.abc import Iterable

from agentsvc.plugin import hookimpl


@hookimpl
def agentsvc_register_extensions() -> Iterable[type]:
    """Offer what asks these services."""
    from .extension import GitHosts  # noqa: PLC0415  # what it imports takes time

    return [GitHosts]
