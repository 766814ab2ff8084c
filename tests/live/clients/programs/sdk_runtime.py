"""What a program does with the SDK's workspace on a runtime service, from its start to its end."""

import json
import sys

import httpx
from openhands.sdk import LLM, Agent, Conversation, Tool
from openhands.tools.terminal import TerminalTool
from openhands.workspace import APIRemoteWorkspace

task = json.load(sys.stdin)
report = {}


def status() -> str:
    """Ask the service for the status of the session."""
    headers = {"X-API-Key": task["key"]}
    url = f"{task['url']}/sessions/{task['session_id']}"
    answer = httpx.get(url, headers=headers)
    return answer.json()["status"] if answer.status_code == httpx.codes.OK else "none"


options = {
    "runtime_api_url": task["url"],
    "runtime_api_key": task["key"],
    "server_image": task["image"],
    "session_id": task["session_id"],
}
with APIRemoteWorkspace(**options, pause_on_close=True) as workspace:
    report["running"] = status()
    directory = workspace.execute_command("pwd").stdout.strip()
    workspace.working_dir = directory
    report["said"] = workspace.execute_command("echo one && echo kept >kept.txt").stdout
    agent = Agent(llm=LLM(**task["llm"]), tools=[Tool(name=TerminalTool.name)])
    conversation = Conversation(agent=agent, workspace=workspace, visualizer=None)
    conversation.send_message(task["text"])
    conversation.run(timeout=task["patience"])
    report["status"] = str(conversation.state.execution_status.value)
    conversation.close()
report["after_pause"] = status()
with APIRemoteWorkspace(**options) as workspace:
    report["again"] = status()
    report["kept"] = workspace.execute_command("cat kept.txt", cwd=directory).stdout
report["after_stop"] = status()
sys.stdout.write(f"{json.dumps(report)}\n")
