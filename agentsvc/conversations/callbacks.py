"""Callbacks of sandboxes: events, conversation updates, secret lookups."""

from collections.abc import Sequence
from typing import Final

import msgspec

from agentsvc.accounts import quotas
from agentsvc.agentserver import ConversationInfo
from agentsvc.base import BadRequest, NotAuthenticated, NotFound, QuotaExceeded, Secret, parse_uuid
from agentsvc.conversations.deletion import ConversationDeletion
from agentsvc.conversations.event_ingestor import EventIngestor
from agentsvc.conversations.model import Facts
from agentsvc.conversations.records import new_conversation, shown
from agentsvc.conversations.secret_lookup import LookupTokens, ProviderPass
from agentsvc.conversations.stores import ConversationStores
from agentsvc.domain import ExecutionStatus, Provider, StartOrder, token_variable
from agentsvc.sandboxes import Sandbox, Sandboxes
from agentsvc.settings import SecretStore, Settings
from agentsvc.storage import Transaction

_RETRY_AFTER_SECONDS: Final = 3600


class SandboxCallbacks(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Handles the reports and the requests of agent servers."""

    stores: ConversationStores
    lookup_tokens: LookupTokens
    sandboxes: Sandboxes
    secrets: SecretStore
    ingestor: EventIngestor
    deletion: ConversationDeletion
    max_adopted: int

    async def receive_events(
        self, sandbox: Sandbox, conversation_id: str, raw: Sequence[bytes]
    ) -> None:
        """Store events that a sandbox reports for one of its conversations.

        Events of a deleted conversation are dropped, and its agent server is told to delete it.
        Raises NotFound if the conversation is not in this sandbox.
        """
        try:
            await self.ingestor.record(conversation_id, raw, sandbox_id=sandbox.id)
        except NotFound:
            if not await self._is_removed(sandbox, conversation_id):
                raise NotFound(f"Conversation {shown(conversation_id)} not found") from None

    async def receive_conversation(self, sandbox: Sandbox, info: ConversationInfo) -> None:
        """Update a conversation from a sandbox's report; adopt one that the server did not start.

        Raises BadRequest for an invalid id, NotFound if the conversation is in another sandbox, and
        QuotaExceeded if its user may start, or the sandbox may have adopted, no more.
        """
        conversation_id = parse_uuid(info.id)
        if conversation_id is None:
            raise BadRequest("The conversation has no valid id")
        if info.execution_status == ExecutionStatus.DELETING:
            return
        if await self._is_removed(sandbox, conversation_id):
            return
        if await self.stores.conversations.find(conversation_id) is None:
            await self._adopt(sandbox, conversation_id, info.workspace.working_dir)
        known = await self.stores.conversations.find(conversation_id)
        if known is None or known.sandbox_id != sandbox.id:
            raise NotFound(f"Conversation {shown(conversation_id)} not found")
        await self.ingestor.receive_info(conversation_id, info)

    async def sandbox_secrets(self, sandbox: Sandbox) -> dict[str, tuple[str | None, Secret]]:
        """Return the secrets that a sandbox may look up, by name: description and value.

        A provider's token has two names, such as `github_token` and `GITHUB_TOKEN`.
        """
        if sandbox.spec.withholds_secrets:
            return {}
        found: dict[str, tuple[str | None, Secret]] = {}
        for name, token in (await self.secrets.provider_tokens(sandbox.user_id)).items():
            variable = token_variable(Provider(name))
            for known_as in (variable.lower(), variable):
                found[known_as] = (f"{name} token", token.token)
        for name, secret in (await self.secrets.custom_secrets(sandbox.user_id)).items():
            found[name] = (secret.description, secret.value)
        return found

    async def identify_pass(self, text: str) -> ProviderPass:
        """Return the provider pass in a token; raises NotAuthenticated unless its sandbox runs."""
        granted = self.lookup_tokens.read(text)
        sandbox = await self.sandboxes.find_any(granted.sandbox_id)
        if sandbox is None or not sandbox.may_call:
            raise NotAuthenticated(detail="the sandbox of the pass does not run")
        return granted

    async def provider_token(self, granted: ProviderPass) -> Secret:
        """Return the user's present provider token for a pass; raises NotFound."""
        sandbox = await self.sandboxes.find_any(granted.sandbox_id)
        user_id = sandbox.user_id if sandbox else ""
        found = await self.secrets.find_provider_token(user_id, granted.provider)
        if found is None:
            raise NotFound("No such provider")
        return found.token

    async def _adopt(self, sandbox: Sandbox, conversation_id: str, working_dir: str) -> None:
        order = StartOrder(conversation_id=conversation_id, sandbox_id=sandbox.id)
        conversation = msgspec.structs.replace(
            new_conversation(sandbox.user_id, conversation_id, order, Settings(), None),
            sandbox_id=sandbox.id,
            working_dir=working_dir,
            is_ready=True,
            facts=Facts(is_adopted=True),
        )

        async def body(tx: Transaction) -> None:
            is_removed = await self.deletion.is_removed(conversation_id, sandbox.id, tx)
            if not is_removed and await self.stores.conversations.find(conversation_id, tx) is None:
                await self._check_adopted(tx, sandbox)
                await quotas.note_start(tx, sandbox.user_id)
                await self.stores.conversations.insert(tx, conversation)

        await self.stores.db.write(body)

    async def _check_adopted(self, tx: Transaction, sandbox: Sandbox) -> None:
        _, adopted = await self.stores.conversations.used_by(tx, sandbox.id)
        if self.max_adopted and adopted >= self.max_adopted:
            raise QuotaExceeded(
                f"{adopted} conversations were adopted from this sandbox, which is the limit",
                retry_after_seconds=_RETRY_AFTER_SECONDS,
            )

    async def _is_removed(self, sandbox: Sandbox, conversation_id: str) -> bool:
        if await self.stores.conversations.find(conversation_id) is not None:
            return False
        if not await self.deletion.is_removed(conversation_id, sandbox.id):
            return False
        await self.deletion.retry_at_agent(conversation_id)
        return True
