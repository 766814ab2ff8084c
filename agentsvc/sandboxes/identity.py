"""Verifies that a connection reaches the right sandbox before anything is sent.

An address may belong to another sandbox by now: the address of a removed container is assigned to
the next one, and on the host network any process may listen on a port. So each new connection is
confirmed by the backend, which identifies its sandboxes by more than their addresses.
"""

from functools import partial
from urllib.parse import urlsplit

from agentsvc.agentserver import AgentClient, AgentServer, Confirm
from agentsvc.base import PortUnavailable, Secret, sha256
from agentsvc.plugin import Endpoint, Handle
from agentsvc.sandboxes.backend_calls import BackendCalls
from agentsvc.sandboxes.table import SandboxTable

_TRUSTED_SCHEME = "http+unix"
"""Scheme of unix sockets, which backends create where no sandbox can replace them."""


class IdentityVerifier:
    """Has backends confirm that the peer of a connection is the sandbox."""

    def __init__(self, calls: BackendCalls, table: SandboxTable, agents: AgentClient) -> None:
        """Install this verifier for all calls of `agents` to agent servers."""
        self._calls = calls
        self._table = table
        self._agents = agents
        agents.confirming = self.of_key

    def connect(
        self, backend: str, handle: Handle | None, endpoint: Endpoint, key: Secret
    ) -> AgentServer:
        """Return a client of a warm pool sandbox's agent server, with confirmed connections."""
        confirm = self.of(backend, handle, endpoint)
        return self._agents.at(endpoint.url, key, confirm=confirm)

    def of(self, backend: str, handle: Handle | None, endpoint: Endpoint) -> Confirm | None:
        """Return the check of new connections to an endpoint, or None if it needs no check."""
        return _unless_trusted(endpoint.url, partial(self._confirm, backend, handle, endpoint))

    def of_key(self, url: str, key: Secret) -> Confirm | None:
        """Return the check of new connections to the agent server of a session key's sandbox."""
        return _unless_trusted(url, partial(self._confirm_by_key, url, key))

    async def _confirm_by_key(self, url: str, key: Secret, source_port: int) -> None:
        sandbox = await self._table.find_by_key_hash(sha256(key.reveal()))
        known = sandbox.endpoints if sandbox else ()
        endpoint = next((end for end in known if end.url == url), None)
        if sandbox is None or endpoint is None:
            raise PortUnavailable("The sandbox no longer has this address")
        await self._confirm(sandbox.backend, sandbox.handle, endpoint, source_port)

    async def _confirm(
        self, backend: str, handle: Handle | None, endpoint: Endpoint, source_port: int
    ) -> None:
        async with self._calls.to(backend) as lent:
            is_its_own = handle and await lent.confirm(handle, endpoint, source_port)
        if not is_its_own:
            raise PortUnavailable(
                f"The process at the port `{endpoint.name}` does not belong to the sandbox;"
                " nothing was sent to it"
            )


def _unless_trusted(url: str, confirm: Confirm) -> Confirm | None:
    return None if urlsplit(url).scheme == _TRUSTED_SCHEME else confirm
