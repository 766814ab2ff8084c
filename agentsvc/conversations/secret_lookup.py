"""Secret lookups: URLs and tokens with which a sandbox fetches its user's secrets.

A provider pass permits one sandbox to fetch the token of one git provider. It is encrypted with the
master key, so that the server need not store it.
"""

import base64
from typing import Final

import msgspec

from agentsvc.base import AgentsvcError, NotAuthenticated, Secret
from agentsvc.domain import Provider, token_variable
from agentsvc.sandboxes import Sandbox
from agentsvc.settings import SecretStore
from agentsvc.storage import Vault

_CONTEXT: Final = "provider-pass"


class SecretLookup(msgspec.Struct, frozen=True, kw_only=True):
    """The URL of one secret, and the header that authorizes the request."""

    url: str
    header: str
    key: Secret
    description: str | None


class ProviderPass(msgspec.Struct, frozen=True, kw_only=True):
    """Permission of a sandbox to fetch the token of a git provider."""

    sandbox_id: str
    provider: Provider


_DECODER = msgspec.json.Decoder(ProviderPass)


class LookupTokens:
    """Encodes provider passes as tokens, and decodes them."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault

    def sign(self, granted: ProviderPass) -> Secret:
        """Return a token for a pass; each call returns another one."""
        sealed = self._vault.seal(msgspec.json.encode(granted), _CONTEXT)
        return Secret(base64.urlsafe_b64encode(sealed).rstrip(b"=").decode())

    def read(self, text: str) -> ProviderPass:
        """Return the pass in a token; raises NotAuthenticated unless this server issued it."""
        try:
            sealed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            return _DECODER.decode(self._vault.unseal(sealed, _CONTEXT))
        except (ValueError, AgentsvcError) as exc:
            raise NotAuthenticated(detail="the pass was not signed by this server") from exc


async def make_lookups(
    sandbox: Sandbox, secrets: SecretStore, passes: LookupTokens, internal_url: str
) -> dict[str, SecretLookup]:
    """Return the lookups of all secrets of a sandbox's user, by environment variable."""
    base = f"{internal_url}/api/v1"
    found = {
        token_variable(Provider(provider)): SecretLookup(
            url=f"{base}/webhooks/secrets",
            header="X-Access-Token",
            key=passes.sign(ProviderPass(sandbox_id=sandbox.id, provider=Provider(provider))),
            description=f"{provider} token",
        )
        for provider in await secrets.provider_hosts(sandbox.user_id)
    }
    names = await secrets.custom_secret_names(sandbox.user_id)
    for name, description in names.items():
        found[name] = SecretLookup(
            url=f"{base}/sandboxes/{sandbox.id}/settings/secrets/{name}",
            header="X-Session-API-Key",
            key=sandbox.session_key,
            description=description,
        )
    return found
