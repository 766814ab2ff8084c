"""The data directory of an OpenHands server, as releases 0.62 to 1.11 write it."""

import base64
import hashlib
import json
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

DATA = Path(__file__).parent / "data" / "v0"

OLDER_ID = "3458dce407074113961b51ee95851d0c"
NEWER_ID = "8f14e45f-ceea-467f-a9d3-0f3e5a1b2c3d"

TABLE = """
    CREATE TABLE conversation_metadata (
        conversation_id VARCHAR NOT NULL, user_id VARCHAR, selected_repository VARCHAR,
        selected_branch VARCHAR, git_provider VARCHAR, title VARCHAR, last_updated_at DATETIME,
        created_at DATETIME, "trigger" VARCHAR, pr_number JSON, accumulated_cost FLOAT,
        prompt_tokens INTEGER, completion_tokens INTEGER, total_tokens INTEGER,
        max_budget_per_task FLOAT, cache_read_tokens INTEGER, cache_write_tokens INTEGER,
        reasoning_tokens INTEGER, context_window INTEGER, per_turn_token INTEGER,
        llm_model VARCHAR, conversation_version VARCHAR NOT NULL, sandbox_id VARCHAR,
        parent_conversation_id VARCHAR, public BOOLEAN, tags JSON, agent_kind VARCHAR,
        execution_status VARCHAR, PRIMARY KEY (conversation_id)
    )
"""
ROW = {
    "user_id": "",
    "selected_repository": "acme/newer",
    "selected_branch": "main",
    "git_provider": "gitlab",
    "title": "A newer one",
    "last_updated_at": "2026-11-20 19:15:08.059656",
    "created_at": "2026-11-20 19:15:00.000000",
    "trigger": "slack",
    "pr_number": "[7]",
    "accumulated_cost": 0.25,
    "prompt_tokens": 100,
    "completion_tokens": 10,
    "llm_model": "openai/newer",
    "conversation_version": "V1",
    "sandbox_id": "oh-agent-server-1",
    "public": 0,
    "tags": '{"team": "blue"}',
}
METADATA: dict[str, Any] = {
    "conversation_id": OLDER_ID,
    "selected_repository": "acme/older",
    "user_id": None,
    "selected_branch": "dev",
    "git_provider": "github",
    "title": "An older one",
    "last_updated_at": "2026-11-20T19:35:10.000000Z",
    "trigger": "gui",
    "pr_number": [],
    "created_at": "2026-11-20T19:35:00.000000Z",
    "llm_model": "openai/older",
    "accumulated_cost": 0.5,
    "prompt_tokens": 200,
    "completion_tokens": 20,
    "total_tokens": 220,
    "sandbox_id": None,
    "conversation_version": None,
}
OLDER_SETTINGS = {
    "language": "de",
    "agent": "CodeActAgent",
    "max_iterations": 77,
    "security_analyzer": None,
    "confirmation_mode": True,
    "llm_model": "openai/mine",
    "llm_api_key": "sk-older",
    "llm_base_url": "https://models.example.org/v1",
    "secrets_store": {"provider_tokens": {}},
    "enable_default_condenser": True,
    "mcp_config": {
        "sse_servers": [{"url": "https://tools.example.org/sse", "api_key": "tool-key"}],
        "stdio_servers": [],
        "shttp_servers": [],
    },
    "search_api_key": "tvly-1",
    "sandbox_api_key": "**********",
    "max_budget_per_task": 2.5,
    "git_user_name": "ann",
    "git_user_email": "ann@example.org",
}
NEWER_SETTINGS = {
    "language": "fr",
    "v1_enabled": True,
    "git_full_clone": True,
    "agent_settings": {
        "schema_version": 4,
        "agent_kind": "openhands",
        "agent": "CodeActAgent",
        "llm": {
            "model": "openai/nested",
            "api_key": "sk-nested",
            "base_url": None,
            "temperature": 0.25,
            "usage_id": "agent",
        },
        "condenser": {"enabled": True, "max_size": 90},
        "mcp_config": {"files": {"command": "mcp-files", "args": ["/srv"]}},
    },
    "conversation_settings": {
        "schema_version": 1,
        "max_iterations": 33,
        "confirmation_mode": False,
    },
    "llm_profiles": {
        "profiles": {"fast": {"model": "openai/fast", "api_key": "sk-fast"}},
        "active": "fast",
    },
    "sandbox_grouping_strategy": "NO_GROUPING",
}
SECRETS = {
    "provider_tokens": {"github": {"token": "ghp-1", "host": None, "user_id": None}},
    "custom_secrets": {"DEPLOY_KEY": {"secret": "s3cret", "description": "for deploys"}},
}


USES: tuple[tuple[str, dict[str, Any], str, dict[str, Any]], ...] = (
    ("run", {"command": "ls", "is_input": False}, "run", {"metadata": {"exit_code": 0}}),
    ("run", {"command": "false"}, "run", {"command": "false", "metadata": {"exit_code": "?"}}),
    ("read", {"path": "/w/a", "view_range": [1, 2]}, "read", {"path": "/w/a"}),
    ("read", {"path": "/w/a", "view_range": "all"}, "read", {}),
    ("write", {"path": "/w/a", "content": "text"}, "write", {"path": "/w/a"}),
    (
        "edit",
        {"path": "/w/a", "command": "insert", "insert_line": 1, "new_str": "b", "old_str": 7},
        "edit",
        {"path": "/w/a", "prev_exist": True, "old_content": "a", "new_content": "ab"},
    ),
    ("edit", {"path": "/w/a", "content": "by a model", "start": 1, "end": 3}, "edit", {}),
    ("think", {"thought": "hm"}, "think", {}),
    (
        "task_tracking",
        {"command": "plan", "task_list": [{"title": "a", "status": "done"}, {"status": 1}, 7]},
        "task_tracking",
        {},
    ),
    ("task_tracking", {"command": "view"}, "task_tracking", {}),
    ("call_tool_mcp", {"name": "search", "arguments": {"q": "x"}}, "mcp", {"name": "search"}),
    ("call_tool_mcp", {"name": "", "arguments": []}, "mcp", {}),
    ("run_ipython", {"code": "1 + 1", "thought": "count"}, "run_ipython", {"code": "1 + 1"}),
    ("browse_interactive", {"browser_actions": "goto('x')"}, "browse", {"url": "x"}),
    ("some thing", {"a": 1}, "delegate", {}),
    ("run", {"command": "rm x", "security_risk": 2}, "user_rejected", {}),
    ("run", {"command": "x", "security_risk": "high"}, "error", {"error_id": ""}),
)
"""Actions with their arguments, and what came of them with its extras."""


def every_event() -> list[dict[str, Any]]:
    """Return a history of the first generation with an event of each kind."""
    told: list[dict[str, Any]] = [
        {"action": "system", "source": "agent", "args": {"content": "Work.", "tools": []}},
        {"action": "message", "source": "user", "args": {"content": "Begin", "image_urls": []}},
        {"action": "recall", "source": "user", "args": {"recall_type": "knowledge", "query": "x"}},
        {"observation": "recall", "cause": 2, "content": "known", "extras": {}},
        {"action": "change_agent_state", "args": {"agent_state": "paused"}},
        {"action": "change_agent_state", "args": {"agent_state": "stopped"}},
        {"action": "change_agent_state", "args": {"agent_state": "running"}},
        {"observation": "agent_state_changed", "content": "", "extras": {"agent_state": "odd"}},
    ]
    for number, (action, args, observation, extras) in enumerate(USES):
        metadata = {"tool_call_id": f"call {number}", "function_name": action}
        asked = {"action": action, "source": "agent", "args": args}
        if number % 2:
            asked["tool_call_metadata"] = metadata
        told.append(asked)
        if observation == "user_rejected":
            # It is told again with what the user said.
            told.append({**asked, "args": {**args, "confirmation_state": "rejected"}})
        content, cause = f"came of {number}", len(told) - 1
        told.append(
            {"observation": observation, "cause": cause, "content": content, "extras": extras}
        )
    return _numbered(
        [
            *told,
            {"observation": "error", "content": "it fell over", "extras": {"error_id": "x"}},
            {"observation": "run", "content": "of nobody knows what", "extras": {}},
            {"observation": "success", "content": "of no use", "extras": {}},
            {"action": "condensation_request", "args": {}},
            {
                "action": "condensation",
                "args": {"forgotten_event_ids": [2, "x"], "summary": "short", "summary_offset": 3},
            },
            {
                "action": "condensation",
                "args": {"forgotten_events_start_id": 2, "forgotten_events_end_id": 3},
            },
            {
                "action": "message",
                "source": "agent",
                "args": {"content": "Done", "image_urls": ["data:image/png;base64,AA=="]},
            },
            {"action": "finish", "source": "agent", "args": {"final_thought": "", "thought": "ok"}},
            {"action": "null", "args": 7},
        ]
    )


def _numbered(events: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    base = {"source": "environment", "message": ""}
    return [
        {"id": number, "timestamp": f"2026-11-20T19:36:{number:02}.5", **base, **event}
        for number, event in enumerate(events)
    ]


def recorded(name: str) -> list[dict[str, Any]]:
    """Return events that a server of one of the generations has written."""
    return [json.loads(line) for line in (DATA / f"{name}.jsonl").read_bytes().splitlines()]


def write(file: Path, value: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(value if isinstance(value, str) else json.dumps(value))


def lay_older(
    root: Path,
    source_id: str = OLDER_ID,
    events: Iterable[Mapping[str, Any]] | None = None,
    *,
    parent: str = "sessions",
    **metadata: Any,
) -> Path:
    """Write a conversation of the first generation and return its directory."""
    directory = root / parent / source_id
    write(directory / "metadata.json", {**METADATA, "conversation_id": source_id, **metadata})
    for event in recorded("older-run-finish") if events is None else events:
        write(directory / "events" / f"{event['id']}.json", event)
    return directory


def lay_newer(
    root: Path,
    source_id: str = NEWER_ID,
    events: Iterable[Mapping[str, Any]] | None = None,
    *,
    parent: str = "v1_conversations",
    **row: Any,
) -> Path:
    """Write a conversation of the second generation and return the directory of its events."""
    root.mkdir(parents=True, exist_ok=True)
    directory = root / parent / source_id.replace("-", "")
    for event in recorded("run-finish") if events is None else events:
        file = directory / f"{event['id'].replace('-', '')}.json"
        write(file, json.dumps(event, indent=2))
    values = {**ROW, **row, "conversation_id": source_id}
    names, places = ", ".join(f'"{name}"' for name in values), ", ".join(f":{n}" for n in values)
    connection = sqlite3.connect(root / "openhands.db")
    try:
        connection.execute(TABLE.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS"))
        sql = f"INSERT INTO conversation_metadata ({names}) VALUES ({places})"  # noqa: S608  # names of the table
        connection.execute(sql, values)
        connection.commit()
    finally:
        connection.close()
    return directory


def sealed(text: str, secret: str) -> str:
    """Return a value as that server encrypts it."""
    head = _shown(json.dumps({"alg": "dir", "enc": "A256GCM", "kid": "k"}).encode())
    nonce = bytes(12)
    key = hashlib.sha256(secret.encode()).digest()
    plain = json.dumps({"v": text, "iat": 1}).encode()
    whole = AESGCM(key).encrypt(nonce, plain, head.encode())
    return f"{head}..{_shown(nonce)}.{_shown(whole[:-16])}.{_shown(whole[-16:])}"


def _shown(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
