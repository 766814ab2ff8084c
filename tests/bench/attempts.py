"""How long many attempts of one task take to begin: forks of one conversation, and new ones.

`python -m tests.bench.attempts` prints both, in a server with the process backend as it is by default and
its fork server loaded. An attempt is READY when its start task says so, and told when its agent has its task.
"""

import asyncio
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import click

from tests.bench.part_agents import warm_server
from tests.live.client import LiveClient
from tests.live.installation import eventually

_PATH: Final = "/api/v1/attempts"
_TASKS: Final = "/api/v1/app-conversations/start-tasks/search"
_PATIENCE_SECONDS: Final = 240.0
_POLL_SECONDS: Final = 0.02
_BEGUN: Final = ("running", "finished", "failed", "cancelled")


@click.command()
@click.option("--count", default=8, help="Attempts that are begun at once.")
@click.option("--rounds", default=3, help="How often, of each kind.")
def main(count: int, rounds: int) -> None:
    """Print what they take."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_measure(Path(folder), count, rounds))


async def _measure(folder: Path, count: int, rounds: int) -> None:
    async with warm_server(folder) as (server, client):
        source = await client.start_conversation("Begin")
        await client.wait_for_execution(source, "finished")
        here = len(server.sandbox_dirs())
        for turn in range(rounds):
            for kind, more in (("forks", {"conversation_id": source}), ("new ones", {})):
                await eventually(
                    lambda: len(server.sandbox_dirs()) <= here, "those before are gone"
                )
                ready, told = await _begin(client, {"message": "Go on", "count": count, **more})
                click.echo(
                    f"{turn + 1}: {count} {kind}: READY in {ready:.2f} s, told in {told:.2f} s"
                )


async def _begin(client: LiveClient, order: dict[str, Any]) -> tuple[float, float]:
    """Return how long it took until all were READY, and until all agents had their task."""
    made = (await client.post(_PATH, json=order)).json()
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while any(one["status"] not in _BEGUN for one in made["attempts"]):
            await asyncio.sleep(_POLL_SECONDS)
            made = (await client.get(f"{_PATH}/{made['id']}")).json()
    failed = [one["detail"] for one in made["attempts"] if one["started_at"] is None]
    if failed:
        raise click.ClickException(f"not begun: {failed}")
    ready = []
    for one in made["attempts"]:
        query = {"conversation_id__eq": one["conversation_id"]}
        [task] = (await client.get(_TASKS, params=query)).json()["items"]
        ready.append(_moment(task["stages"][-1]["started_at"]))
    told = [_moment(one["started_at"]) for one in made["attempts"]]
    began = _moment(made["created_at"])
    await client.delete(f"{_PATH}/{made['id']}")
    return (max(ready) - began).total_seconds(), (max(told) - began).total_seconds()


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


if __name__ == "__main__":
    main()
