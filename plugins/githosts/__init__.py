"""Git hosting services beside GitHub and GitLab: Bitbucket, its Data Center, Forgejo, Azure DevOps."""

from agentsvc.plugin import offers

agentsvc_register_extensions = offers(f"{__name__}.extension:GitHosts")
