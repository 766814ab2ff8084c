"""Sign-in of browsers by OpenID Connect, or by the header of a proxy, beside API keys and login links.

`provider` asks a provider and checks what it says, `identities` keeps who is which user, `roles` says
what users may do, `routes` has the API. What begins is a login as any other, see `agentsvc.accounts`.
"""

from agentsvc.plugin import offers

agentsvc_register_extensions = offers(f"{__name__}.routes:SignIn")
agentsvc_register_commands = offers(f"{__name__}.commands:command")
