"""An issue becomes one pull request, however its events are delivered and the server is killed.

Each issue is in a repository of its own at one GitHub. A sender delivers that it got a label, and that it is
spoken about, out of order, again, long afterwards, and forged, while the server is killed again and again.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import aiohttp
from aiohttp import web

from tests.committing_agent import CommittingAgent
from tests.http.gateway.steps import until
from tests.issue_hosts import BOT, GOOD, IssueHost
from tests.resilience.book import Figure, Ground, Half, Outcome, Row, shares, zero
from tests.resilience.server import Server, serving

KILLS: Final = 40
ISSUES: Final = 100
AGAIN: Final = 4
"""How often each of the two events of an issue is delivered; as many more are forged."""
_BASE: Final = "/api/automation/v1"
_SETTLE_SECONDS: Final = 1200.0
_OPEN: Final = "SELECT COUNT(*) FROM plugin_automations_runs WHERE status IN ('PENDING', 'RUNNING')"
_RUNS: Final = """
    SELECT a.id, r.key, r.status, r.error_detail
    FROM plugin_automations_runs AS r
    JOIN plugin_automations_automations AS a ON a.id = r.automation_id
"""


class Worker(CommittingAgent):
    """Commits one file to each repository."""

    def __init__(self, room: Path) -> None:
        super().__init__(room)
        self._done: set[str] = set()

    def take_files(self, repository: str) -> dict[str, Any]:
        if repository in self._done:
            return {}
        self._done.add(repository)
        return {"fix.txt": repository}


class Hosts:
    """Many repositories, `octo/demo-0` and so on, at one GitHub."""

    def __init__(self, hosts: list[IssueHost]) -> None:
        self.all = hosts
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        path = request.rel_url.raw_path
        number = path.partition("octo/demo-")[2].partition("/")[0].partition(".")[0]
        if not number:
            return await self.all[0].handle(request)
        host = self.all[int(number)]
        meant = str(request.rel_url).replace(f"demo-{number}", "demo", 1)
        inner = request.clone(rel_url=meant)
        return await (host.serve_git if path.startswith("/octo/") else host.handle)(inner)


@contextlib.asynccontextmanager
async def open_hosts(directory: Path, count: int) -> AsyncIterator[Hosts]:
    """Serve so many repositories."""
    async with contextlib.AsyncExitStack() as opened:
        made = []
        for number in range(count):
            host = IssueHost("github", directory / str(number))
            made.append(await opened.enter_async_context(host))
            host.name = f"octo/demo-{number}"
        hosts = Hosts(made)
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", hosts.handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        opened.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        hosts.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield hosts


class Issue:
    """One issue with its two events, and what delivers them."""

    def __init__(self, server: Server, host: IssueHost, made: dict[str, Any]) -> None:
        self._server = server
        self.host, self.made = host, made
        self._client = server.client_with(None)
        host.label("agent", "ada")
        self._said = host.say(f"@{BOT} please", "ada")
        self.runs = 0

    async def deliver(self, number: int, *, forged: bool = False) -> None:
        """Deliver one of its events until that is acknowledged."""
        what, about = "said", dict[str, Any](comment=self._said)
        if forged:
            about = {"comment": {**self._said, "id": 10_000 + number}}
        elif number % 2 == 0:
            what, about = "labelled", {"by": "ada"}
        secret = "whsec_Zm9yZ2Vk" if forged else self.made["secret"]
        headers, body = self.host.delivery(what, secret, **about)
        while True:
            with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
                path = self.made["events_path"]
                answer = await self._client.post(path, data=body, headers=headers)
                if answer.status == (401 if forged else 200):
                    self.runs += 0 if forged else len(answer.json()["runs_created"])
                    return
                assert answer.status >= 500, answer.text
            await asyncio.sleep(0.05)


async def run(ground: Ground) -> Outcome:
    kills, count = ground.count(KILLS, least=3), ground.count(ISSUES, least=4)
    sent = [
        (issue, number, forged)
        for issue in range(count)
        for number in range(2 * AGAIN)
        for forged in (False, True)
    ]
    ground.chance.shuffle(sent)
    agent = Worker(ground.place("agent"))
    async with (
        open_hosts(ground.place("hosts"), count) as hosts,
        serving(ground.place("server"), agent=agent) as server,
    ):
        tokens = {"github": {"token": GOOD, "host": hosts.url}}
        await server.client.save_settings(secrets_store={"provider_tokens": tokens})
        issues = [Issue(server, host, await _create(server, host)) for host in hosts.all]
        at = 0
        for share in shares(len(sent), kills):
            some, at = sent[at : at + share], at + share
            sending = asyncio.get_running_loop().create_task(_send(issues, some))
            await asyncio.sleep(ground.chance.uniform(0, 2.0))
            await server.kill()
            await server.start()
            await sending
        await until(lambda: server.query(_OPEN)[0][0] == 0, time_limit=_SETTLE_SECONDS)
        made = sum(issue.runs for issue in issues)
        await _send(issues, [one for one in sent if one[1] < 2])
        late = sum(issue.runs for issue in issues) - made
        problems = await _compare(server, issues)
        faults = await asyncio.to_thread(server.faults)
    return Outcome(
        did=(
            "issues got a label and were spoken about; each event was delivered out of order, again, after"
            " the end, and forged, while the server was killed; runs and pull requests counted in the end"
        ),
        figures=(
            Figure(what="kills", value=kills, at_least=kills),
            Figure(what="deliveries", value=len(sent), at_least=len(sent)),
            Figure(
                what="issues with one pull request", value=count - len(problems), at_least=count
            ),
            Figure(what="runs of old deliveries", value=late, at_most=0),
            zero("faults of `integrity_check`", faults),
        ),
        problems=(*problems, *faults),
    )


async def _create(server: Server, host: IssueHost) -> dict[str, Any]:
    body = {
        "name": host.name,
        "prompt": "Mend {{payload.issue.title}}",
        "trigger": {"type": "git", "mention": BOT},
        "repos": [{"url": host.name, "provider": "github"}],
    }
    answer = await server.client.post(_BASE, json=body)
    assert answer.status == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def _send(issues: list[Issue], sent: list[tuple[int, int, bool]]) -> None:
    for issue, number, forged in sent:
        await issues[issue].deliver(number, forged=forged)


async def _compare(server: Server, issues: list[Issue]) -> list[str]:
    """Return what is wrong with each issue, by the database and by what the host has."""
    rows = await asyncio.to_thread(server.query, _RUNS)
    problems = []
    for issue in issues:
        found = [row[1:] for row in rows if row[0] == issue.made["id"]]
        keys = Counter(key.partition(":label")[0].partition(":comment")[0] for key, *_ in found)
        seen = {
            "runs": keys == {"git:issue:7": 2},
            "ends": all(status in ("COMPLETED", "SKIPPED") for _, status, _ in found),
            "one completed": any(status == "COMPLETED" for _, status, _ in found),
            "pull requests": len(issue.host.pulls) == 1,
            "comments": len(issue.host.own_comments()) == 1,
            "branches": len(await issue.host.branches()) == 2,
            "requests": issue.host.unexpected == [],
        }
        if wrong := [name for name, is_right in seen.items() if not is_right]:
            problems.append(f"{issue.host.name}: {wrong} {found} {issue.host.unexpected}")
    return problems


ROW: Final = Row(
    name="issues",
    half=Half.LOST,
    promise="An issue becomes one pull request, whatever is delivered and however it is killed",
    run=run,
)
