"""Operations of users on automations and their runs, and webhook deliveries."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any, Final

import msgspec

from agentsvc.base import (
    Conflict,
    InvalidRequest,
    NotAuthenticated,
    NotFound,
    QuotaExceeded,
    Secret,
    new_id,
    now,
    parse_time,
    to_stored,
)
from agentsvc.extension.conversations import (
    Provider,
    check_branch,
    check_repository,
    refuse_credentials,
)
from agentsvc.extension.git import as_text, find_part, part_of
from agentsvc.extension.server import Server
from agentsvc.extension.signatures import new_secret
from agentsvc.extension.storage import Database, Transaction, note_by_server, note_effect

from .config import AutomationsConfig
from .cron import parse_cron
from .ending import WAS_DISABLED, RunEnd, ended, new_run, stop_run
from .github_app import AppTable, GithubApps
from .host_events import HostEvent, check_sender, events_in
from .hosts import HOSTS, Kind
from .model import (
    Automation,
    Concurrency,
    CronTrigger,
    Definition,
    GitTrigger,
    OnceTrigger,
    Run,
    RunStatus,
    Source,
    WebhookTrigger,
)
from .prompt import check_prompt
from .signature import key_of
from .table import AutomationTable, RunTable, payload_context, secret_context
from .work_table import Poll, PollTable, WorkTable, find_meant

MAX_WAITING: Final = 1000
"""Maximum number of pending runs of an automation; beyond it, deliveries are rejected and due
times skipped."""

_SIGNED: Final = (WebhookTrigger, GitTrigger)
"""The triggers whose deliveries are signed with a secret."""
_RETRY_SECONDS: Final = 60
_DELETE_BATCH: Final = 500
_EVENT_HEADERS: Final = ("X-GitHub-Event", "X-Forgejo-Event", "X-Gitea-Event")


class Automations:
    """All automations; users see and change only their own. `wake` wakes the scheduler."""

    def __init__(
        self,
        server: Server,
        apps: GithubApps,
        config: AutomationsConfig,
        wake: Callable[[], None],
    ) -> None:
        self._db = server.database
        self._apps = apps
        self._vault = server.vault
        self._messages = server.messages
        self._max = config.most_per_user
        self._wake = wake

    async def create(
        self, user_id: str, definition: Definition, *, is_enabled: bool
    ) -> tuple[Automation, Secret | None]:
        """Add an automation; the secret of a webhook is returned only here.

        Raises InvalidRequest, and Conflict if the user has too many.
        """
        moment = now()
        due = check_definition(definition, moment)
        made = Automation(
            id=new_id(),
            user_id=user_id,
            definition=definition,
            is_enabled=is_enabled,
            next_at=due if is_enabled else None,
            created_at=moment,
            updated_at=moment,
        )
        secret = new_secret() if isinstance(definition.trigger, _SIGNED) else None
        sealed = self._seal(made.id, secret) if secret else None

        async def body(tx: Transaction) -> None:
            if await AutomationTable.count(tx, user_id) >= self._max:
                raise Conflict(f"A user has at most {self._max} automations")
            sealed_as = secret_context(made.id)
            await AutomationTable.insert(tx, made, sealed=sealed, sealed_as=sealed_as)
            await note_effect(tx, (made, secret))
            tx.after_commit(self._wake)

        await self._db.write(body)
        return made, secret

    async def update(
        self,
        user_id: str,
        automation_id: str,
        changes: Mapping[str, Any],
        *,
        is_enabled: bool | None,
    ) -> Automation:
        """Change an automation; raises NotFound or InvalidRequest.

        Disabling cancels pending runs. Enabling resets the count of failures, and does not make up for
        missed runs.
        """
        moment = now()

        async def body(tx: Transaction) -> Automation:
            before = _owned(await AutomationTable.find(tx, automation_id), user_id)
            definition = msgspec.structs.replace(before.definition, **changes)
            is_same = definition.trigger == before.definition.trigger
            due = check_definition(definition, moment, may_be_past=is_same)
            after = msgspec.structs.replace(before, definition=definition, updated_at=moment)
            if is_enabled is not None and is_enabled != before.is_enabled:
                after = msgspec.structs.replace(
                    after, is_enabled=is_enabled, disabled_reason="", failures=0
                )
            if not after.is_enabled:
                after = msgspec.structs.replace(after, next_at=None)
                await RunTable.cancel_waiting(tx, after.id, WAS_DISABLED, moment)
            elif not is_same or not before.is_enabled:
                after = msgspec.structs.replace(after, next_at=due)
                if isinstance(definition.trigger, GitTrigger):
                    since = f"{to_stored(moment)[:19]}Z"
                    poll = Poll(automation_id=after.id, user_id=user_id, since=since, etag="")
                    await PollTable.store(tx, poll, moment)
            await AutomationTable.update(tx, after)
            tx.after_commit(self._wake)
            return after

        return await self._db.write(body)

    async def rotate(self, user_id: str, automation_id: str) -> Secret:
        """Replace the secret of an automation; the new one is returned only here."""
        secret = new_secret()
        sealed = self._seal(automation_id, secret)

        async def body(tx: Transaction) -> None:
            _owned(await AutomationTable.find(tx, automation_id), user_id)
            await AutomationTable.set_sealed(tx, automation_id, sealed)
            await note_effect(tx, secret)

        await self._db.write(body)
        return secret

    async def delete(self, user_id: str, automation_id: str) -> None:
        """Delete an automation and its runs; conversations stay. Raises NotFound."""

        async def body(tx: Transaction) -> None:
            _owned(await AutomationTable.find(tx, automation_id), user_id)
            await AutomationTable.delete(tx, automation_id)

        await self._db.write(body)

    async def get(self, user_id: str, automation_id: str) -> Automation:
        """Return an automation; raises NotFound."""
        return _owned(await AutomationTable.find(self._db, automation_id), user_id)

    async def list_of(
        self, user_id: str, *, limit: int, offset: int
    ) -> tuple[list[Automation], int]:
        """Return a page of a user's automations, the newest first, and their total number."""
        found = await AutomationTable.of_user(self._db, user_id, limit=limit, offset=offset)
        return found, await AutomationTable.count(self._db, user_id)

    async def dispatch(self, user_id: str, automation_id: str) -> Run:
        """Create a run now, even if the automation is disabled.

        Raises NotFound, Conflict for a trigger `git`, and QuotaExceeded.
        """

        async def body(tx: Transaction) -> Run:
            automation = _owned(await AutomationTable.find(tx, automation_id), user_id)
            if isinstance(automation.definition.trigger, GitTrigger):
                raise Conflict("Only events at its git host start this automation")
            run = new_run(automation, key=f"manual:{new_id()}", source=Source.MANUAL)
            await self._add(tx, automation, run)
            await note_effect(tx, run)
            return run

        return await self._db.write(body)

    async def deliver(
        self, automation_id: str, headers: Mapping[str, str], body: bytes, payload: Any
    ) -> tuple[int, list[str]]:
        """Create a run for a delivery unless it is a repetition; `payload` is its decoded body.

        For a delivery of a GitHub App, the id is that of the App's row. Returns the number of automations
        that accept it, and the ids of the runs created. Raises NotFound, NotAuthenticated for a wrong
        signature, and QuotaExceeded while too many runs are pending.
        """
        automation = await AutomationTable.find(self._db, automation_id)
        app = await AppTable.find(self._db, automation_id) if automation is None else None
        if app is not None:
            secret = Secret(self._apps.keys_of(app).webhook_secret)
            return await self._deliver_of_app(app.user_id, secret, headers, body, payload)
        sealed = await AutomationTable.find_sealed(self._db, automation_id)
        trigger = automation.definition.trigger if automation is not None else None
        if automation is None or sealed is None or not isinstance(trigger, _SIGNED):
            raise NotFound("There is no automation with a webhook of this id")
        secret = Secret(self._vault.unseal(sealed, secret_context(automation_id)).decode())
        if isinstance(trigger, GitTrigger):
            provider = automation.definition.host
            check_sender(provider, headers, body, secret, now())
            counts = automation.is_enabled and events_in(provider, trigger, headers, payload)
            return int(bool(counts)), await self.record_events(automation.id, counts or ())
        key = key_of(headers, body, secret, now())
        run = new_run(automation, key=f"delivery:{key}", source=Source.WEBHOOK)
        sealed = self._vault.seal(body, payload_context(automation_id))

        async def write(tx: Transaction) -> tuple[int, list[str]]:
            found = await AutomationTable.find(tx, automation_id)
            trigger = found.definition.trigger if found is not None and found.is_enabled else None
            if found is None or not isinstance(trigger, WebhookTrigger):
                return 0, []
            if not is_wanted(trigger, headers, payload):
                return 0, []
            return 1, [run.id] if await self._add(tx, found, run, sealed) else []

        return await self._db.write(write)

    async def _deliver_of_app(
        self, user_id: str, secret: Secret, headers: Mapping[str, str], body: bytes, payload: Any
    ) -> tuple[int, list[str]]:
        """Record the events of a delivery for each automation of its repository."""
        if not secret:
            raise NotAuthenticated("The GitHub App has no webhook secret")
        key_of(headers, body, secret, now())
        name, count, made = part_of(payload, "repository.full_name"), 0, []
        if headers.get("X-GitHub-Event") == "repository":
            await self._rename(user_id, name, payload)
        for one in await AutomationTable.of_repository(self._db, user_id, name):
            if isinstance(one.definition.trigger, GitTrigger):
                events = events_in(Provider.GITHUB, one.definition.trigger, headers, payload)
                count += bool(events)
                made += await self.record_events(one.id, events)
        return count, made

    async def _rename(self, user_id: str, name: str, payload: Any) -> None:
        """Store the new name of a renamed repository in its automations."""
        owner, short = check_repository(name, Provider.GITHUB)
        for kind in ("user", "organization"):
            owner = part_of(payload, f"changes.owner.from.{kind}.login") or owner
        short = part_of(payload, "changes.repository.name.from") or short
        before = f"{owner}/{short}"
        if before.lower() == name.lower():
            return

        async def body(tx: Transaction) -> None:
            for one in await AutomationTable.of_repository(tx, user_id, before):
                await rename(tx, one, name)

        await self._db.write(body)

    async def record_events(self, automation_id: str, events: Sequence[HostEvent]) -> list[str]:
        """Create a run for each new event of a git host, and return their ids.

        An event of a pull request counts only if the automation has opened that, or for its opening.
        """

        async def write(tx: Transaction) -> list[str]:
            found = await AutomationTable.find(tx, automation_id)
            if found is None or not found.is_enabled:
                return []
            works, made = await WorkTable.all_open(tx, automation_id), []
            runs = {
                event: new_run(found, key=f"git:{event.key}", source=Source.WEBHOOK)
                for event in events
            }
            # Each poll finds all earlier comments again.
            known = await RunTable.known(tx, automation_id, [run.key for run in runs.values()])
            for event, run in runs.items():
                work = find_meant(works, event)
                if event.kind is Kind.CLOSED and work is not None:
                    await WorkTable.schedule_check(tx, automation_id, now(), work_id=work.id)
                is_ours = (
                    work is not None
                    or event.kind is Kind.OPENED
                    or not (event.is_pull or event.kind is Kind.CHECK)
                )
                if event.kind is Kind.CLOSED or not is_ours or run.key in known:
                    continue
                sealed = self._vault.seal(
                    msgspec.json.encode(event), payload_context(automation_id)
                )
                if await self._add(tx, found, run, sealed):
                    made.append(run.id)
            return made

        return await self._db.write(write)

    async def runs(
        self, user_id: str, automation_id: str, *, limit: int, offset: int
    ) -> tuple[list[Run], dict[RunStatus, int]]:
        """Return a page of runs, the newest first, and the number of runs by status."""
        await self.get(user_id, automation_id)
        found = await RunTable.search(self._db, automation_id, limit=limit, offset=offset)
        return found, await RunTable.counts(self._db, automation_id)

    async def cancel(self, user_id: str, run_id: str) -> Run:
        """Cancel a pending or running run; raises NotFound, and Conflict if it has ended."""
        found = await RunTable.find(self._db, run_id)
        if found is None or found.user_id != user_id:
            raise NotFound("There is no such run")
        if found.status not in (RunStatus.PENDING, RunStatus.RUNNING):
            raise Conflict("The run is over")
        if found.status is RunStatus.RUNNING:
            await stop_run(self._messages, found)

        async def body(tx: Transaction) -> Run:
            end = RunEnd(status=RunStatus.CANCELLED, detail="Cancelled by its user")
            over = ended(found, end)
            work = await WorkTable.of_conversation(tx, found.conversation_id or "")
            if work is not None and not work.is_followed:
                await WorkTable.close(tx, work.conversation_id)
            if not await RunTable.change(tx, over, since=found.status):
                over = await RunTable.find(tx, run_id) or over
            if over.status is not RunStatus.CANCELLED:
                raise Conflict("The run is over, or has just begun")
            await note_effect(tx, over)
            tx.after_commit(self._wake)
            return over

        return await self._db.write(body)

    async def _add(
        self, tx: Transaction, automation: Automation, run: Run, payload: bytes | None = None
    ) -> bool:
        if await RunTable.count_waiting(tx, automation.id) >= MAX_WAITING:
            raise QuotaExceeded(
                f"{MAX_WAITING} of its runs are pending", retry_after_seconds=_RETRY_SECONDS
            )
        if not await RunTable.add(tx, run, payload):
            return False
        await AutomationTable.update(
            tx, msgspec.structs.replace(automation, last_triggered_at=run.created_at)
        )
        tx.after_commit(self._wake)
        return True

    def _seal(self, automation_id: str, secret: Secret) -> bytes:
        return self._vault.seal(secret.reveal().encode(), secret_context(automation_id))


def check_definition(
    definition: Definition, moment: datetime, *, may_be_past: bool = False
) -> datetime | None:
    """Validate a definition and return its next due time, or None; raises InvalidRequest."""
    if (definition.prompt is None) == (definition.command is None):
        raise InvalidRequest("The task is either a `prompt` or a `command`", loc=("body", "prompt"))
    check_prompt(definition.prompt or "")
    for repository in definition.repos or []:
        place = ("body", "repos", 0, "url")
        refuse_credentials(repository.url, loc=place)
        if "://" not in repository.url:
            check_repository(repository.url, repository.provider, loc=place)
        if repository.ref:
            check_branch(repository.ref, loc=("body", "repos", 0, "ref"))
    if definition.is_at_host:
        _check_git(definition)
    trigger = definition.trigger
    if isinstance(trigger, CronTrigger):
        return parse_cron(trigger.schedule, trigger.timezone).find_next(moment)
    if not isinstance(trigger, OnceTrigger):
        return None
    due, at = parse_time(trigger.at), ("body", "trigger", "at")
    if due is None:
        raise InvalidRequest("Input should be a valid datetime", loc=at, kind="datetime_parsing")
    if due <= moment and not may_be_past:
        raise InvalidRequest("This time is past", loc=at)
    return due if due > moment else None


def _check_git(definition: Definition) -> None:
    repository = definition.repository
    is_git = isinstance(definition.trigger, GitTrigger)
    what = "a trigger `git`" if is_git else "`pull_request`"
    if is_git and definition.pull_request:
        raise InvalidRequest("A trigger `git` does so already", loc=("body", "pull_request"))
    if definition.command is not None:
        raise InvalidRequest(f"With {what}, the task is a `prompt`", loc=("body", "command"))
    if repository is None or "://" in repository.url or repository.provider not in HOSTS:
        raise InvalidRequest(
            f"With {what}, give one repository as `owner/name`, and its `provider`: "
            + ", ".join(f"`{one}`" for one in HOSTS),
            loc=("body", "repos"),
        )
    if definition.pull_request and definition.concurrency is Concurrency.REPLACE:
        raise InvalidRequest(
            "With `pull_request`, a run cannot replace another: both could open one",
            loc=("body", "concurrency"),
        )
    if is_git and definition.concurrency is not Concurrency.QUEUE:
        raise InvalidRequest(
            "With a trigger `git`, the concurrency must be `queue`, so that no issue is skipped",
            loc=("body", "concurrency"),
        )


async def rename(tx: Transaction, automation: Automation, name: str) -> None:
    """Store the new name of an automation's repository, unless its repository was changed."""
    found = await AutomationTable.find(tx, automation.id)
    if found is None or found.definition.repos != automation.definition.repos:
        return
    [repository] = found.definition.repos or []
    moved = msgspec.structs.replace(repository, url=name)
    definition = msgspec.structs.replace(found.definition, repos=[moved])
    after = msgspec.structs.replace(found, definition=definition, updated_at=now())
    await AutomationTable.update(tx, after)
    subject = f"{found.id} {repository.url} {name}"
    await note_by_server(tx, found.user_id, "rename repository of automation", subject)


async def delete_old_runs(db: Database, age: timedelta) -> None:
    """Delete the runs that ended longer ago, in batches, so that other writes are not blocked."""
    before = now() - age
    while await db.write(lambda tx: RunTable.delete_old(tx, before, _DELETE_BATCH)):
        pass


def is_wanted(trigger: WebhookTrigger, headers: Mapping[str, str], payload: Any) -> bool:
    """Return whether a delivery has a kind and values that a trigger accepts."""
    named = next((headers[name] for name in _EVENT_HEADERS if name in headers), None)
    action = find_part(payload, ["type" if named is None else "action"])
    parts = [part for part in (named, action) if isinstance(part, str)]
    kind = ".".join(parts)
    if trigger.on is not None and not any(fnmatchcase(kind, one) for one in trigger.on):
        return False
    return all(
        as_text(find_part(payload, name.split("."))) == value
        for name, value in (trigger.when or {}).items()
    )


def _owned(found: Automation | None, user_id: str) -> Automation:
    if found is None or found.user_id != user_id:
        raise NotFound("There is no such automation")
    return found
