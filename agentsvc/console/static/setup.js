// The first-run page: which model, and one real call that shows whether it answers.
import { conversationPath, get, post, remove, textContent, V1 } from "./api.js";
import { html, useState } from "./html.js";
import { useLoaded } from "./store.js";
import { Button, Field, Head, Icon, Problem, TextField, go } from "./ui.js";

const PROBE = "This is a test of the connection. Answer with the one word OK, and do nothing else.";
const ANSWER_MS = 90_000;
const LOOK_MS = 700;

const CAUSES = [
  [/api.?key|authenticat|unauthorized|\b401\b/i, "The provider does not accept the key. Copy it once more, and check that it belongs to this provider."],
  [/not.?found|does not exist|unknown model|no such model|\b404\b/i, "The provider does not know this model. Check its name, with the provider in front, such as anthropic/claude-sonnet-4-5."],
  [/provider.{0,20}not provided|unmapped|provide.{0,20}provider/i, "The name lacks its provider. Write openai/NAME for a server of your own that speaks as OpenAI's does."],
  [/quota|billing|credit|insufficient|\b402\b/i, "The account at the provider has no credit left, or is over its quota."],
  [/rate.?limit|\b429\b|overloaded/i, "The provider takes no more requests at the moment. Wait a minute, and test once more."],
  [/connect|refused|resolve|getaddrinfo|timed? ?out|unreachable|ssl|certificate/i, "Nothing answers at that address. Check the base URL, and that the sandbox may reach it."],
  [/agent server is not installed|sandbox/i, "The sandbox did not start, so that the model was not asked."],
];

/** Return in plain words why a model did not answer. */
export function explain(text) {
  const found = CAUSES.find(([pattern]) => pattern.test(text));
  return found ? found[1] : "The model did not answer. What follows is what the provider said.";
}

const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Have an agent ask the model once, as it would at work; throws what the model or the sandbox says. */
async function probe(onStage) {
  const order = { title: "Test of the model", trigger: "gui", initial_message: { role: "user", content: textContent(PROBE) } };
  let task = await post(`${V1}/app-conversations`, order);
  onStage("A sandbox starts");
  while (!["READY", "ERROR"].includes(task.status)) {
    await wait(LOOK_MS);
    [task] = await get(`${V1}/app-conversations/start-tasks`, { ids: task.id });
    if (task.status === "STARTING_CONVERSATION") onStage("The model is asked");
  }
  if (task.status === "ERROR") throw new Error(task.detail);
  try {
    await firstAnswer(task.app_conversation_id);
  } finally {
    await remove(conversationPath(task.app_conversation_id)).catch(() => {});
  }
}

async function firstAnswer(id) {
  const deadline = Date.now() + ANSWER_MS;
  while (Date.now() < deadline) {
    const { items } = await get(`${V1}/conversation/${id}/events/search`);
    if (items.some((event) => event.kind === "ActionEvent" || (event.kind === "MessageEvent" && event.source === "agent"))) return;
    const error = items.find((event) => event.kind === "ConversationErrorEvent");
    if (error) throw new Error(`${error.code}: ${error.detail}`);
    await wait(LOOK_MS);
  }
  throw new Error(`The request timed out: no answer within ${ANSWER_MS / 1000} seconds`);
}

export function SetupPage({ settings, onSettings }) {
  const [form, setForm] = useState({ model: settings?.llm_model ?? "", key: "", url: settings?.llm_base_url ?? "" });
  const [state, setState] = useState({});
  const models = useLoaded(() => get(`${V1}/config/models/search`, { verified__eq: true, limit: 100 }));
  const change = (name) => (value) => setForm((old) => ({ ...old, [name]: value }));
  const save = async () => {
    const body = { llm_model: form.model.trim(), llm_base_url: form.url.trim() };
    if (form.key.trim()) body.llm_api_key = form.key.trim();
    await post(`${V1}/settings`, body);
    await onSettings();
  };
  const test = async () => {
    if (!form.model.trim()) return setState({ error: new Error("Name a model."), isPlain: true });
    setState({ stage: "The settings are saved" });
    try {
      await save();
      await probe((stage) => setState({ stage }));
      setState({ isGood: true });
    } catch (error) {
      setState({ error });
    }
  };
  const isFirst = !settings?.llm_model;
  return html`
    <${Head} title=${isFirst ? "Welcome" : "Model"} back=${isFirst ? "#/" : "#/settings"} />
    <div class="page narrow">
      <p class="lead">Which language model should the agents use?</p>
      <form class="card" onSubmit=${(event) => event.preventDefault()}>
        <${TextField} label="Model" hint="Provider and name, as LiteLLM writes them." value=${form.model} onValue=${change("model")}
          placeholder="anthropic/claude-sonnet-4-5" list="models" autocomplete="off" spellcheck="false" />
        <datalist id="models">${(models.value?.items ?? []).map((one) => html`<option value=${one.provider ? `${one.provider}/${one.name}` : one.name} />`)}</datalist>
        <${TextField} label="API key" type="password" value=${form.key} onValue=${change("key")} autocomplete="off"
          placeholder=${settings?.llm_api_key_set ? "Stored; leave it empty to keep it" : ""}
          hint="Kept encrypted on this server, and shown to nobody again. A model of your own may need none." />
        <${TextField} label="Base URL" type="url" value=${form.url} onValue=${change("url")} placeholder="https://"
          hint="Only for a server of your own or a proxy; empty for the provider itself." />
        <div class="actions">
          <${Button} kind="primary" icon="check" onPress=${test} label="Save and test" />
        </div>
      </form>
      ${state.stage && html`<p class="spinner" role="status">${state.stage}</p>`}
      ${state.isGood && html`
        <div class="success" role="status"><${Icon} name="check" /><div><strong>The model answers.</strong>
          <p>An agent in a sandbox of its own has asked it, as it does at work.</p>
          <a class="button primary" href="#/new">Start a conversation</a></div></div>
      `}
      ${state.error && html`
        <${Problem} title=${state.isPlain ? "" : "The test failed"} error=${{ message: state.isPlain ? state.error.message : explain(state.error.message) }} />
        ${!state.isPlain && html`<details class="card"><summary>What was said</summary><pre>${state.error.message}</pre></details>`}
      `}
    </div>
  `;
}
