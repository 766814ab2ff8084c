"""The extension that registers the services by their provider names."""

from collections.abc import Mapping
from typing import ClassVar

from agentsvc.extension.git import Hosting, Provider
from agentsvc.extension.server import Extension, NoSettings

from .azure import AzureDevOps
from .bitbucket import Bitbucket
from .data_center import DataCenter
from .forgejo import Forgejo


class GitHosts(Extension[NoSettings]):
    """Registers the services for accounts, repositories, branches and tasks."""

    git_hosts: ClassVar[Mapping[Provider, type[Hosting]]] = {
        Provider.BITBUCKET: Bitbucket,
        Provider.BITBUCKET_DATA_CENTER: DataCenter,
        Provider.FORGEJO: Forgejo,
        Provider.AZURE_DEVOPS: AzureDevOps,
    }
