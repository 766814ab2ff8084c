// Attempts: one task given to several agents at once, a comparison of the results, and the choice of one to continue.
import { get, isRefusal, newId, post, remove } from "./api.js";
import { ago, money, span } from "./format.js";
import { toNumber } from "./forms.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { useForm, useList, useLoaded, useStore } from "./store.js";
import { Button, Empty, Field, Head, Pill, Problem, Question, Spinner, TextField, tell } from "./ui.js";
import { t } from "./words.js";

const PATH = "api/v1/attempts";
const LOOK_MS = 2000;
const STATES = {
  queued: [t("Waiting"), "quiet"],
  starting: [t("Starting"), "busy"],
  running: [t("Working"), "busy"],
  finished: [t("Finished"), "good"],
  failed: [t("Failed"), "bad"],
  cancelled: [t("Cancelled"), "quiet"],
  chosen: [t("Chosen"), "good"],
  discarded: [t("Discarded"), "quiet"],
};
const OPEN = ["queued", "starting", "running"];
const COUNT = t("Number of attempts");
const BUDGET = t("Budget of all in US dollars");
const EMPTY = { message: "", count: "3", models: "", repository: "", branch: "", test_command: "", budget: "" };

/** Whether this server has attempts; false until it has answered. */
export const useHasAttempts = () => Boolean(useLoaded(() => get(PATH)).value);

function toOrder(form, conversation) {
  const order = { message: form.message, count: toNumber(COUNT, form.count), budget: toNumber(BUDGET, form.budget), test_command: form.test_command.trim() || null };
  const models = form.models.split(/[\s,]+/).filter(Boolean);
  if (conversation) return { ...order, models, conversation_id: conversation };
  return { ...order, models, repository: form.repository.trim() || null, branch: form.branch.trim() || null };
}

export function AttemptsPage({ conversation }) {
  const all = useList(async () => (await get(PATH)).items, tell);
  const { conversations } = useStore();
  const [form, field, clear] = useForm(EMPTY);
  const [doomed, setDoomed] = useState(null);
  const key = useRef(null);
  const isBusy = all.value?.some((one) => one.attempts.some(({ status }) => OPEN.includes(status)));
  useEffect(() => {
    const timer = isBusy && setInterval(all.look, LOOK_MS);
    return () => clearInterval(timer);
  }, [isBusy]);
  const begin = all.act(async () => {
    // Retries use the same key, so that the attempts are created once.
    key.current ??= newId();
    try {
      await post(PATH, toOrder(form, conversation), key.current);
      clear();
      key.current = null;
    } catch (problem) {
      if (isRefusal(problem)) key.current = null;
      throw problem;
    }
  });
  return html`
    <${Head} title=${t("Attempts")}><${Button} icon="refresh" isIcon kind="bare" label=${t("Look again")} onPress=${all.again} /><//>
    <div class="page wide-page">
      <${Problem} error=${all.error} />
      ${all.isLoading && !all.value && html`<${Spinner} />`}
      <details class="card" open=${Boolean(conversation)}><summary>${t("Give a task to several agents")}</summary>
        ${conversation && html`<p class="hint">${t("Each is a fork of {0}.", conversations.get(conversation)?.title ?? conversation)}</p>`}
        <${Field} label=${t("Task")}>${(ids) => html`<textarea ...${ids} rows="4" value=${form.message} onInput=${(event) => field("message").onValue(event.target.value)}></textarea>`}<//>
        <${TextField} label=${COUNT} inputmode="numeric" ...${field("count")} />
        <${TextField} label=${t("Models")} hint=${t("Saved models, or names of models, which they get in turn; empty: that of the settings")} spellcheck="false" ...${field("models")} />
        ${!conversation && html`
          <${TextField} label=${t("Repository")} hint=${t("owner/name, or a URL; empty: none")} spellcheck="false" ...${field("repository")} />
          <${TextField} label=${t("Branch")} hint=${t("Empty: the default branch")} spellcheck="false" ...${field("branch")} />`}
        <${TextField} label=${t("Test")} hint=${t("A command to run in the workspace of each finished attempt; empty: none")} class="mono" spellcheck="false" ...${field("test_command")} />
        <${TextField} label=${BUDGET} hint=${t("Empty: as the settings say")} inputmode="decimal" ...${field("budget")} />
        <div class="actions"><${Button} kind="primary" needs="run" onPress=${begin} label=${t("Begin")} /></div>
      </details>
      ${all.value?.length === 0 && html`<${Empty} icon="fork" title=${t("No attempts")}>${t("Several agents or models work on the same task. Compare their changes and continue with one attempt.")}<//>`}
      <ul class="cards">${(all.value ?? []).map((one) => html`<${Task} key=${one.id} one=${one} act=${all.act} onDelete=${() => setDoomed(one)} />`)}</ul>
    </div>
    ${doomed && html`
      <${Question} title=${t("Delete {0}?", doomed.name)} action=${t("Delete")} onClose=${() => setDoomed(null)}
        text=${t("Deletes the conversations of all attempts except the chosen one.")}
        onYes=${async () => {
          await remove(`${PATH}/${doomed.id}`);
          all.again();
        }} />
    `}
  `;
}

function Task({ one, act, onDelete }) {
  const [asked, setAsked] = useState(null);
  const choose = (number, keep_others) => post(`${PATH}/${one.id}/choose`, { attempt: number, keep_others });
  const spent = [money(one.cost), one.budget != null && t("of {0}", money(one.budget)), ago(one.created_at)].filter(Boolean).join(" · ");
  return html`
    <li class="card">
      <h3>${one.name}</h3>
      <p class="hint">${spent}</p>
      ${one.is_over_budget && html`<p class="bad-text">${t("They were stopped: the budget is used up.")}</p>`}
      <div class="scrolls" tabindex="0" role="group" aria-label=${one.name}>
        <table class="numbers"><caption class="hidden">${t("Attempts")}</caption>
          <thead><tr>${["", t("State"), t("Model"), t("Changes"), t("Tests"), t("Time"), t("Cost"), ""].map((name, i) => html`<th key=${i} scope="col">${name}</th>`)}</tr></thead>
          <tbody>${one.attempts.map((attempt) => html`<${Attempt} key=${attempt.number} attempt=${attempt} isOpen=${one.chosen === null} onChoose=${() => setAsked(attempt.number)} />`)}</tbody>
        </table>
      </div>
      <div class="actions"><${Button} kind="danger" icon="trash" needs="run" onPress=${onDelete} label=${t("Delete")} /></div>
      ${asked && html`
        <${Question} title=${t("Go on with attempt {0}?", asked)} action=${t("Go on with it")} onClose=${() => setAsked(null)}
          text=${t("The conversations of the others are deleted, with their sandboxes.")}
          onYes=${act(() => choose(asked, false))} />
      `}
    </li>
  `;
}

function Attempt({ attempt, isOpen, onChoose }) {
  const { number, status, detail, conversation_id: conversation, test_exit_code: code } = attempt;
  const isThere = !["queued", "starting", "discarded"].includes(status);
  const changes = attempt.files != null && t("{0} files, +{1} -{2}", attempt.files, attempt.additions, attempt.deletions);
  const tests = code != null && (code === 0 ? [t("Passed"), "good"] : [t("Failed: {0}", code), "bad"]);
  return html`
    <tr>
      <th scope="row">${isThere ? html`<a href=${`#/c/${conversation}`}>${t("Attempt {0}", number)}</a>` : t("Attempt {0}", number)}</th>
      <td><${Pill} state=${STATES[status]} />${detail && html`<p class="hint">${detail}</p>`}</td>
      <td>${attempt.model}</td>
      <td>${changes}</td>
      <td>${tests && html`<${Pill} state=${tests} />`}</td>
      <td>${attempt.duration_seconds != null && span(attempt.duration_seconds)}</td>
      <td>${money(attempt.cost)}</td>
      <td>${isOpen && isThere && html`<${Button} needs="run" onPress=${onChoose} label=${t("Choose")} aria-label=${t("Choose attempt {0}", number)} />`}</td>
    </tr>
  `;
}
