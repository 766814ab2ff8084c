"""At which host a model is, by its name and its base URL."""

import msgspec
import pytest

from agentsvc.config.sandboxes import SandboxesConfig
from agentsvc.config.schema import GitConfig
from agentsvc.domain.agent_options import Llm
from agentsvc.models.hosts import host_of
from agentsvc.plugin.backend import Network, Spec
from agentsvc.sandboxes.orders import with_local_hosts, with_models
from agentsvc.settings.fields import Settings


@pytest.mark.parametrize(
    ("model", "base_url", "host"),
    [
        ("openai/gpt-5", None, "api.openai.com:443"),
        ("gpt-5", "", "api.openai.com:443"),
        ("claude-sonnet-4-5", None, "api.anthropic.com:443"),
        ("anthropic/claude-opus-4", None, "api.anthropic.com:443"),
        ("openhands/claude-sonnet-4", None, "llm-proxy.app.all-hands.dev:443"),
        ("ollama/llama3", None, "localhost:11434"),
        ("openai/x", "http://127.0.0.1:4000/v1", "127.0.0.1:4000"),
        ("openai/x", "https://Models.Corp.Example/v1", "models.corp.example:443"),
        ("openai/x", "http://[fd00::1]:8080", "[fd00::1]:8080"),
        ("litellm_proxy/x", None, ""),
        ("bedrock/x", None, ""),
        ("something", None, ""),
        ("openai/x", "no url", ""),
        ("openai/x", "http://h:99999", ""),
        ("openai/x", "http://[", ""),
    ],
)
def test_the_host_of_a_model_is_known_where_it_can_be(
    model: str, base_url: str | None, host: str
) -> None:
    assert host_of(model, base_url) == host


def test_a_spec_reaches_every_model_of_its_user_once() -> None:
    settings = Settings(
        llm_model="openai/gpt-5",
        llm_profiles={
            "near": Llm(model="openai/x", base_url="http://127.0.0.1:4000"),
            "same": Llm(model="gpt-5-mini"),
            "unknown": Llm(model="bedrock/x"),
            "odd": Llm(model="openai/x", base_url="http://a b:80/"),
            "odder": Llm(model="openai/x", base_url="http://300.1.1.1/"),
        },
    )
    spec = with_models(Spec(id="x"), settings, of_admin=True)
    assert (spec.reaches, spec.models) == ((), ("api.openai.com:443", "127.0.0.1:4000"))
    assert with_models(Spec(id="x"), None).models == ()


@pytest.mark.parametrize(
    ("known", "is_known"),
    [
        ("127.0.0.1:4000", True),
        ("127.0.0.0/8:4000", True),
        ("127.0.0.1", False),
        ("127.0.0.1:4001", False),
        ("models.corp.example:4000", False),
    ],
)
def test_only_what_the_operator_lists_may_be_anywhere(known: str, *, is_known: bool) -> None:
    settings = Settings(llm_model="openai/x", llm_base_url="http://127.0.0.1:4000/v1")
    spec = with_models(Spec(id="x"), settings, [known], of_admin=True)
    named = ("127.0.0.1:4000",)
    assert (spec.reaches, spec.models) == ((named, ()) if is_known else ((), named))


@pytest.mark.parametrize(
    ("key", "section"), [("model_hosts", SandboxesConfig), ("private_hosts", GitConfig)]
)
def test_a_listed_host_that_cannot_be_meant_is_refused_with_its_place(
    key: str, section: type
) -> None:
    with pytest.raises(msgspec.ValidationError, match="cannot be allowed"):
        msgspec.convert({key: ["a b"]}, section)


@pytest.mark.parametrize("host", ["localhost:11434", "127.0.0.1:5432", "127.9.9.9:80", "[::1]:80"])
def test_a_model_on_this_machine_is_for_administrators_and_where_it_is_listed(host: str) -> None:
    settings = Settings(llm_model="openai/x", llm_base_url=f"http://{host}/v1")
    bare = Spec(id="x")
    assert with_models(bare, settings) == bare
    assert with_models(bare, settings, of_admin=True).models == (host,)
    assert with_models(bare, settings, [host]).reaches == (host,)


def test_an_open_sandbox_reaches_git_hosts_of_this_machine_that_the_operator_lists() -> None:
    listed = ["127.0.0.1:3000", "localhost:80", "git.corp.example:443", "10.0.0.0/8", "127.0.0.1"]
    reached = with_local_hosts(Spec(id="x"), listed).reaches
    assert reached == ("127.0.0.1:3000", "localhost:80")
    closed = Spec(id="x", network=Network.NONE)
    assert with_local_hosts(closed, listed) == closed
