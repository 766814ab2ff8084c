"""Every template as it is, by the command line, with a real agent server and a real git."""

import json
import sys
import tomllib
from pathlib import Path

import pytest

from agentsvc.models.hosts import host_of_url
from agentsvc.testing.llm import ScriptedModel
from tests.http.v1.test_issues_to_pulls import Loop
from tests.issue_hosts import BOT, GOOD, IssueHost
from tests.live.conftest import MakeInstallation
from tests.live.events import outputs
from tests.live.installation import Installation, eventually
from tests.live.scripts import DONE, run
from tests.live.shell import shell

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="session"),
]

BASE = "/api/automation/v1"
SCRIPT = "\n" + run("ls; git diff origin/main...HEAD") + "\n"
COMMIT = "\n" + run("echo 2 >version && git add version && git commit -qm Fresh") + "\n"


async def create(installation: Installation, host: IssueHost, place: Path, template: str) -> Loop:
    """Make an automation of a template as its page says, and return it with the secret of its webhook."""
    client = installation.client()
    tokens = {host.kind: {"token": GOOD, "host": host.url}}
    await client.save_settings(secrets_store={"provider_tokens": tokens})
    agentsvc = str(Path(sys.executable).parent / "agentsvc")
    text = await _run(installation, f"{agentsvc} automations template {template}")
    assert tomllib.loads(text)["repos"][0]["url"] == "owner/name"
    if template == "dependencies":
        # Nobody tells the scripted model what to do otherwise: nothing comes from outside.
        text = text.replace('prompt = """', f'prompt = """{COMMIT}', 1)
    file = place / "automation.toml"
    file.write_text(text.replace("your-account", BOT))
    create = f"{agentsvc} automations create {file} --repository octo/demo --provider {host.kind}"
    await _run(installation, f"{create} --output {place / 'secret'}")
    made = (await client.get(BASE)).json()["automations"][0]
    secret = place / "secret"
    return Loop(
        client, host, {**made, "secret": secret.read_text().strip() if secret.exists() else ""}
    )


async def _run(installation: Installation, code: str) -> str:
    key = installation.key.reveal()
    return await shell(code, AGENTSVC_URL=installation.url, AGENTSVC_API_KEY=key)


@pytest.mark.parametrize("kind", ["github", "gitlab"])
@pytest.mark.parametrize("template", ["review", "triage", "answer"])
async def test_an_agent_reads_and_the_server_writes_what_it_says(
    make_installation: MakeInstallation,
    model: ScriptedModel,
    tmp_path: Path,
    template: str,
    kind: str,
) -> None:
    # Who opens something must not come near the model's key.
    installation = await make_installation(
        AGENTSVC_SANDBOXES__MODEL_HOSTS=json.dumps([host_of_url(model.url)])
    )
    async with IssueHost(kind, tmp_path / "git") as host:
        host.issue["text"] = SCRIPT
        await host.open_pull(SCRIPT, changed="yes\n")
        loop = await create(installation, host, tmp_path, template)
        is_pull = template == "review"
        # The comment is written, and the server is killed before it hears of it.
        host.lose_answers = 1
        if template == "answer":
            await loop.deliver("said", comment=host.say(f"@{BOT} How does it work?", "ada"))
        else:
            await loop.deliver("opened", is_pull=is_pull)
        await eventually(lambda: host.own_comments(on_pull=is_pull), "the comment")
        await installation.kill()
        await installation.start()
        [done] = await loop.wait("COMPLETED")
        [comment] = host.own_comments(on_pull=is_pull)
        assert f"> {DONE}" in comment
        [printed] = outputs(await installation.client().events(done["conversation_id"]))
        assert printed.startswith("README.md")
        assert ("+yes" in printed) == is_pull
        assert (len(host.pulls), host.unexpected) == (1, [])
        assert set(await host.branches()) == {"main", "topic"}
        if template != "answer":
            await eventually(lambda: not installation.sandbox_dirs(), "the end of the sandbox")


async def test_updated_dependencies_become_a_draft_pull_request(
    make_installation: MakeInstallation, tmp_path: Path
) -> None:
    installation = await make_installation()
    async with IssueHost("github", tmp_path / "git") as host:
        loop = await create(installation, host, tmp_path, "dependencies")
        host.lose_answers = 1
        await loop.client.post(f"{BASE}/{loop.made['id']}/dispatch")
        await eventually(lambda: host.pulls, "the pull request")
        await installation.kill()
        await installation.start()
        await loop.wait("COMPLETED")
        [pull] = host.pulls
        assert pull["sent"]["draft"] is True
        assert await host.file(pull["sent"]["head"], "version") == "2\n"
        assert host.unexpected == []
        await eventually(lambda: not installation.sandbox_dirs(), "the end of the sandbox")
