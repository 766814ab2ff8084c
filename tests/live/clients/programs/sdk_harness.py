"""What a benchmark does with the SDK on a runtime service: many instances at once, a patch of each."""

import json
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

from openhands.sdk import LLM, Agent, Conversation, Tool
from openhands.tools.file_editor import FileEditorTool
from openhands.tools.terminal import TerminalTool
from openhands.workspace import APIRemoteWorkspace

task = json.load(sys.stdin)
report = {"instances": []}


def evaluate(number: int) -> dict[str, object]:
    """Work on one instance in a runtime of its own, and return what came of it."""
    began = monotonic()
    kinds: list[str] = []
    with APIRemoteWorkspace(
        runtime_api_url=task["url"],
        runtime_api_key=task["key"],
        server_image=task["image"],
        target_type="source",
        resource_factor=1,
        init_timeout=task["patience"],
        startup_wait_timeout=task["patience"],
    ) as workspace:
        ready = monotonic() - began
        directory = workspace.execute_command("pwd").stdout.strip() + "/repository"
        prepared = workspace.execute_command(
            f"mkdir {directory} && cd {directory} && git init --quiet && echo {number} >name.txt"
            " && git config user.email a@example.com && git config user.name a"
            " && git add -A && git commit --quiet --no-verify -m base && git rev-parse HEAD"
        )
        base = prepared.stdout.split()[-1]
        workspace.working_dir = directory
        llm = LLM(**task["llm"], usage_id=f"agent-{number}")
        conversation = Conversation(
            agent=Agent(
                llm=llm,
                tools=[Tool(name=TerminalTool.name), Tool(name=FileEditorTool.name)],
                system_prompt_kwargs={"cli_mode": True},
            ),
            workspace=workspace,
            callbacks=[lambda event: kinds.append(type(event).__name__)],
            max_iteration_per_run=20,
            delete_on_close=True,
            visualizer=None,
        )
        conversation.send_message(task["text"].replace("NUMBER", str(number)))
        conversation.run(timeout=task["patience"])
        status = str(conversation.state.execution_status.value)
        workspace.execute_command("git add -A", cwd=directory)
        workspace.execute_command("git commit --quiet --no-verify -m work", cwd=directory)
        diff = workspace.execute_command(
            f"git --no-pager diff --no-color {base} HEAD", cwd=directory
        )
        history = len(list(conversation.state.events))
        conversation.close()
    return {
        "status": status,
        "patch": diff.stdout,
        "exit_code": diff.exit_code,
        "history": history,
        "kinds": sorted(set(kinds)),
        "ready_seconds": ready,
        "seconds": monotonic() - began,
    }


def attempt(number: int) -> dict[str, object]:
    """Return what came of an instance, or why nothing did."""
    try:
        return evaluate(number)
    except Exception:  # noqa: BLE001  # a harness reports each instance on its own
        return {"error": traceback.format_exc()}


began = monotonic()
with ThreadPoolExecutor(task["workers"]) as pool:
    report["instances"] = list(pool.map(attempt, range(task["workers"])))
report["seconds"] = monotonic() - began
sys.stdout.write(f"{json.dumps(report)}\n")
