"""How long it takes from a mention at a git host to the first event of the agent that it calls."""

from pathlib import Path
from typing import Any, Final

from agentsvc.base.values import monotonic
from tests.bench.figures import Figure, Section, Target
from tests.bench.part_agents import begin_alone, is_of_agent, warm_server
from tests.bench.sizes import Sizes
from tests.http.gateway.steps import until
from tests.http.v1.test_issues_to_pulls import Loop, open_loop
from tests.issue_hosts import BOT, IssueHost
from tests.live.client import LiveClient
from tests.live.installation import Installation

_FIRST_EVENT: Final = Target(most=2.0)


async def measure(sizes: Sizes, folder: Path) -> Section:
    """Mention the account below an issue, and begin plainly, in turns."""
    begun, told, floor = [], [], []
    async with (
        warm_server(folder) as (server, client),
        IssueHost("github", folder / "host") as host,
    ):
        loop = await open_loop(client, host, prompt="say that you are there", keep_alive=False)
        for _ in range(sizes.agents + 1):
            floor.append((await begin_alone(client)).event_seconds)
            begin_seconds, event_seconds = await _mention(server, client, loop)
            begun.append(begin_seconds)
            told.append(event_seconds)
        assert host.unexpected == []
    return Section(
        title="Mentions",
        about="`agentsvc serve` as for real agent servers above, and a GitHub in the process that measures: from"
        " the signed delivery of a mention to the first stored event of the agent's own, with all that is asked of"
        " the host before (issue, comments, right to write, repository). The floor is a conversation without a"
        " repository that is started plainly. They take turns; the first of each does not count.",
        figures=(
            Figure(name="delivery to the conversation", unit="s", ours=tuple(begun[1:])),
            Figure(
                name="delivery to the agent's first event",
                unit="s",
                ours=tuple(told[1:]),
                floor=tuple(floor[1:]),
                target=_FIRST_EVENT,
            ),
        ),
    )


async def _mention(server: Installation, client: LiveClient, loop: Loop) -> tuple[float, float]:
    """Return after what time the conversation was there, and an event of its agent."""
    comment = loop.host.say(f"@{BOT} are you there?", "ada")
    began = monotonic()
    made = (await loop.deliver("said", comment=comment)).json()["runs_created"]

    run: dict[str, Any] = {}

    async def is_begun() -> bool:
        [found] = [one for one in await loop.runs() if [one["id"]] == made]
        run.update(found)
        return bool(found["conversation_id"])

    async def is_over() -> bool:
        await is_begun()
        return bool(run["status"] != "RUNNING")

    await until(is_begun)
    begin_seconds = monotonic() - began
    conversation_id = run["conversation_id"]
    await client.until(conversation_id, lambda found: any(map(is_of_agent, found)))
    event_seconds = monotonic() - began
    await until(is_over)
    assert run["status"] == "COMPLETED", run
    # Its sandbox goes with it, so that the next mention begins anew.
    await until(lambda: not server.sandbox_dirs())
    return begin_seconds, event_seconds
