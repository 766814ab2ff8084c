"""Each step to the first pull request does what its page says, for every host, with a real agent server."""

import os
import re
import sys
from pathlib import Path

import pytest

from tests.docs.pages import blocks_of
from tests.github_app_host import APP, AppHost
from tests.issue_hosts import BOT, GOOD, IssueHost
from tests.live.conftest import MakeInstallation
from tests.live.installation import Installation, eventually
from tests.live.scripts import run
from tests.live.shell import shell

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="session"),
]

WORK = run("echo fixed >fix.txt && git add fix.txt && git commit -qm Fix") + "\n"
STEPS = {
    kind: [block.code for block in blocks_of("how-to/first-pull-request") if block.name == kind]
    for kind in ("github", "github-app", "gitlab", "forgejo", "bitbucket")
}
PUBLIC = {
    "github": ("https://api.github.com", "/api/v3", "github.com"),
    "gitlab": ("https://gitlab.com/api/v4", "/api/v4", "gitlab.com"),
    "forgejo": ("https://codeberg.org/api/v1", "/api/v1", "codeberg.org"),
    "bitbucket": ("https://api.bitbucket.org/2.0", "/2.0", "bitbucket.org"),
}
"""Where the API of each public host is, and of one of one's own, and what the host is called."""


def here(code: str, host: IssueHost) -> str:
    """Return a step with what a reader puts in: the repository, the token, the host."""
    api, own, name = PUBLIC[host.kind]
    code = re.sub(r"TOKEN=\S*…", f"TOKEN={GOOD}", code)
    code = code.replace("owner/name", "octo/demo").replace("APP_ID=123456", f"APP_ID={APP}")
    return code.replace(api, host.url + own).replace(name, host.url)


async def follow(code: str, place: Path, installation: Installation) -> str:
    """Run steps in a directory, and return what they print."""
    return await shell(
        code,
        cwd=place,
        PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        AGENTSVC_URL=installation.url,
        AGENTSVC_API_KEY=installation.key.reveal(),
        PUBLIC_URL=installation.url,
    )


@pytest.mark.parametrize("kind", PUBLIC)
async def test_the_steps_lead_to_a_pull_request(
    make_installation: MakeInstallation, tmp_path: Path, kind: str
) -> None:
    installation = await make_installation()
    async with IssueHost(kind, tmp_path / "git") as host:
        host.writers.add(BOT)
        host.issue["text"] = WORK
        assert len(STEPS[kind]) == 4
        code = "\n".join(here(step, host) for step in STEPS[kind])
        output = await follow(code, tmp_path, installation)
        assert "completed" in output.splitlines()[-1], output
        assert (len(host.hooks), len(host.pulls), host.unexpected) == (1, 1, [])
        [branch] = set(await host.branches()) - {"main"}
        assert await host.file(branch, "fix.txt") == "fixed\n"


async def test_the_steps_lead_to_a_pull_request_of_a_github_app(
    make_installation: MakeInstallation, tmp_path: Path
) -> None:
    installation = await make_installation()
    client = installation.client()
    async with AppHost(tmp_path / "git") as host:
        host.issue["text"] = WORK
        (tmp_path / "app.pem").write_text(host.private_key)
        *steps, wait = (here(step, host) for step in STEPS["github-app"])
        output = await follow("\n".join(steps), tmp_path, installation)
        # What the page has people do at GitHub: the webhook, and a label.
        [address] = re.findall(rf"{installation.url}(/\S+/events/\w+)$", output, re.MULTILINE)[:1]
        host.label("agent", "ada")
        secret = (tmp_path / "hook.txt").read_text().strip()
        headers, body = host.delivery("labelled", secret, by="ada")
        answer = await client.post(address, data=body, headers=headers)
        assert answer.json()["matched"] == 1, answer.text
        output = await follow(wait, tmp_path, installation)
        assert "completed" in output.splitlines()[-1], output
        await eventually(lambda: host.pulls, "the pull request")
        assert (host.refused, host.unexpected) == ([], [])
