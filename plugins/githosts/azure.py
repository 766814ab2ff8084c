"""Azure DevOps: the account of a token. Its repositories can be cloned, but are not listed."""

from agentsvc.extension.git import GitAccount, Hosting, Lookup, parts

_ON_SERVER = Lookup(
    "/_apis/connectionData",
    parts(
        "id=authenticatedUser.id name=authenticatedUser.providerDisplayName "
        "email=authenticatedUser.properties.Account.$value "
        "login=authenticatedUser.properties.Account.$value|authenticatedUser.providerDisplayName"
        "|authenticatedUser.id"
    ),
)


class AzureDevOps(Hosting):
    """Azure DevOps, accessed with the token of one user."""

    usual_rest = "https://app.vssps.visualstudio.com"
    user = Lookup(
        "/_apis/profile/profiles/me?api-version=7.1",
        parts("id name=displayName email=emailAddress login=emailAddress|displayName|id"),
    )

    async def account(self) -> GitAccount:
        """Return the account that the token belongs to; a self-hosted server has no profiles."""
        if self._api.rest == self.usual_rest:
            return await super().account()
        return self._one(GitAccount, _ON_SERVER, (await self._ask(_ON_SERVER)).value)
