// The list of conversations: search, state and cost, and those that are being started.
import { getAll, keep, kept, V1 } from "./api.js";
import { needsYou } from "./attention.js";
import { ago, conversationState, money } from "./format.js";
import { html, useEffect, useState } from "./html.js";
import { refusal } from "./me.js";
import { useStore } from "./store.js";
import { Icon, Pill, Spinner } from "./ui.js";

const SEARCH_WAIT_MS = 250;

/** Return the ids of what the server finds for some words, or null while nothing is searched for. */
function useFound(words) {
  const [found, setFound] = useState(null);
  useEffect(() => {
    if (!words) return setFound(null);
    let isCurrent = true;
    const timer = setTimeout(async () => {
      const items = await getAll(`${V1}/app-conversations/search`, { title__contains: words }, 3).catch(() => []);
      if (isCurrent) setFound(items);
    }, SEARCH_WAIT_MS);
    return () => {
      isCurrent = false;
      clearTimeout(timer);
    };
  }, [words]);
  return found;
}

export function ConversationList({ route }) {
  const { conversations, tasks, isLoaded } = useStore();
  const [words, setWords] = useState("");
  const found = useFound(words.trim());
  const all = found ? found.map((one) => conversations.get(one.id) ?? one) : [...conversations.values()];
  const [pins, setPins] = useState(() => kept("pins") ?? []);
  const shown = all.filter((one) => !one.parent_conversation_id).sort((a, b) => (a.updated_at < b.updated_at ? 1 : -1));
  const groups = groupsOf(shown, pins);
  const pin = (id) => {
    const next = pins.includes(id) ? pins.filter((one) => one !== id) : [...pins, id];
    setPins(next);
    keep("pins", next.length ? next : null);
  };
  const starting = [...tasks.values()].filter((task) => task.status !== "READY").sort((a, b) => (a.created_at < b.created_at ? 1 : -1));
  return html`
    <div class="list">
      ${!refusal("run") && html`<a class="button primary wide" href="#/new"><${Icon} name="plus" /><span>New conversation</span></a>`}
      <label class="search">
        <${Icon} name="search" />
        <input type="search" data-key="search" placeholder="Search" aria-label="Search conversations" value=${words}
          onInput=${(event) => setWords(event.target.value)} />
      </label>
      ${!isLoaded && html`<${Spinner} />`}
      ${isLoaded && !shown.length && !starting.length && html`
        <p class="none">${words ? "Nothing has these words in its title." : "There are no conversations so far."}</p>
      `}
      <ul class="rows" aria-label="Conversations">
        ${starting.map((task) => html`<${StartingRow} key=${task.id} task=${task} route=${route} />`)}
        ${groups.map(([name, members]) => html`
          <li key=${name}><h2 class="row-group">${name}</h2><ul aria-label=${name}>
            ${members.map((one) => html`<${Row} key=${one.id} conversation=${one} route=${route} isPinned=${pins.includes(one.id)} onPin=${() => pin(one.id)} />`)}
          </ul></li>`)}
      </ul>
    </div>
  `;
}

const DAY_MS = 86_400_000;

/** Return [name, conversations] for each group that has any: what needs the user, what is pinned, the rest by date. */
function groupsOf(conversations, pins) {
  const today = new Date().setHours(0, 0, 0, 0);
  const ages = [["Today", today], ["Yesterday", today - DAY_MS], ["Last 7 days", today - 7 * DAY_MS], ["Earlier", -Infinity]];
  const groups = new Map([["Needs you", []], ["Pinned", []], ...ages.map(([name]) => [name, []])]);
  for (const one of conversations) {
    const at = Date.parse(one.updated_at);
    const name = needsYou(one) ? "Needs you" : pins.includes(one.id) ? "Pinned" : ages.find(([, from]) => at >= from)[0];
    groups.get(name).push(one);
  }
  return [...groups].filter(([, members]) => members.length);
}

function Row({ conversation, route, isPinned, onPin }) {
  const href = `/c/${conversation.id}`;
  const cost = conversation.metrics?.accumulated_cost;
  return html`
    <li class="row-box">
      <button type="button" class="pin" aria-pressed=${String(isPinned)} aria-label=${`Pin ${conversation.title || "Untitled"}`} onClick=${onPin}><${Icon} name="pin" /></button>
      <a class="row" href="#${href}" aria-current=${route.startsWith(href) ? "page" : null}>
        <span class="row-title">${conversation.title || "Untitled"}</span>
        <span class="row-facts">
          <${Pill} state=${conversationState(conversation)} />
          ${conversation.selected_repository && html`<span class="cut">${conversation.selected_repository}</span>`}
          <span class="row-end">${cost ? html`<span>${money(cost)}</span>` : null}
          <time datetime=${conversation.updated_at}>${ago(conversation.updated_at)}</time></span>
        </span>
      </a>
    </li>
  `;
}

function StartingRow({ task, route }) {
  const href = `/start/${task.id}`;
  return html`
    <li>
      <a class="row" href="#${href}" aria-current=${route === href ? "page" : null}>
        <span class="row-title">${task.request.title || firstText(task) || "New conversation"}</span>
        <span class="row-facts"><${Pill} state=${task.status === "ERROR" ? ["Not started", "bad"] : ["Starting", "busy"]} /></span>
      </a>
    </li>
  `;
}

export const firstText = (task) => task.request.initial_message?.content?.find((part) => part.text)?.text ?? "";
