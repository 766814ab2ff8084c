// The list of conversations, with search, state and cost, and of starts in progress.
import { conversationPath, get, getAll, patch, V1 } from "./api.js";
import { needsYou } from "./attention.js";
import { ago, conversationState, money } from "./format.js";
import { html, useEffect, useState } from "./html.js";
import { refusal } from "./me.js";
import { store, useStore } from "./store.js";
import { Icon, Pill, Problem, Spinner, tell } from "./ui.js";
import { t } from "./words.js";

const SEARCH_WAIT_MS = 250;
/** Number of conversations from which a notice says that older ones are found by searching, which covers all. */
const MOST = 1000;
/** Labels that determine where a conversation is listed; all others are the user's own. */
export const PINNED = "pinned";
export const ARCHIVED = "archived";

/** Return the server's search results, {conversations, messages, error}, or null if no text is searched for. */
function useFound(words) {
  const [found, setFound] = useState(null);
  useEffect(() => {
    if (!words) return setFound(null);
    let isCurrent = true;
    const timer = setTimeout(async () => {
      let error = null;
      const none = (problem) => {
        error = problem;
        return [];
      };
      const [conversations, messages] = await Promise.all([
        getAll(`${V1}/app-conversations/search`, { title__contains: words }, 3).catch(none),
        words.length < 2 ? [] : get(`${V1}/messages/search`, { text__contains: words, limit: 20 }).catch(none),
      ]);
      if (isCurrent) setFound({ conversations, messages, error });
    }, SEARCH_WAIT_MS);
    return () => {
      isCurrent = false;
      clearTimeout(timer);
    };
  }, [words]);
  return found;
}

let lastChange = Promise.resolve();

/** Change a conversation's labels, based on those that the server has now, since the displayed ones may be outdated. */
export function changeLabels(conversation, change) {
  const work = async () => {
    const [now] = await get(`${V1}/app-conversations?ids=${conversation.id}`);
    store.conversations.set(conversation.id, await patch(conversationPath(conversation.id), { labels: change(now.labels) }));
    store.tell();
  };
  // Changes run one after the other, so that each is based on the result of the previous one.
  lastChange = lastChange.then(work, work);
  return lastChange;
}

/** Add a label to a conversation, or remove it if the conversation has it. */
export const toggleLabel = (conversation, label) => {
  const isOn = conversation.labels.includes(label);
  return changeLabels(conversation, (labels) => [...labels.filter((one) => one !== label), ...(isOn ? [] : [label])]);
};

export const ownLabels = ({ labels }) => labels.filter((one) => ![PINNED, ARCHIVED].includes(one));

export function ConversationList({ route }) {
  const { conversations, tasks, isLoaded } = useStore();
  const [words, setWords] = useState("");
  const [label, setLabel] = useState("");
  const found = useFound(words.trim());
  const known = [...conversations.values()];
  const all = (found ? found.conversations.map((one) => conversations.get(one.id) ?? one) : known).filter((one) => !one.parent_conversation_id);
  const labels = [...new Set(known.flatMap(ownLabels))].sort((a, b) => a.localeCompare(b));
  if (known.some((one) => one.labels.includes(ARCHIVED))) labels.push(ARCHIVED);
  const chosen = labels.includes(label) ? label : "";
  // Archived conversations are listed in searches, under a label that they have, and if they need the user.
  const isShown = (one) => (chosen ? one.labels.includes(chosen) : words || needsYou(one) || !one.labels.includes(ARCHIVED));
  const shown = all.filter(isShown).sort((a, b) => (a.updated_at < b.updated_at ? 1 : -1));
  // A start has no labels yet, and is searched by its title.
  const isWanted = (task) => task.status !== "READY" && !chosen && titleOfStart(task).toLowerCase().includes(words.trim().toLowerCase());
  const starting = [...tasks.values()].filter(isWanted).sort((a, b) => (a.created_at < b.created_at ? 1 : -1));
  return html`
    <div class="list">
      ${!refusal("run") && html`<a class="button primary wide" href="#/new"><${Icon} name="plus" /><span>${t("New conversation")}</span></a>`}
      <label class="search">
        <${Icon} name="search" />
        <input type="search" data-key="search" placeholder=${t("Search")} aria-label=${t("Search conversations")} value=${words}
          onInput=${(event) => setWords(event.target.value)} />
      </label>
      ${labels.length > 0 && html`<div class="chips" role="group" aria-label=${t("Labels")}>
        ${labels.map((one) => html`<button type="button" key=${one} aria-pressed=${String(one === chosen)} onClick=${() => setLabel(one === chosen ? "" : one)}>${one === ARCHIVED ? t("Archived") : one}</button>`)}
      </div>`}
      ${!isLoaded && html`<${Spinner} />`}
      <${Problem} error=${found?.error} />
      ${isLoaded && !shown.length && !starting.length && !found?.messages.length && !found?.error && html`
        <p class="none">${words ? t("No conversation contains these words.") : t("There are no conversations so far.")}</p>
      `}
      <ul class="rows" aria-label=${t("Conversations")}>
        ${starting.map((task) => html`<${StartingRow} key=${task.id} task=${task} route=${route} />`)}
        ${groupsOf(shown).map(([name, members]) => html`
          <li key=${name}><h2 class="row-group">${name}</h2><ul aria-label=${name}>
            ${members.map((one) => html`<${Row} key=${one.id} conversation=${one} route=${route} />`)}
          </ul></li>`)}
        ${!found && known.length >= MOST && html`<li key="older"><p class="none">${t("Older ones are found by searching.")}</p></li>`}
        ${found?.messages.length > 0 && html`<li key="messages"><h2 class="row-group">${t("In messages")}</h2><ul aria-label=${t("In messages")}>
          ${found.messages.map((one) => html`<li key=${one.event_id}><a class="row" href=${`#/c/${one.conversation_id}?find=${encodeURIComponent(words.trim())}`}>
            <span class="row-title">${conversations.get(one.conversation_id)?.title || t("Untitled")}</span>
            <span class="row-excerpt">${one.source === "user" ? t("You: ") : ""}<${Marked} text=${one.excerpt} words=${words.trim()} /></span></a></li>`)}
        </ul></li>`}
      </ul>
    </div>
  `;
}

/** A text with the first match of a search marked. */
function Marked({ text, words }) {
  const at = text.toLowerCase().indexOf(words.toLowerCase());
  if (at < 0) return text;
  return html`${text.slice(0, at)}<mark>${text.slice(at, at + words.length)}</mark>${text.slice(at + words.length)}`;
}

const DAY_MS = 86_400_000;

/** Return [name, conversations] for each group that is not empty: those that need the user, pinned ones, the others by date. */
function groupsOf(conversations) {
  const today = new Date().setHours(0, 0, 0, 0);
  const ages = [[t("Today"), today], [t("Yesterday"), today - DAY_MS], [t("Last 7 days"), today - 7 * DAY_MS], [t("Earlier"), -Infinity]];
  const groups = new Map([[t("Needs you"), []], [t("Pinned"), []], ...ages.map(([name]) => [name, []])]);
  for (const one of conversations) {
    const at = Date.parse(one.updated_at);
    const name = needsYou(one) ? t("Needs you") : one.labels.includes(PINNED) ? t("Pinned") : ages.find(([, from]) => at >= from)[0];
    groups.get(name).push(one);
  }
  return [...groups].filter(([, members]) => members.length);
}

function Row({ conversation, route }) {
  const href = `/c/${conversation.id}`;
  const cost = conversation.metrics?.accumulated_cost;
  const title = conversation.title || t("Untitled");
  const toggle = (label, icon, name) => html`<button type="button" aria-pressed=${String(conversation.labels.includes(label))} title=${name} aria-label=${`${name} ${title}`}
    onClick=${() => toggleLabel(conversation, label).catch(tell)}><${Icon} name=${icon} /></button>`;
  return html`
    <li class="row-box">
      ${!refusal("run") && html`<span class="row-acts">${toggle(ARCHIVED, "box", t("Archive"))}${toggle(PINNED, "pin", t("Pin"))}</span>`}
      <a class="row" href="#${href}" aria-current=${route.startsWith(href) ? "page" : null}>
        <span class="row-title">${title}</span>
        <span class="row-facts">
          <${Pill} state=${conversationState(conversation)} />
          ${conversation.selected_repository && html`<span class="cut">${conversation.selected_repository}</span>`}
          ${ownLabels(conversation).map((one) => html`<span class="tag" key=${one}>${one}</span>`)}
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
        <span class="row-title">${titleOfStart(task)}</span>
        <span class="row-facts"><${Pill} state=${task.status === "ERROR" ? [t("Not started"), "bad"] : [t("Starting"), "busy"]} /></span>
      </a>
    </li>
  `;
}

const titleOfStart = (task) => task.request.title || firstText(task) || t("New conversation");

export const firstText = (task) => task.request.initial_message?.content?.find((part) => part.text)?.text ?? "";
