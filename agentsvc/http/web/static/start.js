// Starting a conversation: what to ask for, and how far the start has come.
import { get, getAll, keep, kept, newId, post, textContent, V1 } from "./api.js";
import { firstText } from "./conversations.js";
import { STAGES } from "./format.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { store, useLoaded, useStore } from "./store.js";
import { Button, Empty, Head, Icon, Problem, SelectField, Spinner, TextField, go } from "./ui.js";

const SEARCH_WAIT_MS = 300;
const DRAFT = "draft new";
const EXAMPLES = [
  ["Explain a repository", "Read this repository, and write down what it does, how it is built and tested, and where to begin reading."],
  ["Mend failing tests", "Run the tests. Find out why some fail, mend the cause and not the test, and show that all pass."],
  ["Add tests", "Find the part of the code that is tested least but used most, and write tests for it in the style of those that are there."],
  ["Update dependencies", "Bring the dependencies up to date one by one. Run the tests after each, and leave out what breaks them, with the reason."],
];
const EMPTY = { message: "", repository: "", branch: "", spec: "", provider: "" };

export function NewConversation({ settings }) {
  const [form, setForm] = useState(() => ({ ...EMPTY, ...kept(DRAFT) }));
  const starting = useRef(null);
  const [error, setError] = useState(null);
  const specs = useLoaded(() => getAll(`${V1}/sandbox-specs/search`));
  const change = (name) => (value) => setForm((old) => ({ ...old, [name]: value }));
  useEffect(() => {
    if (!starting.current) keep(DRAFT, form);
  }, [form]);
  /** Start once, however often this is called meanwhile: what nobody answered is asked again with the same key. */
  const begin = async () => {
    setError(null);
    const key = form.key ?? newId();
    change("key")(key);
    keep(DRAFT, { ...form, key });
    try {
      const task = await post(`${V1}/app-conversations`, await toOrder(form, key), key);
      keep(DRAFT, null);
      store.tasks.set(task.id, task);
      go(`/start/${task.id}`);
    } catch (problem) {
      if (problem.status) change("key")(undefined);
      starting.current = null;
      setError(problem);
    }
  };
  const start = () => (starting.current ??= begin());
  const onKey = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) start();
  };
  return html`
    <${Head} title="New conversation" />
    <div class="page">
      <form class="composer-page" onSubmit=${(event) => event.preventDefault()}>
        <h2 class="lead">What should the agent do?</h2>
        <label class="hidden" for="first-message">Message</label>
        <textarea id="first-message" rows="6" value=${form.message} onKeyDown=${onKey}
          placeholder="Describe the task. Name files, and say how to tell that it is done."
          onInput=${(event) => change("message")(event.target.value)}></textarea>
        ${!form.message && html`<ul class="examples" aria-label="Examples">
          ${EXAMPLES.map(([name, text]) => html`<li key=${name}><button type="button" onClick=${() => { change("message")(text); document.getElementById("first-message").focus(); }}>${name}</button></li>`)}
        </ul>`}
        <${Repository} form=${form} change=${change} providers=${Object.keys(settings?.provider_tokens_set ?? {})} />
        ${(specs.value?.length ?? 0) > 1 && html`
          <${SelectField} label="Sandbox spec" hint="What the sandbox is made from: its image, limits and network."
            value=${form.spec} onValue=${change("spec")}
            options=${[["", "As in your settings"], ...specs.value.map((spec) => [spec.id, spec.id])]} />
        `}
        <${Problem} error=${error} title="It could not be started" />
        <div class="actions">
          <span class="hint">${settings?.llm_model ? html`Model: <code>${settings.llm_model}</code>` : html`<a href="#/setup">Choose a model first</a>`}</span>
          <${Button} kind="primary" icon="send" needs="run" onPress=${start} label="Start" />
        </div>
      </form>
    </div>
  `;
}

/** A spec is named by a sandbox that follows it. */
async function toOrder({ message, repository, branch, spec, provider }, key) {
  const order = { trigger: "gui" };
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
  const repositories = useSuggestions(
    provider && form.repository !== null && [`${V1}/git/repositories/search`, { provider, query: form.repository, limit: 20 }],
    (one) => one.full_name,
  );
  const branches = useSuggestions(
    provider && form.repository.includes("/") && [`${V1}/git/branches/search`, { provider, repository: form.repository, query: form.branch || " " }],
    (one) => one.name,
  );
  return html`
    <fieldset class="pair">
      <legend>Repository</legend>
      ${providers.length > 1 && html`
        <${SelectField} label="Provider" value=${provider} onValue=${change("provider")} options=${providers.map((one) => [one, one])} />
      `}
      <${TextField} label="Repository" hint="owner/name, or leave it empty for an empty workspace" value=${form.repository}
        onValue=${change("repository")} list="repositories" placeholder="owner/name" autocomplete="off" spellcheck="false" />
      <${TextField} label="Branch" hint="Empty: a new branch of the default one" value=${form.branch} onValue=${change("branch")}
        list="branches" autocomplete="off" spellcheck="false" />
      <datalist id="repositories">${repositories.map((name) => html`<option value=${name} />`)}</datalist>
      <datalist id="branches">${branches.map((name) => html`<option value=${name} />`)}</datalist>
    </fieldset>
  `;
}

/** Return what the git provider suggests for a search, once nothing has been typed for a moment. */
function useSuggestions(search, show) {
  const [found, setFound] = useState([]);
  const key = JSON.stringify(search || null);
  useEffect(() => {
    if (!search) return setFound([]);
    let isCurrent = true;
    const timer = setTimeout(async () => {
      // They only help: a provider that does not answer stands in the way of nothing.
      const page = await get(...search).catch(() => ({ items: [] }));
      if (isCurrent) setFound(page.items.map(show));
    }, SEARCH_WAIT_MS);
    return () => {
      isCurrent = false;
      clearTimeout(timer);
    };
  }, [key]);
  return found;
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
    const timer = setInterval(asked.again, 3000);
    return () => clearInterval(timer);
  }, []);
  if (asked.error) return html`<div class="page"><${Problem} error=${asked.error} onAgain=${asked.again} /></div>`;
  if (!task && asked.isLoading) return html`<${Spinner} />`;
  if (!task) return html`<${Empty} icon="chat" title="There is no such start">It may be too long ago.<//>`;
  const at = STAGES.findIndex(([name]) => name === task.status);
  if (at >= 0) reached.current = Math.max(reached.current, at);
  const isFailed = task.status === "ERROR";
  const again = () => {
    const { selected_repository, selected_branch, git_provider } = task.request;
    keep(DRAFT, { message: firstText(task), repository: selected_repository ?? "", branch: selected_branch ?? "", provider: git_provider ?? "" });
    go("/new");
  };
  return html`
    <${Head} title=${isFailed ? "The start failed" : "Starting"} />
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
      ${task.queued_messages > 0 && html`<p class="hint">${task.queued_messages === 1 ? "A message is" : `${task.queued_messages} messages are`} queued for the agent.</p>`}
      ${task.queue_position && html`<p class="hint">Place ${task.queue_position} in the queue.</p>`}
      ${isFailed && html`
        <${Problem} title="What happened" error=${{ message: task.detail ?? "The server did not say why" }} />
        <div class="actions">
          <a class="button" href="#/setup">Check the model</a>
          <a class="button" href="#/sandboxes">Look at the sandboxes</a>
          <${Button} kind="primary" icon="refresh" needs="run" onPress=${again} label="Try again" />
        </div>
      `}
      <p class="hidden" role="status">${isFailed ? "The start failed" : STAGES[reached.current][1]}</p>
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
