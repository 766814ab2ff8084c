"""The mapping of version 1 where no fake backend leads: further ports, public URLs."""

from collections.abc import Sequence

from agentsvc.base.values import Secret, now
from agentsvc.http.urls import Links
from agentsvc.http.v1.sandboxes import from_sandbox
from agentsvc.plugin.backend import Endpoint, Phase, Spec
from agentsvc.sandboxes import Sandbox, Target

KEY = "the+key"


def _sandbox(endpoints: Sequence[Endpoint], phase: Phase = Phase.RUNNING) -> Sandbox:
    moment = now()
    return Sandbox(
        id="one",
        user_id="somebody",
        spec_id="spec",
        spec=Spec(id="spec"),
        backend="fake",
        target=Target.RUNNING,
        phase=phase,
        reason="",
        exit_code=None,
        handle=None,
        endpoints=tuple(endpoints),
        working_dir="/workspace/my project",
        facts={},
        session_key=Secret(KEY),
        ready_by=moment,
        created_at=moment,
        updated_at=moment,
    )


LINKS = Links(base="https://agents.example/x")
AGENT = Endpoint(name="agent", port=8000, url="http://127.0.0.1:41000")


def test_every_port_has_the_name_that_clients_know() -> None:
    others = [
        Endpoint(name="vscode", port=8001, url="http://127.0.0.1:41001/"),
        Endpoint(name="worker_1", port=8011, url="http://127.0.0.1:41002"),
    ]
    info = from_sandbox(_sandbox([AGENT, *others]), LINKS)
    assert info.exposed_urls is not None
    assert [(each.name, each.port) for each in info.exposed_urls] == [
        ("AGENT_SERVER", 8000),
        ("VSCODE", 8001),
        ("WORKER_1", 8011),
    ]
    base = f"https://agents.example/x/sandboxes/{info.id}"
    assert [each.url for each in info.exposed_urls] == [
        f"{base}/agent",
        f"{base}/vscode/?tkn=the%2Bkey&folder=%2Fworkspace%2Fmy%20project",
        f"{base}/worker_1",
    ]


def test_the_agent_server_has_an_address_without_a_path_where_the_server_has_none() -> None:
    info = from_sandbox(_sandbox([AGENT]), Links(base="https://agents.example:8443"))
    assert info.exposed_urls is not None
    assert [each.url for each in info.exposed_urls] == ["https://agents.example:8443"]


def test_a_client_is_sent_to_the_server_while_the_sandbox_runs() -> None:
    agent = Endpoint(name="agent", port=8000, url="http://a", public_url="https://b.example/x/")
    sandbox = _sandbox([agent])
    url = f"https://agents.example/x/sandboxes/{sandbox.id}/agent/api/conversations/c1"
    assert LINKS.conversation(sandbox, "c1") == url
    assert LINKS.conversation(_sandbox([agent], Phase.PAUSED), "c1") is None
    assert LINKS.conversation(None, "c1") is None
    assert LINKS.editor(sandbox, "/x") is None
