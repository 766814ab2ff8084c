"""What programs with an older SDK do: they take part in a conversation, and start one of their own."""

import importlib.metadata
import json
import sys
import uuid

from openhands.sdk import LLM, Agent, Conversation, Tool
from openhands.sdk.event.base import Event
from openhands.sdk.security.llm_analyzer import LLMSecurityAnalyzer
from openhands.sdk.workspace import RemoteWorkspace
from openhands.tools.terminal import TerminalTool

task = json.load(sys.stdin)
agent = Agent(llm=LLM(**task["llm"]), tools=[Tool(name=TerminalTool.name)])


def take_part(api_key, *, analyzed, **options):
    """Run a task; return what the REST API and the WebSocket have told."""
    streamed = []
    workspace = RemoteWorkspace(host=task["host"], api_key=api_key, working_dir=task["working_dir"])
    conversation = Conversation(
        agent=agent,
        workspace=workspace,
        callbacks=[lambda event: streamed.append(type(event).__name__)],
        visualizer=None,
        **options,
    )
    if analyzed:
        conversation.set_security_analyzer(LLMSecurityAnalyzer())
    conversation.send_message(task["text"])
    conversation.run(timeout=task["patience"])
    conversation.state.events.reconcile()
    told = [type(event).__name__ for event in conversation.state.events]
    found = [
        event.observation.text.splitlines()[0]
        for event in conversation.state.events
        if hasattr(event, "observation") and event.observation.text
    ]
    conversation.close()
    return {"id": conversation.id.hex, "told": told, "streamed": streamed, "found": found}


report = {"version": importlib.metadata.version("openhands-sdk")}
# It attaches to one that the server started, where only its key says what it can read.
report["attached"] = take_part(
    f"{task['session_key']}~sdk-{task['says']}",
    conversation_id=uuid.UUID(task["conversation_id"]),
    delete_on_close=False,
    analyzed=True,
)
# Newer ones have imported the tools of that conversation by now.
report["stored"] = [type(Event.model_validate(event)).__name__ for event in task["stored"]]
# One of its own shows what it can read by how it is started.
report["own"] = take_part(task["session_key"], delete_on_close=True, analyzed=task["shows_itself"])
sys.stdout.write(f"{json.dumps(report)}\n")
