// Starting a conversation: the form, and the progress of the start.
import { get, getAll, isRefusal, keep, kept, newId, onKept, post, textContent, V1 } from "./api.js";
import { firstText } from "./conversations.js";
import { STAGES, ago } from "./format.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "./html.js";
import { Picker } from "./picker.js";
import { modelName, useProfiles } from "./runwith.js";
import { store, useLoaded, useStore } from "./store.js";
import { Button, Empty, Head, Problem, SelectField, Spinner, go, tell, useIsThere } from "./ui.js";
import { t } from "./words.js";

const DRAFT = "draft new";
const EXAMPLES = [
  [t("Explain a repository"), t("Read this repository, and write down what it does, how it is built and tested, and where to begin reading.")],
  [t("Fix failing tests"), t("Run the tests. Find out why some fail, fix the cause and not the test, and show that all pass.")],
  [t("Add tests"), t("Find the part of the code that is tested least but used most, and write tests for it in the style of those that are there.")],
  [t("Update dependencies"), t("Bring the dependencies up to date one by one. Run the tests after each, and leave out what breaks them, with the reason.")],
];
const EMPTY = { message: "", repository: "", branch: "", spec: "", provider: "", mode: "" };
const asText = (form) => JSON.stringify({ ...form, key: undefined });
const MODES = [["", t("Do the task")], ["plan", t("Write a plan only, into PLAN.md")]];

export function NewConversation({ settings, onSettings }) {
  const [form, setForm] = useState(() => ({ ...EMPTY, ...kept(DRAFT) }));
  const starting = useRef(null);
  const isThere = useIsThere();
  const [error, setError] = useState(null);
  const specs = useLoaded(() => getAll(`${V1}/sandbox-specs/search`));
  // A changed request needs a new idempotency key.
  const change = (name) => (value) => setForm((old) => ({ ...old, key: undefined, [name]: value }));
  useLayoutEffect(() => {
    if (!starting.current) keep(DRAFT, form);
  }, [form]);
  // Clear a draft that another tab has started, so that it is not started again here.
  useEffect(() => onKept((name, old) => name === DRAFT && kept(name) === null
    && setForm((now) => (asText(now) === asText(JSON.parse(old)) ? EMPTY : now))), []);
  /** Send the start request. A retry after a missing response uses the same key, so that one conversation is started. */
  const begin = async () => {
    setError(null);
    const key = form.key ?? newId();
    change("key")(key);
    keep(DRAFT, { ...form, key });
    try {
      const task = await post(`${V1}/app-conversations`, await toOrder(form, key), key);
      store.tasks.set(task.id, task);
      store.tell();
      // Do not redirect a user who has left the page meanwhile, and keep a draft written since.
      if (kept(DRAFT)?.message === form.message) keep(DRAFT, null);
      if (isThere.current) go(`/start/${task.id}`);
    } catch (problem) {
      if (isRefusal(problem)) change("key")(undefined);
      starting.current = null;
      (isThere.current ? setError : tell)(problem);
    }
  };
  const start = () => (starting.current ??= begin());
  const onKey = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) start();
  };
  return html`
    <${Head} title=${t("New conversation")} />
    <div class="page">
      <form class="composer-page" onSubmit=${(event) => event.preventDefault()}>
        <h2 class="lead">${t("What should the agent do?")}</h2>
        <label class="hidden" for="first-message">${t("Message")}</label>
        <textarea id="first-message" rows="6" value=${form.message} onKeyDown=${onKey}
          placeholder=${t("Describe the task. Name files, and say how to tell that it is done.")}
          onInput=${(event) => change("message")(event.target.value)}></textarea>
        ${!form.message && html`<ul class="examples" aria-label=${t("Examples")}>
          ${EXAMPLES.map(([name, text]) => html`<li key=${name}><button type="button" onClick=${() => { change("message")(text); document.getElementById("first-message").focus(); }}>${name}</button></li>`)}
        </ul>`}
        <${Repository} form=${form} change=${change} providers=${Object.keys(settings?.provider_tokens_set ?? {})} />
        ${(specs.value?.length ?? 0) > 1 && html`
          <${SelectField} label=${t("Sandbox spec")} hint=${t("Template of the sandbox: its image, limits and network.")}
            value=${form.spec} onValue=${change("spec")}
            options=${[["", t("As in your settings")], ...specs.value.map((spec) => [spec.id, spec.id])]} />
        `}
        <div class="pair even">
          <${Model} settings=${settings} onSettings=${onSettings} onError=${setError} />
          <${SelectField} label=${t("Mode")} value=${form.mode} onValue=${change("mode")} options=${MODES} />
        </div>
        <${Problem} error=${error} title=${t("It could not be started")} />
        <div class="actions">
          <${Button} kind="primary" icon="send" needs="run" onPress=${start} label=${t("Start")} />
        </div>
      </form>
    </div>
  `;
}

const OTHER = "other";

/** A menu of the saved models; the chosen one becomes the model of the settings. */
function Model({ settings, onSettings, onError }) {
  const { profiles, active } = useProfiles();
  const [chosen, setChosen] = useState(null);
  const choose = async (name) => {
    if (name === OTHER) return go("/setup");
    const before = chosen;
    setChosen(name);
    if (!name) return undefined;
    try {
      await post(`${V1}/settings/profiles/${encodeURIComponent(name.slice(1))}/activate`);
      await onSettings();
    } catch (problem) {
      setChosen(before);
      onError(problem);
    }
  };
  // Prefix saved models, which may have any name, to distinguish them from the other options.
  const options = [
    ...(active ? [] : [["", modelName(settings?.llm_model) || t("None so far")]]),
    ...profiles.map(({ name, model }) => [`=${name}`, model ? `${name} (${modelName(model)})` : name]),
    [OTHER, t("Another one …")],
  ];
  return html`<${SelectField} label=${t("Model")} value=${chosen ?? (active ? `=${active}` : "")} onValue=${choose} options=${options} />`;
}

/** Return the request body. A start cannot name a spec, so a sandbox of the chosen spec is created for it first. */
async function toOrder({ message, repository, branch, spec, provider, mode }, key) {
  const order = { trigger: "gui" };
  if (mode) order.agent_type = mode;
  if (message.trim()) order.initial_message = { role: "user", content: textContent(message.trim()) };
  if (repository.trim()) {
    order.selected_repository = repository.trim();
    order.selected_branch = branch.trim() || null;
    order.git_provider = provider || null;
  }
  if (spec) order.sandbox_id = (await post(`${V1}/sandboxes?sandbox_spec_id=${encodeURIComponent(spec)}`, {}, `${key}-sandbox`)).id;
  return order;
}

function Repository({ form, change, providers }) {
  const provider = form.provider || providers[0] || "";
  const [found, setFound] = useState([]);
  const findRepositories = async (query) => {
    const { items } = await get(`${V1}/git/repositories/search`, { provider, query, limit: 30 });
    setFound(items);
    return items.map((one) => ({ name: one.full_name, detail: [one.is_public ? t("public") : t("private"), one.pushed_at && t("pushed {0}", ago(one.pushed_at))].filter(Boolean).join(", ") }));
  };
  const main = found.find((one) => one.full_name === form.repository)?.main_branch;
  const findBranches = async (query) => {
    const { items } = await get(`${V1}/git/branches/search`, { provider, repository: form.repository, query: query || " ", limit: 30 });
    return items.map((one) => ({ name: one.name, detail: [one.name === main && t("default"), one.protected && t("protected"), one.last_push_date && ago(one.last_push_date)].filter(Boolean).join(", ") }));
  };
  return html`
    <fieldset class="pair">
      <legend>${t("Repository")}</legend>
      ${providers.length > 1 && html`
        <${SelectField} label=${t("Provider")} value=${provider} onValue=${change("provider")} options=${providers.map((one) => [one, one])} />
      `}
      <${Picker} label=${t("Repository")} hint=${provider ? t("Choose one, or leave it empty for an empty workspace") : html`${t("A URL, or")} <a href="#/settings/git">${t("connect a git provider")}</a> ${t("to choose; empty for an empty workspace")}`}
        value=${form.repository} onValue=${change("repository")} find=${provider && findRepositories} keys=${[provider]} placeholder=${provider ? "owner/name" : "https://"} />
      <${Picker} label=${t("Branch")} hint=${t("Empty: a new branch of the default one")} value=${form.branch} onValue=${change("branch")}
        find=${provider && form.repository.includes("/") && findBranches} keys=${[provider, form.repository]} />
    </fieldset>
  `;
}

/** Open the form with an earlier request. Its spec is that of the sandbox that the request named, if that still exists. */
export async function askAgain(message, { selected_repository, selected_branch, git_provider, agent_type, sandbox_id }) {
  const sandbox = sandbox_id && (await get(`${V1}/sandboxes/${sandbox_id}`).catch(() => null));
  // Keep the current draft, but do not repeat the message in it.
  const draft = kept(DRAFT)?.message ?? "";
  const rest = `${draft}\n\n`.startsWith(`${message}\n\n`) ? draft.slice(message.length) : draft;
  keep(DRAFT, {
    message: [message, rest.trim()].filter(Boolean).join("\n\n"), repository: selected_repository ?? "", branch: selected_branch ?? "", provider: git_provider ?? "",
    spec: sandbox?.sandbox_spec_id ?? "", mode: agent_type === "plan" ? agent_type : "",
  });
  go("/new");
}

export function StartProgress({ id }) {
  const { tasks } = useStore();
  const asked = useLoaded(async () => (await get(`${V1}/app-conversations/start-tasks`, { ids: id }))[0], [id]);
  const task = newer(tasks.get(id), asked.value);
  const reached = useRef(0);
  useEffect(() => {
    if (task?.status === "READY") location.replace(`#/c/${task.app_conversation_id}`);
  }, [task?.status]);
  useEffect(() => {
    const timer = setInterval(asked.look, 3000);
    return () => clearInterval(timer);
  }, []);
  if (asked.error) return html`<div class="page"><${Problem} error=${asked.error} onAgain=${asked.again} /></div>`;
  if (!task && asked.isLoading) return html`<${Spinner} />`;
  if (!task) return html`<${Empty} icon="chat" title=${t("There is no such start")}>${t("Old starts are deleted after some time.")}<//>`;
  const at = STAGES.findIndex(([name]) => name === task.status);
  if (at >= 0) reached.current = Math.max(reached.current, at);
  const isFailed = task.status === "ERROR";
  const again = () => askAgain(firstText(task), task.request);
  return html`
    <${Head} title=${isFailed ? t("The start failed") : t("Starting")} />
    <div class="page">
      ${firstText(task) && html`<blockquote class="asked">${firstText(task)}</blockquote>`}
      <ol class="stages">
        ${STAGES.map(([name, label], i) => html`
          <li key=${name} class=${stageClass(i, task.status === "READY" ? STAGES.length : reached.current, isFailed)}>
            <span class="stage-mark" aria-hidden="true"></span>${label}
            ${i === reached.current && !isFailed && task.detail && html`<span class="hint">${task.detail}</span>`}
          </li>
        `)}
      </ol>
      ${task.queued_messages > 0 && html`<p class="hint">${t("{0} queued for the agent.", task.queued_messages === 1 ? t("A message is") : t("{0} messages are", task.queued_messages))}</p>`}
      ${task.queue_position && html`<p class="hint">${t("Place {0} in the queue.", task.queue_position)}</p>`}
      ${isFailed && html`
        <${Problem} title=${t("What happened")} error=${{ message: task.detail ?? t("The server did not say why") }} />
        <div class="actions">
          <a class="button" href="#/setup">${t("Check the model")}</a>
          <a class="button" href="#/sandboxes">${t("Look at the sandboxes")}</a>
          <${Button} kind="primary" icon="refresh" needs="run" onPress=${again} label=${t("Try again")} />
        </div>
      `}
      <p class="hidden" role="status">${isFailed ? t("The start failed") : STAGES[reached.current][1]}</p>
    </div>
  `;
}

function newer(a, b) {
  if (!a || !b) return a ?? b;
  return a.updated_at >= b.updated_at ? a : b;
}

function stageClass(i, reached, isFailed) {
  if (i < reached) return "done";
  if (i > reached) return "";
  return isFailed ? "failed" : "current";
}
