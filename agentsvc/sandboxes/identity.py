"""Verifies that a connection reaches the right sandbox before anything is sent.

An address may have become another sandbox's since it was reported: a container's is given to the
next one, and on the machine's own network anybody may listen at a port. So the backend, which knows
its sandboxes otherwise than by their addresses, is asked about each new connection.
"""

from functools import partial
from urllib.parse import urlsplit

from agentsvc.agentserver import AgentClient, AgentServer, Confirm
from agentsvc.base import PortUnavailable, Secret, sha256
from agentsvc.plugin import Endpoint, Handle
from agentsvc.sandboxes.backend_calls import BackendCalls
from agentsvc.sandboxes.table import SandboxTable

_OURS = "http+unix"
"""The scheme of sockets that a backend has made where no sandbox can replace them."""


class IdentityVerifier:
    """Asks backends whose peers are."""

    def __init__(self, calls: BackendCalls, table: SandboxTable, agents: AgentClient) -> None:
        """Have all calls to the agent servers of sandboxes confirmed, too."""
        self._calls = calls
        self._table = table
        self._agents = agents
        agents.confirming = self.of_key

    def connect(
        self, backend: str, handle: Handle | None, endpoint: Endpoint, key: Secret
    ) -> AgentServer:
        """Return the calls to an agent server that nobody has yet; its connections are confirmed."""
        confirm = self.of(backend, handle, endpoint)
        return self._agents.at(endpoint.url, key, confirm=confirm)

    def of(self, backend: str, handle: Handle | None, endpoint: Endpoint) -> Confirm | None:
        """Return what confirms new connections to an endpoint; None where none needs to be."""
        return _unless_ours(endpoint.url, partial(self._confirm, backend, handle, endpoint))

    def of_key(self, url: str, key: Secret) -> Confirm | None:
        """Return what confirms new connections to the agent server of the sandbox with that key."""
        return _unless_ours(url, partial(self._confirm_by_key, url, key))

    async def _confirm_by_key(self, url: str, key: Secret, source_port: int) -> None:
        sandbox = await self._table.find_by_key_hash(sha256(key.reveal()))
        known = sandbox.endpoints if sandbox else ()
        endpoint = next((end for end in known if end.url == url), None)
        if sandbox is None or endpoint is None:
            raise PortUnavailable("The sandbox is not at this address any more")
        await self._confirm(sandbox.backend, sandbox.handle, endpoint, source_port)

    async def _confirm(
        self, backend: str, handle: Handle | None, endpoint: Endpoint, source_port: int
    ) -> None:
        async with self._calls.to(backend) as lent:
            is_its_own = handle and await lent.confirm(handle, endpoint, source_port)
        if not is_its_own:
            raise PortUnavailable(
                f"What answers at the port `{endpoint.name}` does not belong to the sandbox:"
                " nothing was sent to it"
            )


def _unless_ours(url: str, confirm: Confirm) -> Confirm | None:
    return None if urlsplit(url).scheme == _OURS else confirm
