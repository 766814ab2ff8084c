"""A conversation whose sandbox has no network and every limit there is."""

import json
from urllib.parse import urlsplit

import pytest
from process import groups

from agentsvc.testing.llm import ScriptedModel
from tests.live.conftest import MakeInstallation, unavailable
from tests.live.events import outputs
from tests.live.scripts import run

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="session"),
]

FIELDS = {"cpus": 2.0, "memory_bytes": 2147483648, "pids": 500}


async def test_a_conversation_without_a_network_runs_to_its_end(
    make_installation: MakeInstallation, model: ScriptedModel
) -> None:
    limits: dict[str, float] = dict(FIELDS) if groups.find().limits() >= FIELDS.keys() else {}
    limits |= {"disk_bytes": 1073741824, "open_files": 4096}
    own = await make_installation(
        AGENTSVC_SPECS__FENCED__BACKEND="process",
        AGENTSVC_SPECS__FENCED__NETWORK="none",
        AGENTSVC_SANDBOXES__MODEL_HOSTS=json.dumps([urlsplit(model.url).netloc]),
        AGENTSVC_SANDBOXES__DEFAULT_SPEC="fenced",
        AGENTSVC_SPECS__FENCED__LIMITS=json.dumps(limits),
    )
    client = own.client()
    commands = (
        "ulimit -n",
        "curl -sS -m 20 -o /dev/null -w '%{http_code}\\n' http://example.org/",
        "curl -sS -m 20 --noproxy '*' http://example.org/ || echo nothing",
        "exec 3<>/dev/tcp/1.1.1.1/80 || echo nothing",
    )
    conversation_id = await client.start_conversation(run(*commands))
    seen = await client.wait_for_execution(conversation_id, "finished")
    said = outputs(await client.events(conversation_id))
    assert said[:2] == ["4096", "403"]
    assert all(text.endswith("nothing") for text in said[2:])
    sandbox = await client.sandbox(seen["sandbox_id"])
    assert sandbox is not None
    if sandbox["isolation"] != "bubblewrap":
        unavailable("bubblewrap does not work here")
    assert set(sandbox["enforced_limits"]) == set(limits)
    assert sandbox["status_detail"] is None
