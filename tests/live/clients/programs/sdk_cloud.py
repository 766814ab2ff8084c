"""What a program does with the SDK's cloud workspace, from the sandbox it asks for to its end."""

import json
import sys
from pathlib import Path

import httpx
from openhands.sdk import Agent, Conversation, Tool
from openhands.tools.file_editor import FileEditorTool
from openhands.tools.terminal import TerminalTool
from openhands.workspace import OpenHandsCloudWorkspace

task = json.load(sys.stdin)
report = {}
kinds = []

with OpenHandsCloudWorkspace(cloud_api_url=task["url"], cloud_api_key=task["key"]) as workspace:
    llm = workspace.get_llm()
    report["model"] = llm.model
    report["mcp"] = sorted(workspace.get_mcp_config())
    agent = Agent(llm=llm, tools=[Tool(name=TerminalTool.name), Tool(name=FileEditorTool.name)])
    conversation = Conversation(
        agent=agent,
        workspace=workspace,
        callbacks=[lambda event: kinds.append(type(event).__name__)],
        visualizer=None,
    )
    conversation.update_secrets(workspace.get_secrets())
    conversation.send_message(task["text"])
    conversation.run(timeout=task["patience"])
    report["conversation_id"] = conversation.id.hex
    report["status"] = str(conversation.state.execution_status.value)

    directory = workspace.working_dir
    report["listed"] = workspace.execute_command("ls", cwd=directory).stdout.split()
    workspace.execute_command("git init --quiet", cwd=directory)
    report["changes"] = [[one.status.value, str(one.path)] for one in workspace.git_changes(".")]
    report["diff"] = workspace.git_diff("a.txt").model_dump()
    sent = bytes(range(256)) * 1000
    report["uploaded"] = workspace.file_upload(sent, f"{directory}/b.bin").success
    workspace.file_download(f"{directory}/b.bin", "b.bin")
    report["is_same"] = Path("b.bin").read_bytes() == sent

    try:
        workspace.pause()
    except NotImplementedError:
        sandboxes = f"{task['url']}/api/v1/sandboxes"
        sandbox_id = workspace._sandbox_id  # noqa: SLF001  # there is no other way to learn it
        headers = {"Authorization": f"Bearer {task['key']}"}
        httpx.post(f"{sandboxes}/{sandbox_id}/pause", headers=headers).raise_for_status()
        found = httpx.get(sandboxes, params={"id": sandbox_id}, headers=headers).json()
        report["paused"] = found[0]["status"]
        report["sandbox_id"] = sandbox_id
    workspace.resume()
    conversation.send_message(task["more"])
    conversation.run(timeout=task["patience"])
    report["after"] = str(conversation.state.execution_status.value)
    conversation.close()

report["kinds"] = kinds
sys.stdout.write(f"{json.dumps(report)}\n")
