// The items shown for a conversation's events, and its state. Needs no page (DOM).
import { t } from "./words.js";

const textOf = (content) => (content ?? []).map((part) => part.text ?? (part.image_urls ? "(image)" : "")).join("\n").trim();

/** Values from a sandbox may have any type, even if a string or number is expected. */
const asText = (value) => (value == null || typeof value === "string" ? value : JSON.stringify(value));
const asNumber = (value) => (Number.isFinite(value) ? value : 0);

const REMEDIES = {
  settings: t("Check the model and its key in the settings, and send a message to go on."),
  retry: t("Send a message to try again."),
};

const REFUSALS = {
  429: t("The provider of the model is overloaded, or its limit is reached (429)."),
  500: t("The provider of the model has an error (500)."),
  503: t("The model is not available now (503)."),
};

/** Agents send UTC times without a time zone; browsers would parse them as local time. */
const inUtc = (time) => (/(?:Z|[+-]\d\d:?\d\d)$/i.test(time) ? time : `${time}Z`);

/** Collects events in the order of arrival, and ignores duplicates. */
export class Timeline {
  items = [];
  run = null;
  cost = 0;
  tokens = 0;
  budget = null;
  draft = "";
  draftThought = "";
  /** The agent's latest list of tasks. */
  plan = [];
  count = 0;
  /** The number of the last event in the conversation, -1 before the first. */
  last = -1;
  /** Settings for retries of model calls; the agent's defaults until it reports its own. */
  #retries = { num_retries: 5, retry_multiplier: 8, retry_min_wait: 8, retry_max_wait: 64 };
  #seen = new Set();
  #byAction = new Map();
  #byCall = new Map();
  #runAt = "";
  #countedAt = "";

  add(event, number = -1) {
    this.last = Math.max(this.last, number);
    if (this.#seen.has(event.id)) return;
    this.#seen.add(event.id);
    this.count += 1;
    try {
      this[`on${event.kind}`]?.({ ...event, timestamp: inUtc(event.timestamp) }, number);
    } catch {
      // Events from a sandbox may have any content.
    }
  }

  addDelta({ content, reasoning_content }) {
    this.draft += content ?? "";
    this.draftThought += reasoning_content ?? "";
  }

  /** Copy the streamed answer of another timeline. */
  takeDraft({ draft, draftThought }) {
    this.draft = draft;
    this.draftThought = draftThought;
  }

  /** Return the tool calls that wait for confirmation, at most the last ten. */
  get waiting() {
    if (this.run !== "waiting_for_confirmation") return [];
    return this.items.filter((item) => item.type === "tool" && !item.output && !item.error && !item.rejected).slice(-10);
  }

  /** Whether the last tool call or message is a tool call that was rejected. */
  get isRejected() {
    const last = this.items.findLast(({ type }) => ["tool", "user", "agent"].includes(type));
    return Boolean(last?.rejected);
  }

  #push(event, type, label, more) {
    const item = { key: event.id, type, label, at: event.timestamp, ...more };
    this.items.push(item);
    return item;
  }

  #endDraft() {
    this.draft = "";
    this.draftThought = "";
  }

  onMessageEvent(event, number) {
    const text = textOf((event.llm_message?.content ?? []).filter((part) => part.text !== undefined));
    const images = (event.llm_message?.content ?? []).flatMap((part) => part.image_urls ?? []);
    if (event.source === "user") return void this.#push(event, "user", t("You"), { text, images, number });
    this.#endDraft();
    this.#thought(event);
    this.#push(event, "agent", t("Agent"), { text });
  }

  onActionEvent(event) {
    this.#endDraft();
    this.#thought(event);
    const said = textOf(event.thought);
    const { action } = event;
    if (action?.kind === "FinishAction") {
      return void this.#push(event, "agent", t("Agent"), { text: [said, action.message].filter(Boolean).join("\n\n") });
    }
    if (said) this.items.push({ key: `${event.id}-said`, type: "agent", label: t("Agent"), text: said, at: event.timestamp, event: event.id });
    if (action?.kind === "ThinkAction") return void this.#push(event, "thought", t("Thought"), { text: action.thought });
    const item = this.#push(event, "tool", event.summary || event.tool_name, {
      tool: event.tool_name, action: action ?? readArguments(event.tool_call), risk: event.security_risk, summary: event.summary,
    });
    if (action?.kind === "TaskTrackerAction" && action.command === "plan") this.plan = action.task_list ?? [];
    this.#byAction.set(event.id, item);
    this.#byCall.set(event.tool_call_id, item);
  }

  #thought(event) {
    const text = event.reasoning_content ?? event.llm_message?.reasoning_content;
    if (text?.trim()) this.items.push({ key: `${event.id}-thought`, type: "thought", label: t("Thought"), text, at: event.timestamp });
  }

  onObservationEvent(event) {
    const item = this.#byAction.get(event.action_id) ?? this.#byCall.get(event.tool_call_id);
    if (!item) return;
    const { observation } = event;
    item.output = { ...observation, text: asText(observation.text) ?? textOf(observation.content) };
    item.answer = event.id;
    item.seconds = (Date.parse(event.timestamp) - Date.parse(item.at)) / 1000;
  }

  onUserRejectObservation(event) {
    const item = this.#byAction.get(event.action_id) ?? this.#byCall.get(event.tool_call_id);
    if (!item) return;
    item.rejected = asText(event.rejection_reason) || t("Rejected");
  }

  onAgentErrorEvent(event) {
    const item = this.#byCall.get(event.tool_call_id);
    const error = asText(event.error);
    if (!item) return void this.#push(event, "error", t("Error"), { text: error });
    item.error = error;
  }

  onConversationErrorEvent(event) {
    if (event.code === "ToolServerFailed") {
      return void this.#push(event, "error", t("Error"), { title: t("A tool server does not start"), text: event.detail, remedy: t("The agent goes on without it. What is started for new conversations is in the settings.") });
    }
    this.#endDraft();
    const remedy = event.code === "MaxIterationsReached"
      ? t("The agent has used all its steps. Send a message to let it go on, or raise the limit in the settings.")
      : (REMEDIES[event.classification?.user_action] ?? REMEDIES.retry);
    this.#push(event, "error", t("Error"), { title: event.code, text: event.detail, remedy, isSettings: event.classification?.user_action === "settings" });
  }

  onServerErrorEvent(event) {
    this.#push(event, "error", t("Error"), { title: event.code, text: event.detail, remedy: REMEDIES.retry });
  }

  onConversationStateUpdateEvent({ key, value, timestamp }) {
    if (key === "execution_status") this.#learn(value, timestamp);
    else if (key === "stats") this.#count(value, timestamp);
    else if (key === "model_refusal") this.#noteRefusal(value, timestamp);
    else if (key === "full_state") {
      this.#learn(value?.execution_status, timestamp);
      this.#count(value?.stats, timestamp);
      this.#retries = { ...this.#retries, ...value?.agent?.llm };
    }
  }

  /** The agent retries automatically, with increasing waits; consecutive refusals are shown as one item. */
  #noteRefusal({ status, message }, at) {
    this.#endDraft();
    const last = this.items.at(-1);
    const times = last?.type === "refusal" ? last.times + 1 : 1;
    const { num_retries: most, retry_multiplier: factor, retry_min_wait: least, retry_max_wait: longest } = this.#retries;
    const seconds = Math.max(least, Math.min(longest, factor * 2 ** (times - 1)));
    const text = `${REFUSALS[status] ?? message} ${times < most ? t("Try {0} of {1} in {2} s.", times + 1, most, Math.round(seconds)) : t("That was the last attempt.")}`;
    if (times > 1) this.items.pop();
    this.items.push({ key: `refusal-${at}`, type: "refusal", label: t("The model does not answer"), text, at, times, status });
  }

  /** Set the state, unless the report is older than the last: the state at a start is often reported after the run has begun. */
  #learn(run, at) {
    if (!run || at < this.#runAt) return;
    this.run = run;
    this.#runAt = at;
  }

  #count(stats, at) {
    const all = Object.values(stats?.usage_to_metrics ?? {});
    if (!all.length || at < this.#countedAt) return;
    this.#countedAt = at;
    this.cost = all.reduce((sum, one) => sum + asNumber(one.accumulated_cost), 0);
    this.tokens = all.reduce((sum, { accumulated_token_usage: used }) => sum + asNumber(used?.prompt_tokens) + asNumber(used?.completion_tokens), 0);
    this.budget = all.find((one) => asNumber(one.max_budget_per_task))?.max_budget_per_task ?? this.budget;
  }

  onSystemPromptEvent(event) {
    this.#push(event, "system", t("System prompt"), { text: event.system_prompt?.text ?? "", tools: (event.tools ?? []).map((tool) => tool.name ?? tool.title ?? "") });
  }

  onPauseEvent(event) {
    this.#push(event, "note", t("Paused"), { text: t("Paused") });
  }

  onInterruptEvent(event) {
    this.#endDraft();
    this.#push(event, "note", t("Interrupted"), { text: t("Interrupted") });
  }

  onCondensation(event) {
    this.#push(event, "note", t("Shortened"), { text: t("Old events were summarised for the model"), more: event.summary });
  }

  onHookExecutionEvent(event) {
    this.#push(event, "note", t("Hook"), { text: t("Hook {0} ran", event.hook_event_type ?? "").replace("  ", " ") });
  }

  onACPToolCallEvent(event) {
    const known = this.#byCall.get(event.tool_call_id);
    const output = event.raw_output == null ? undefined : { text: typeof event.raw_output === "string" ? event.raw_output : JSON.stringify(event.raw_output, null, 2) };
    if (known) {
      known.output = output ?? known.output;
      return;
    }
    const item = this.#push(event, "tool", event.title ?? t("Tool"), { tool: event.title ?? "tool", action: event.raw_input ?? {}, output });
    this.#byCall.set(event.tool_call_id, item);
  }
}

const COMMANDS = ["TerminalAction", "ExecuteBashAction"];
const LEAST_IN_GROUP = 3;

const isStep = ({ type }) => type === "tool" || type === "thought";
const isDone = ({ type, output, error, rejected }) => type !== "tool" || output || error || rejected;

/** Group consecutive finished steps with at least three tool calls; the last steps stay as they are while the agent works. */
export function grouped(items, isRunning) {
  const shown = [];
  for (let at = 0; at < items.length; at += 1) {
    let end = at;
    while (end < items.length && isStep(items[end]) && isDone(items[end])) end += 1;
    const steps = items.slice(at, end);
    const isLast = isRunning && end === items.length;
    if (steps.filter(({ type }) => type === "tool").length < LEAST_IN_GROUP || isLast) {
      shown.push(...(steps.length ? steps : [items[at]]));
    } else {
      shown.push({ key: `group-${steps[0].key}`, type: "group", label: groupLabel(steps), at: steps[0].at, steps });
    }
    at = Math.max(at, end - 1);
  }
  return shown;
}

/** Return a summary of a group of steps, such as "Ran 12 commands, edited 3 files, 41 s". */
function groupLabel(steps) {
  const tools = steps.filter(({ type }) => type === "tool");
  const commands = tools.filter(({ action }) => COMMANDS.includes(action?.kind)).length;
  const edited = new Set(tools.filter(({ action }) => action?.kind === "FileEditorAction" && action.command !== "view").map(({ action }) => action.path)).size;
  const read = new Set(tools.filter(({ action }) => action?.kind === "FileEditorAction" && action.command === "view").map(({ action }) => action.path)).size;
  const others = tools.filter(({ action }) => !COMMANDS.includes(action?.kind) && action?.kind !== "FileEditorAction").length;
  const count = (number, one, many) => (number ? `${number} ${number === 1 ? one : many}` : "");
  const parts = [
    commands && t("ran {0}", count(commands, t("command"), t("commands"))), read && t("read {0}", count(read, t("file"), t("files"))),
    edited && t("edited {0}", count(edited, t("file"), t("files"))), others && t("used {0}", count(others, t("other tool"), t("other tools"))),
  ].filter(Boolean);
  const seconds = Math.round(tools.reduce((sum, one) => sum + (one.seconds ?? 0), 0));
  const text = parts.join(", ") + (seconds ? `, ${seconds} s` : "");
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function readArguments(call) {
  try {
    return JSON.parse(call?.arguments ?? "{}");
  } catch {
    return { arguments: call.arguments };
  }
}
