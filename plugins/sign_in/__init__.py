"""Sign-in of browsers by OpenID Connect or by the header of a proxy, besides API keys and login links.

`provider` calls a provider and validates its responses, `identities` maps external accounts to users, `roles`
maps groups to roles, `routes` contains the API. The result is an ordinary login, see `agentsvc.accounts`.
"""

from agentsvc.plugin import offers

agentsvc_register_extensions = offers(f"{__name__}.routes:SignIn")
agentsvc_register_commands = offers(f"{__name__}.commands:command")
