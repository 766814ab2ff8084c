"""More git hosting services: Bitbucket Cloud and Data Center, Forgejo, Azure DevOps."""

from agentsvc.plugin import offers

agentsvc_register_extensions = offers(f"{__name__}.extension:GitHosts")
