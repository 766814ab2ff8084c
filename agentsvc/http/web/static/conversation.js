// One conversation, live: its items, the controls, and the workspace beside it.
import { agentPath, conversationPath, download, get, isRefusal, newId, patch, post, remove } from "./api.js";
import { useHasAttempts } from "./attempts.js";
import { useAttention } from "./attention.js";
import { Call, Card, RISKS } from "./cards.js";
import { PutBack, useCheckpoints } from "./checkpoints.js";
import { ARCHIVED, PINNED, changeLabels, ownLabels, toggleLabel } from "./conversations.js";
import { Composer, Pending, useDraft, useQueue } from "./composer.js";
import { conversationState, count, money } from "./format.js";
import { html, useCallback, useEffect, useMemo, useRef, useState } from "./html.js";
import { Markdown } from "./markdown.js";
import { useOutbox } from "./outbox.js";
import { Share } from "./share.js";
import { store, useLoaded, useStore } from "./store.js";
import { Stream, readEvents } from "./stream.js";
import { Terminal } from "./terminal.js";
import { Split } from "./split.js";
import { Timeline, grouped } from "./timeline.js";
import { Button, Dialog, Empty, Guarded, Icon, Pill, Problem, Question, Spinner, TextField, go, tell, useIsThere } from "./ui.js";
import { VirtualList } from "./virtual.js";
import { Changes, Files, Ports } from "./workspace.js";
import { t } from "./words.js";

const DRAW_MS = 50;
/** Number of events that are loaded at once. */
const PART = 500;
const PARTS = [
  ["", t("Conversation")],
  ["changes", t("Changes")],
  ["files", t("Files")],
  ["terminal", t("Terminal")],
  ["ports", t("Ports")],
];

/** The loaded events of a conversation: the latest first, earlier ones on request. */
class History {
  timeline = new Timeline();
  events = [];
  first = null;
  isLoading = false;

  add(event, id) {
    this.first ??= id;
    this.events.push([event, id]);
    this.timeline.add(event, id);
  }

  get hasMore() {
    return this.first > 0;
  }

  async loadOlder(id) {
    if (this.isLoading || !this.hasMore) return;
    this.isLoading = true;
    const from = Math.max(0, this.first - PART);
    const older = await readEvents(id, from, this.first - 1);
    this.events = [...older, ...this.events];
    this.first = from;
    const timeline = new Timeline();
    for (const [event, number] of this.events) timeline.add(event, number);
    timeline.takeDraft(this.timeline);
    this.timeline = timeline;
    this.isLoading = false;
  }
}

/** Subscribe to the events of a conversation; events in quick succession are rendered together. */
function useTimeline(id) {
  const history = useRef(null);
  const [state, setState] = useState({ isLoaded: false, isGone: false });
  const [, redraw] = useState(0);
  useEffect(() => {
    history.current = new History();
    let timer = null;
    const draw = () => {
      timer ??= setTimeout(() => {
        timer = null;
        redraw((turn) => turn + 1);
      }, DRAW_MS);
    };
    const stream = new Stream(id, (type, data, number) => {
      if (type === "event") history.current.add(data, number);
      else if (type === "delta") history.current.timeline.addDelta(data);
      else if (type === "ready") setState((old) => ({ ...old, isLoaded: true }));
      else if (type === "resync" && data.last_event_id === null) history.current = new History();
      else if (type === "end") setState({ isLoaded: true, isGone: data.reason === "deleted" });
      draw();
    }, { latest: PART });
    return () => {
      clearTimeout(timer);
      stream.close();
    };
  }, [id]);
  history.current ??= new History();
  const loadOlder = useCallback(() => history.current.loadOlder(id).then(() => redraw((turn) => turn + 1)), [id]);
  return { timeline: history.current.timeline, hasMore: history.current.hasMore, loadOlder, ...state };
}

/** Return a conversation from the store, or from a request of its own until the store has it. */
function useConversation(id) {
  const { conversations } = useStore();
  const asked = useLoaded(() => get(conversationPath(id)), [id]);
  return { conversation: conversations.get(id) ?? asked.value, error: asked.error };
}

export function ConversationView({ id, part, words, settings }) {
  const { conversation, error } = useConversation(id);
  const [text, setText] = useDraft(id);
  const [find, setFind] = useState(words || null);
  useEffect(() => {
    if (words) setFind(words);
  }, [words]);
  useAttention(conversation?.title);
  const live = useTimeline(id);
  if (live.isGone || error?.status === 404) {
    return html`<${Empty} icon="chat" title=${t("This conversation is not here")}><a href="#/new">${t("Start another one")}</a><//>`;
  }
  if (!conversation) return error ? html`<div class="page"><${Problem} error=${error} /></div>` : html`<${Spinner} />`;
  const run = live.timeline.run ?? conversation.execution_status;
  const comment = (place) => {
    setText((old) => `${old ? `${old.trimEnd()}\n\n` : ""}${place}\n`);
    document.querySelector("textarea[data-key=message]")?.focus();
  };
  const Part = { changes: Changes, files: Files, terminal: Terminal, ports: Ports }[part];
  return html`
    <div class="conversation">
      <${Top} conversation=${conversation} run=${run} live=${live} settings=${settings} onFind=${() => setFind("")} />
      <nav class="tabs" aria-label=${t("Parts of the conversation")}>
        ${PARTS.map(([name, label]) => html`
          <a href=${`#/c/${id}${name && `/${name}`}`} aria-current=${part === name ? "page" : null}>${label}</a>
        `)}
      </nav>
      <${Split} name="conversation" left=${html`<${Talk} conversation=${conversation} run=${run} live=${live} text=${text} setText=${setText} find=${find} setFind=${setFind} />`}
        right=${Part && html`<div class="page wide-page"><${Guarded} key=${part}><${Part} conversation=${conversation} sandbox=${store.sandboxes.get(conversation.sandbox_id)}
          timeline=${live.timeline} onComment=${comment} /><//></div>`} />
    </div>
  `;
}

/** Return a function that forks a conversation, up to an event or whole. Retries use the same key, so that it forks once. */
function useFork(conversation, onError) {
  const keys = useRef({});
  const isThere = useIsThere();
  return async (event = null) => {
    const key = (keys.current[event] ??= newId());
    try {
      const title = t("{0} (fork)", (conversation.title || t("Untitled")).slice(0, 180));
      const task = await post(`${conversationPath(conversation.id)}/fork`, { title, up_to_event_id: event }, key);
      store.tasks.set(task.id, task);
      // Do not redirect a user who has left the page meanwhile.
      if (isThere.current) go(`/start/${task.id}`);
    } catch (problem) {
      if (isRefusal(problem)) delete keys.current[event];
      (isThere.current ? onError : tell)(problem);
    }
  };
}

function Top({ conversation, run, live, settings, onFind }) {
  const [asked, setAsked] = useState("");
  const [error, setError] = useState(null);
  const close = () => setAsked("");
  const save = (path) => download(path).then(() => setError(null), setError);
  const fork = useFork(conversation, setError);
  const hasAttempts = useHasAttempts();
  const isThere = useIsThere();
  return html`
    <header class="head">
      <a class="button only-icon back" href="#/" aria-label=${t("Back")}><${Icon} name="back" /></a>
      <div class="head-title">
        <h1>${conversation.title || t("Untitled")}</h1>
        <p class="head-facts">
          <${Pill} state=${conversationState(conversation, run)} />
          <${Spent} conversation=${conversation} timeline=${live.timeline} settings=${settings} />
          ${conversation.llm_model && html`<span class="cut">${conversation.llm_model}</span>`}
          ${conversation.selected_repository && html`<span class="cut">${conversation.selected_repository}${conversation.selected_branch ? ` · ${conversation.selected_branch}` : ""}</span>`}
        </p>
      </div>
      <div class="head-side">
        <${Button} kind="bare" icon="search" isIcon label=${t("Find")} title=${t("Find in the conversation (F)")} data-key="find" onPress=${onFind} />
        <${Button} kind="bare" icon="pin" isIcon needs="run" label=${t("Pin")} data-wide aria-pressed=${String(conversation.labels.includes(PINNED))} onPress=${() => toggleLabel(conversation, PINNED).catch(setError)} />
        <${Button} kind="bare" icon="box" isIcon needs="run" label=${t("Archive")} data-wide aria-pressed=${String(conversation.labels.includes(ARCHIVED))} onPress=${() => toggleLabel(conversation, ARCHIVED).catch(setError)} />
        <${Button} kind="bare" icon="pen" isIcon needs="run" label=${t("Rename")} title=${t("Rename, and label")} onPress=${() => setAsked("rename")} />
        <${Button} kind="bare" icon="link" isIcon label=${t("Share")} data-wide onPress=${() => setAsked("share")} />
        <${Button} kind="bare" icon="fork" isIcon needs="run" label=${t("Fork")} title=${t("Fork: go on with a copy of this conversation and its files, in a sandbox of its own")} data-wide onPress=${() => fork()} />
        ${hasAttempts && html`<${Button} kind="bare" icon="people" isIcon needs="run" label=${t("Attempts")} title=${t("Attempts: give a task to several forks of this conversation")} data-wide onPress=${() => go(`/attempts?conversation=${conversation.id}`)} />`}
        <${Button} kind="bare" icon="down" isIcon label=${t("Download")} data-wide onPress=${() => save(`${conversationPath(conversation.id)}/download`)} />
        <${Button} kind="bare" icon="trash" isIcon needs="run" label=${t("Delete")} onPress=${() => setAsked("delete")} />
      </div>
    </header>
    <${Problem} error=${error} title=${t("Not done")} />
    ${asked === "share" && html`<${Share} conversation=${conversation} onClose=${close} />`}
    ${asked === "rename" && html`<${Rename} conversation=${conversation} onClose=${close} />`}
    ${asked === "delete" && html`
      <${Question} title=${t("Delete this conversation?")} action=${t("Delete")} onClose=${close}
        text=${t("Its events and messages are deleted for good, and its sandbox with all files if no other conversation uses it.")}
        onYes=${async () => {
          await remove(conversationPath(conversation.id));
          store.conversations.delete(conversation.id);
          store.tell();
          if (isThere.current) go("/");
        }} />
    `}
  `;
}

function Spent({ conversation, timeline, settings }) {
  const { metrics } = conversation;
  const usage = metrics?.accumulated_token_usage;
  const cost = timeline.cost || metrics?.accumulated_cost || 0;
  const tokens = timeline.tokens || (usage ? usage.prompt_tokens + usage.completion_tokens : 0);
  const budget = timeline.budget ?? metrics?.max_budget_per_task ?? settings?.max_budget_per_task;
  return html`
    <span class="spent">
      ${money(cost)}${budget ? html` ${t("of {0}", money(budget))} <progress max=${budget} value=${Math.min(cost, budget)} aria-label=${t("Share of the budget that is spent")} />` : ""}
      ${tokens ? t(" · {0} tokens", count(tokens)) : ""}
    </span>
  `;
}

function Rename({ conversation, onClose }) {
  const [was] = useState(conversation.title ?? "");
  const [title, setTitle] = useState(was);
  const [labels, setOwn] = useState(ownLabels(conversation).join(", "));
  const [error, setError] = useState(null);
  const save = async () => {
    try {
      // Send the title only if it was edited: the agent may have changed it since.
      if (title.trim() !== was) await patch(conversationPath(conversation.id), { title: title.trim() });
      const own = labels.split(",").map((one) => one.trim()).filter(Boolean);
      await changeLabels(conversation, (now) => [...now.filter((one) => [PINNED, ARCHIVED].includes(one)), ...own]);
      onClose();
    } catch (problem) {
      setError(problem);
    }
  };
  return html`
    <${Dialog} title=${t("Rename the conversation")} onClose=${onClose}>
      <form onSubmit=${(event) => event.preventDefault()}>
        <${TextField} label=${t("Title")} value=${title} onValue=${setTitle} />
        <${TextField} label=${t("Labels")} hint=${t("Separated by commas; the list can be filtered by label.")} value=${labels} onValue=${setOwn} placeholder=${t("website, urgent")} />
        <${Problem} error=${error} />
        <div class="actions"><${Button} onPress=${onClose} label=${t("Cancel")} /><${Button} kind="primary" type="submit" onPress=${save} label=${t("Save")} /></div>
      </form>
    <//>
  `;
}

function Talk({ conversation, run, text, setText, find, setFind, live: { timeline, isLoaded, hasMore, loadOlder } }) {
  const [open, setOpen] = useState(() => new Set());
  const [error, setError] = useState(null);
  const items = useMemo(() => grouped(timeline.items, run === "running"), [timeline, timeline.count, run]);
  const list = useRef(null);
  const outbox = useOutbox(conversation, timeline, isLoaded);
  const queue = useQueue(conversation);
  const toggle = useCallback((key) => setOpen((old) => {
    const next = new Set(old);
    if (!next.delete(key)) next.add(key);
    return next;
  }), []);
  const attempt = async (work) => {
    setError(null);
    try {
      await work();
      return true;
    } catch (problem) {
      setError(problem);
      return false;
    }
  };
  const fork = useFork(conversation, setError);
  const checkpoints = useCheckpoints(conversation, timeline, run);
  const [back, setBack] = useState(null);
  const onAgain = useCallback((words) => {
    setText((old) => (old.trim() ? `${words}\n\n${old}` : words));
    document.querySelector("textarea[data-key=message]")?.focus();
  }, [setText]);
  return html`
    <${Guarded}><${Plan} tasks=${timeline.plan} /><//>
    ${!isLoaded && !timeline.items.length && html`<${Spinner} label=${t("Loading the events")} />`}
    ${find !== null && html`<${Find} items=${items} words=${find} onWords=${setFind} onGo=${(key) => list.current?.(key)} onOpen=${setOpen} loadMore=${hasMore ? loadOlder : null} />`}
    <${VirtualList} items=${items} goTo=${list} loadAbove=${hasMore ? loadOlder : null} label=${t("What happened")} show=${(item) => html`<${Guarded}><${Card} item=${item} run=${run} open=${open} onToggle=${toggle} onAgain=${onAgain} onFork=${fork} onBack=${checkpoints.has(item.key) ? setBack : null} /><//>`}>
      <${Draft} timeline=${timeline} />
      <${Pending} outbox=${outbox} queue=${queue} conversation=${conversation} attempt=${attempt} setText=${setText} />
      ${run === "running" && !timeline.draft && html`<p class="working" aria-hidden="true"><span></span><span></span><span></span></p>`}
    <//>
    <p class="hidden" role="status">${announcement(run, timeline)}</p>
    ${back && html`<${PutBack} conversation=${conversation} item=${back} checkpoint=${checkpoints.get(back.key)} onClose=${() => setBack(null)} />`}
    <div class="dock">
      <${Problem} error=${error} />
      <${Confirmation} conversation=${conversation} timeline=${timeline} attempt=${attempt} />
      <${Composer} conversation=${conversation} run=${run} timeline=${timeline} attempt=${attempt} outbox=${outbox} text=${text} setText=${setText} />
    </div>
  `;
}

/** The agent's plan, shown above the items until all its tasks are done. */
function Plan({ tasks }) {
  const done = tasks.filter(({ status }) => status === "done").length;
  if (!tasks.length || done === tasks.length) return null;
  const current = tasks.find(({ status }) => status === "in_progress") ?? tasks.find(({ status }) => status !== "done");
  return html`<details class="pinned-plan"><summary>${t("Plan, {0} of {1} done:", done, tasks.length)} <span class="cut">${current.title}</span></summary>
    <ul class="plan">${tasks.map((task) => html`<li class=${task.status}>${task.title}</li>`)}</ul></details>`;
}

/** Searches the items for a text, and moves between the matches. */
function Find({ items, words, onWords, onGo, onOpen, loadMore }) {
  const [at, setAt] = useState(0);
  const field = useRef(null);
  useEffect(() => field.current.focus(), []);
  const found = useMemo(() => {
    const wanted = words.toLowerCase();
    return wanted ? items.filter((item) => textOfItem(item).includes(wanted)) : [];
  }, [items, words]);
  // Without a match, load older events part by part until one is found.
  useEffect(() => {
    if (words && !found.length) loadMore?.();
  }, [words, found.length, items]);
  // If the search was opened with a text, scroll to the last match.
  const isGiven = useRef(Boolean(words));
  useEffect(() => {
    if (!isGiven.current || !found.length) return;
    isGiven.current = false;
    go(found.length - 1);
  }, [found]);
  const go = (next) => {
    if (!found.length) return;
    const place = (next + found.length) % found.length;
    setAt(place);
    const item = found[place];
    if (["tool", "group", "thought"].includes(item.type)) onOpen((old) => new Set([...old, item.key]));
    onGo(item.key);
  };
  const onKey = (event) => {
    if (event.key === "Escape") onWords(null);
    else if (event.key === "Enter") go(event.shiftKey ? at - 1 : at + 1);
    else return;
    event.preventDefault();
  };
  return html`
    <div class="find" role="search">
      <input ref=${field} aria-label=${t("Find in the conversation")} placeholder=${t("Find in the conversation")} value=${words} onKeyDown=${onKey}
        onInput=${(event) => { onWords(event.target.value); setAt(-1); }} />
      <span class="hint" role="status">${words ? (found.length ? t("{0} of {1}", Math.max(at, 0) + 1, found.length) : loadMore ? t("Searching older events") : t("Not found")) : ""}</span>
      <${Button} icon="up" isIcon kind="bare" label=${t("The one before")} onPress=${() => go(at - 1)} />
      <${Button} icon="downward" isIcon kind="bare" label=${t("The next one")} onPress=${() => go(at + 1)} />
      <${Button} icon="cross" isIcon kind="bare" label=${t("Close")} onPress=${() => onWords(null)} />
    </div>
  `;
}

const textOfItem = ({ text, action, output, error, steps, summary }) => (steps ? steps.map(textOfItem).join("\n")
  : [text, summary, action?.command, action?.path, action?.file_text, output?.text, error].filter((one) => typeof one === "string").join("\n").toLowerCase());

function announcement(run, timeline) {
  if (run === "waiting_for_confirmation") return t("The agent asks for your confirmation");
  if (run === "running") return t("The agent is working");
  const last = timeline.items.at(-1);
  return run === "finished" && last?.type === "agent" ? t("The agent has finished: {0}", last.text.slice(0, 200)) : (run ?? "");
}

function Draft({ timeline }) {
  if (!timeline.draft && !timeline.draftThought) return null;
  return html`
    <div class="item"><div class="bubble agent draft" aria-busy="true"><h3 class="who">${t("Agent")}</h3>
      ${!timeline.draft && html`<p class="hint">${timeline.draftThought.slice(-400)}</p>`}
      <${Markdown} text=${timeline.draft} /></div></div>
  `;
}

function Confirmation({ conversation, timeline, attempt }) {
  const [reason, setReason] = useState("");
  const waiting = timeline.waiting;
  if (timeline.run !== "waiting_for_confirmation") return null;
  const answer = (accept) => () => attempt(async () => {
    const body = { accept };
    if (!accept && reason.trim()) body.reason = reason.trim();
    await post(`${agentPath(conversation)}/events/respond_to_confirmation`, body);
    setReason("");
  });
  // Click the button instead of calling `answer`: it ignores clicks while its request is pending.
  const onKey = (event) => event.key === "Enter" && !event.isComposing && !event.repeat && document.querySelector("button[data-key=reject]").click();
  return html`
    <section class="confirm" aria-label=${t("Confirmation")}>
      <h2>${t("The agent asks before it goes on")}</h2>
      ${waiting.map((item) => html`
        <div key=${item.key} class="confirm-call"><p><strong>${item.summary || item.tool}</strong>
          ${item.risk && item.risk !== "UNKNOWN" && html`<span class="pill ${item.risk === "HIGH" ? "bad" : "warn"}">${t("{0} risk", RISKS[item.risk] ?? item.risk)}</span>`}</p>
          <${Guarded}><${Call} action=${item.action} /><//></div>
      `)}
      <div class="confirm-actions">
        <input data-key="reason" aria-label=${t("Reason, if you reject")} placeholder=${t("Reason, if you reject")} value=${reason} onKeyDown=${onKey} onInput=${(event) => setReason(event.target.value)} />
        <${Button} kind="danger" icon="cross" needs="run" data-key="reject" onPress=${answer(false)} label=${t("Reject")} title=${t("Reject (R)")} />
        <${Button} kind="primary" icon="check" needs="run" data-key="confirm" onPress=${answer(true)} label=${t("Confirm")} title=${t("Confirm (A)")} />
      </div>
    </section>
  `;
}
