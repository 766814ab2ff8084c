"""From an issue to a pull request with a real agent server and a real git, and a server that is killed."""

from pathlib import Path

import pytest

from tests.http.v1.test_issues_to_pulls import open_loop
from tests.issue_hosts import BOT, GOOD, IssueHost
from tests.live.conftest import MakeInstallation
from tests.live.events import outputs
from tests.live.installation import eventually
from tests.live.scripts import run
from tests.live.test_repositories import files_with

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="session"),
]

WORK = run(
    "echo fixed >fix.txt && git add fix.txt && git commit -qm Fix",
    "git status --short --branch; git push origin HEAD:main || echo refused",
)


async def test_an_agent_mends_an_issue_and_goes_on_with_a_review(
    make_installation: MakeInstallation, tmp_path: Path
) -> None:
    installation = await make_installation()
    client = installation.client()
    async with IssueHost("github", tmp_path / "git") as host:
        loop = await open_loop(client, host, prompt=WORK)
        # The comment and the pull request are made, and the server is killed before it hears of it.
        host.lose_answers = 2
        assert (await loop.begin()).status == 200
        await eventually(host.own_comments, "the comment")
        await installation.kill()
        await installation.start()
        await eventually(lambda: host.pulls, "the pull request")
        await installation.kill()
        await installation.start()
        [first] = await loop.wait("COMPLETED")
        assert (len(host.pulls), len(host.own_comments()), host.lose_answers) == (1, 1, 0)
        [branch] = set(await host.branches()) - {"main"}
        assert await host.file(branch, "fix.txt") == "fixed\n"
        said = outputs(await client.events(first["conversation_id"]))
        assert said[-1].endswith("refused")

        text = run("echo renamed >fix.txt && git commit -qam Rename") + "\n"
        asked = host.say(text, "ada", on_pull=True, inline=True)
        await loop.deliver("reviewed", comment=asked)
        [second, _] = await loop.wait("COMPLETED", "COMPLETED")
        assert second["conversation_id"] == first["conversation_id"]
        assert await host.file(branch, "fix.txt") == "renamed\n"

        seen = await client.conversation(first["conversation_id"])
        roots = [installation.sandbox_dir(seen["sandbox_id"]), *installation.temp_dirs()]
        assert files_with(GOOD, roots) == []
        assert GOOD not in installation.log
        host.pulls[0]["state"] = "closed"
        await loop.deliver("closed")
        await eventually(lambda: not installation.sandbox_dirs(), "the end of the sandbox")
        assert host.unexpected == []
        assert f"@{BOT}" not in host.own_comments()[0]
