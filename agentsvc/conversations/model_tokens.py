"""Tokens with which sandboxes call language models through this server, and the usage of them.

A token is valid for one conversation and one model, and is deleted with its conversation. The
model's API key is stored encrypted and stays on the server.
"""

import asyncio
import contextlib
import logging
import math
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from http import HTTPStatus
from typing import Final

import msgspec

from agentsvc.accounts import list_barred, quotas
from agentsvc.base import (
    AgentsvcError,
    ModelBudgetReached,
    NotAuthenticated,
    NotFound,
    QuotaExceeded,
    copy_to,
    new_id,
    new_key,
    now,
    sha256,
    to_stored,
)
from agentsvc.conversations import facts
from agentsvc.conversations.model_health import ModelHealth
from agentsvc.conversations.model_usage import (
    add_usage,
    find_usage,
    forget_call,
    note_call,
    note_use,
    open_calls,
    used_of,
)
from agentsvc.conversations.stores import ConversationStores
from agentsvc.domain import Llm, encode_revealed, revealed_decoder
from agentsvc.models import CallUsage, ModelTimedOut, Upstream, estimate_usage, through, upstream_of
from agentsvc.plugin import NOT_CALLING
from agentsvc.sandboxes import Sandbox, Sandboxes
from agentsvc.storage import Transaction, Vault, record_of

log = logging.getLogger(__name__)

PATH: Final = "/llm/v1"
"""The URL path of the model proxy."""

TOKEN_PREFIX: Final = "asmt_"  # noqa: S105  # what tokens begin with

_DELAY_SECONDS: Final = 5.0
_REFUSED_STATUS: Final = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND)

_INSERT: Final = """
    INSERT INTO model_grants (token_hash, conversation_id, sealed, created_at)
    SELECT :token_hash, id, :sealed, :created_at
    FROM conversations
    WHERE id = :conversation_id
"""
"""Only the hash of a token is stored; no row is inserted if the conversation is gone."""
_FIND: Final = """
    SELECT g.token_hash, g.conversation_id, g.sealed, c.user_id, c.sandbox_id
    FROM model_grants AS g
    JOIN conversations AS c ON c.id = g.conversation_id
    JOIN sandboxes AS s ON s.id = c.sandbox_id
    WHERE g.token_hash = :token_hash AND s.target <> 'deleted'
"""
"""A token whose conversation has a sandbox that is not being deleted."""

type MayReach = Callable[[str], Awaitable[bool]]
"""Returns whether this server may call models at a base URL."""


class ModelToken(msgspec.Struct, frozen=True, kw_only=True):
    """Permission to call one model in one conversation."""

    conversation_id: str
    user_id: str
    sandbox_id: str
    upstream: Upstream


class Call(msgspec.Struct, kw_only=True, eq=False):
    """An admitted call of a model."""

    id: str
    grant: ModelToken
    guess: CallUsage
    """The estimated usage."""
    is_open: bool = True
    """Whether its usage is not stored yet."""


class _Load:
    """The running calls of a user."""

    def __init__(self) -> None:
        self.callers = 0
        """The number of waiting and running calls; this object is dropped at 0."""
        self.running = 0
        self.largest = math.inf
        self.changed = asyncio.Condition()


class ModelTokens(msgspec.Struct, kw_only=True, eq=False):
    """Issues model tokens, and limits and counts the usage of models."""

    stores: ConversationStores
    vault: Vault
    sandboxes: Sandboxes
    may_reach: MayReach
    is_on: bool
    health: ModelHealth = msgspec.field(default_factory=ModelHealth)
    _loads: defaultdict[str, _Load] = msgspec.field(default_factory=lambda: defaultdict(_Load))

    async def lend(self, sandbox: Sandbox, conversation_id: str, llm: Llm) -> Llm:
        """Return a model as a sandbox calls it: by the model proxy with a new token, if possible.

        Returns `llm` itself if the proxy is off, the model's API is not OpenAI-compatible, the
        server may not call its base URL, or the sandbox cannot reach the server.
        """
        upstream = upstream_of(llm)
        [(fact, value)] = NOT_CALLING.items()
        if not self.is_on or upstream is None or sandbox.facts.get(fact) == value:
            return llm
        if not await self.may_reach(upstream.base_url):
            return llm
        token = new_key(TOKEN_PREFIX)
        token_hash = sha256(token.reveal())
        row = {
            "token_hash": token_hash,
            "conversation_id": conversation_id,
            "sealed": self.vault.seal(encode_revealed(upstream), _context(token_hash)),
            "created_at": to_stored(now()),
        }
        await self.stores.db.write(lambda tx: tx.run(_INSERT, row))
        return through(llm, base_url=self.sandboxes.inside_url(sandbox) + PATH, token=token)

    async def identify(self, token: str) -> ModelToken:
        """Return the permission of a token; raises NotAuthenticated if it is not valid."""
        row = await self.stores.db.one(_FIND, {"token_hash": sha256(token)})
        if row is None or row["user_id"] in await list_barred(self.stores.db):
            raise NotAuthenticated("Invalid model token")
        plain = self.vault.unseal(row["sealed"], _context(row["token_hash"]))
        return record_of(row, ModelToken, upstream=_upstream.decode(plain))

    async def recover(self) -> None:
        """Count the calls that were running when the server ended; called once at the start.

        Their usage is unknown, so the estimates stored before the calls are counted.
        """
        for call_id, conversation_id in await open_calls(self.stores.db):
            settle = partial(self._settle, call_id=call_id, conversation_id=conversation_id)
            try:
                await self.stores.db.write(settle)
            except Exception:
                extra = {"conversation_id": conversation_id}
                log.exception("usage of a model call could not be stored", extra=extra)

    def note_status(self, grant: ModelToken, status: int) -> None:
        """Update the model's health from the HTTP status of its response."""
        if status < HTTPStatus.BAD_REQUEST:
            self.health.note_answer(grant.conversation_id, grant.upstream)
        elif status in _REFUSED_STATUS:
            self.health.note_refusal(grant.upstream)

    @contextlib.asynccontextmanager
    async def calling(self, grant: ModelToken, asked_bytes: int) -> AsyncIterator[Call]:
        """Admit a call inside the context; raises ModelBudgetReached if no more may be spent.

        Near a limit, calls of a user run one at a time, so that at most one exceeds it. The
        estimate is stored before the call, and counted if the call is interrupted.
        """
        load = self._loads[grant.user_id]
        load.callers += 1
        try:
            async with (
                self._slot(grant, load),
                self._estimated(grant, estimate_usage(grant.upstream, asked_bytes)) as call,
            ):
                yield call
        finally:
            load.callers -= 1
            if not load.callers:
                self._loads.pop(grant.user_id, None)

    @contextlib.asynccontextmanager
    async def _slot(self, grant: ModelToken, load: _Load) -> AsyncIterator[None]:
        try:
            await self._wait_for_slot(grant, load)
        except ModelBudgetReached:
            await self._delay_refusal(grant)
            raise
        try:
            yield
        finally:
            async with load.changed:
                load.running -= 1
                load.changed.notify_all()

    @contextlib.asynccontextmanager
    async def _estimated(self, grant: ModelToken, guess: CallUsage) -> AsyncIterator[Call]:
        call = Call(id=new_id(), grant=grant, guess=guess)
        try:
            await self.stores.db.write(
                lambda tx: note_call(tx, call.id, grant.conversation_id, guess)
            )
            yield call
        except ModelTimedOut:
            raise
        except AgentsvcError:
            await self.release(call)
            raise
        finally:
            if call.is_open:
                await self._end(call, None)

    async def _wait_for_slot(self, grant: ModelToken, load: _Load) -> None:
        async with load.changed:
            while True:
                left = await self._left_to_spend(grant)
                if not load.running or left > load.running * load.largest or math.isinf(left):
                    break
                await load.changed.wait()
            load.running += 1

    async def _delay_refusal(self, grant: ModelToken) -> None:
        """Delay a refusal while the run is being stopped for its budget: it should not fail."""
        conversation = await self.stores.conversations.find(grant.conversation_id)
        if conversation is not None and conversation.facts.budget_stop_cost is not None:
            await asyncio.sleep(_DELAY_SECONDS)

    async def count(self, call: Call, usage: CallUsage) -> None:
        """Count the usage of a call."""
        load = self._loads[call.grant.user_id]
        dollars = usage.dollars or 0.0
        load.largest = dollars if math.isinf(load.largest) else max(load.largest, dollars)
        await self._end(call, usage)

    async def release(self, call: Call) -> None:
        """Delete the estimate of a call that did not reach the model or was refused by it."""
        if call.is_open:
            call.is_open = False
            await self.stores.db.write(lambda tx: forget_call(tx, call.id))

    async def _end(self, call: Call, usage: CallUsage | None) -> None:
        """Count the usage of a call, or its estimate if that is unknown.

        If the conversation is gone, the usage still counts for its user.
        """
        call.is_open = False

        async def body(tx: Transaction) -> None:
            noted = await forget_call(tx, call.id) or call.guess
            used, grant = usage or noted, call.grant
            if not await self._add_usage(tx, grant.conversation_id, used):
                tokens = copy_to(quotas.Tokens, used, model=grant.upstream.model)
                await quotas.note_spend(tx, grant.user_id, used.dollars or 0.0, tokens)

        # The user may have been deleted, too.
        with contextlib.suppress(NotFound):
            await self.stores.db.write(body)

    async def _settle(self, tx: Transaction, call_id: str, conversation_id: str) -> None:
        """Count the estimate of a call, unless the call was counted already."""
        noted = await forget_call(tx, call_id)
        if noted is not None:
            await self._add_usage(tx, conversation_id, noted)

    async def _add_usage(self, tx: Transaction, conversation_id: str, usage: CallUsage) -> bool:
        """Add usage to a conversation; return whether the conversation exists."""
        conversation = await self.stores.conversations.find(conversation_id, tx)
        if conversation is None:
            return False
        before = used_of(conversation, await find_usage(tx, conversation.id))
        await add_usage(tx, conversation.id, usage)
        after = used_of(conversation, await find_usage(tx, conversation.id))
        await note_use(tx, conversation, before, after)
        return True

    async def _left_to_spend(self, grant: ModelToken) -> float:
        """Return how many US dollars may be spent; raises ModelBudgetReached if none may."""
        conversation = await self.stores.conversations.find(grant.conversation_id)
        if conversation is None:
            raise NotAuthenticated("Invalid model token")
        used = await find_usage(self.stores.db, conversation.id)
        spent = max(facts.cost_of(conversation), used.dollars or 0.0)
        budget = conversation.max_budget
        may_continue = facts.goes_on_over_budget(conversation, spent)
        if budget is not None and spent >= budget and not may_continue:
            raise _refused(
                f"The budget of this conversation is used up: it has cost {spent:.4f} US dollars,"
                f" and may cost {budget:.4f}"
            )
        try:
            quota_left = await quotas.left_to_spend(self.stores.db, grant.user_id)
        except QuotaExceeded as exc:
            raise _refused(exc.message) from exc
        return min(quota_left, math.inf if budget is None else max(budget - spent, 0.0))


def _refused(message: str) -> ModelBudgetReached:
    error = {"message": message, "type": "insufficient_quota", "param": None}
    return ModelBudgetReached(message, extra={"error": {**error, "code": "insufficient_quota"}})


def _context(token_hash: str) -> str:
    return f"model grant {token_hash}"


_upstream: Final = revealed_decoder(Upstream)
