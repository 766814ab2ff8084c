"""The application of a fork is what the agent server itself makes of the environment.

When one of these fails after an upgrade of the agent server, FastAPI or uvicorn, `plugins/process/preload.py`
relies on something that has changed: each message says on what. Setting `zygote = false` in
`[backends.process]` is the way out until it is mended.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import process
import pytest
from process.specs import DEFAULT_SPEC

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

PROGRAM = """
import json, logging, os, sys
from pathlib import Path

def told():
    api = sys.modules["openhands.agent_server.api"]
    app, config = api.api, api.api.state.config
    document = app.openapi()
    # In which order they are does not count: no two of them match the same path.
    document["paths"] = dict(sorted(document["paths"].items()))
    return {
        "document": document,
        "sockets": sorted(
            context.original_route.path
            for route in app.routes
            for context in getattr(route, "effective_route_contexts", list)()
            if "ebSocket" in type(context.original_route).__name__
        ),
        "middleware": [[one.cls.__name__, str(one.kwargs)] for one in app.user_middleware],
        "handlers": sorted(map(str, app.exception_handlers)),
        "config": json.loads(config.model_dump_json()),
        "key": config.secret_key.get_secret_value(),
        "default config is the same": api.get_default_config() is config,
        "service": type(api.get_default_bash_event_service()).__name__,
        "bash events": str(api.get_default_bash_event_service().bash_events_dir),
    }

def asked_for_tools():
    # What is imported to say what tools there are.
    before = set(sys.modules)
    sys.modules["openhands.agent_server.server_details_router"].ServerInfo(uptime=0, idle_time=0)
    return sorted(set(sys.modules) - before)

own = [name for name in os.environ if name.startswith("OH_") and name != "OH_ENABLE_BROWSER"]
mine = {name: os.environ.pop(name) for name in own}
from process import preload
preload.load()
threads = len(list(Path("/proc/self/task").iterdir()))
os.environ.update(mine)
sys.stdout.flush()
if os.fork() == 0:
    preload.set_up()
    imported = asked_for_tools()
    fork = told()
    api = sys.modules["openhands.agent_server.api"]
    api.api = api.create_app()
    handlers = [type(one).__name__ for one in logging.getLogger().handlers]
    print(json.dumps([threads, imported, handlers, fork, told()]), flush=True)
    os._exit(0)
os.wait()
"""


LATER = """
import json, sys
from pathlib import Path
from process import preload

preload.load()
import litellm
from openhands.tools.browser_use import impl

encoding = sys.modules["litellm.litellm_core_utils.default_encoding"].encoding
before = [name for name in ("browser_use", "cdp_use") if name in sys.modules] + list(vars(encoding))
tokens = litellm.token_counter(model="openai/gpt-4o", text="hello you")
browser = impl.CustomBrowserUseServer(session_timeout_minutes=7)
closing = impl.BrowserToolExecutor.__new__(impl.BrowserToolExecutor)
import asyncio
asyncio.run(closing.cleanup())
unused = "browser_use" in sys.modules
inject = browser.set_inject_scripts.__func__
real = sys.modules["openhands.tools.browser_use.server"].CustomBrowserUseServer
# Importing it makes a directory, which has a fixed place.
profile = sys.modules["browser_use.browser.session"].DEFAULT_BROWSER_PROFILE
Path(profile.downloads_path).rmdir()
print(json.dumps([before, tokens, unused, inject is real.set_inject_scripts]), flush=True)
"""


def run(directory: Path) -> tuple[int, list[str], list[str], dict[str, Any], dict[str, Any]]:
    """Return how many threads there were before the fork, what was imported after it to say what tools
    there are, what writes its log, and what the application is in it and anew.
    """
    env = {
        "OH_ENABLE_BROWSER": "false",
        "OH_SESSION_API_KEYS_0": "key-of-the-sandbox",
        "OH_SECRET_KEY": "secret-of-the-sandbox",
        "OH_ALLOW_CORS_ORIGINS_0": "https://example.org",
        "OH_WEB_URL": "https://example.org/below",
        "OH_BASH_EVENTS_DIR": str(directory / "events"),
    }
    threads, imported, handlers, fork, plain = told_by(PROGRAM, directory, env)
    return threads, imported, handlers, fork, plain


def told_by(program: str, directory: Path, more: dict[str, str]) -> list[Any]:
    """Return what a program that loads the agent server ahead has said last."""
    env = {
        **DEFAULT_SPEC.env,
        "PYTHONPATH": str(Path(process.__file__).parent.parent),
        "PATH": os.environ["PATH"],
        "HOME": str(directory),
        "TMPDIR": str(directory),
        "LOG_LEVEL": "ERROR",
        **more,
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=env,
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"the agent server cannot be loaded ahead: {done.stderr}"
    assert done.stdout, f"the agent server cannot be set up in a fork: {done.stderr}"
    told: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def test_a_fork_is_the_agent_server_of_its_environment(tmp_path: Path) -> None:
    threads, imported, handlers, fork, plain = run(tmp_path)
    assert threads == 1, "a package starts a thread when it is imported: nothing can be forked"
    assert imported == [], "modules for the tools are not loaded ahead: see `preload._LATER`"
    assert handlers == ["StreamHandler"], (
        "the agent server adds a handler though there is one: its lines are laid out for a terminal"
    )
    assert fork["key"] == "secret-of-the-sandbox", (
        "the configuration was made before the fork: `get_default_config` is not asked where it was"
    )
    assert fork["document"]["paths"].keys() == plain["document"]["paths"].keys(), (
        "routes are missing: they are not added by `include_router`, or not kept in `app.routes`"
    )
    assert fork == plain, "something else of the application was made before the fork"
    assert fork["bash events"] == str(tmp_path / "events")


def test_what_is_large_and_rarely_used_is_loaded_when_it_is_used(tmp_path: Path) -> None:
    before, tokens, was_imported_to_close, is_real = told_by(LATER, tmp_path, {})
    assert before == ["name"], (
        "something else imports these: each takes up to 60 MB of the fork server"
    )
    assert tokens == 2
    assert not was_imported_to_close, "a browser that was not used is imported to be closed"
    assert is_real, "a browser is not what the agent server makes of it"
