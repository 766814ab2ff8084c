// Credentials and access: secrets, MCP servers, API keys, logins, webhooks.
import { findSettings, get, getAll, patch, post, remove, V1 } from "./api.js";
import { ago, moment } from "./format.js";
import { html, useState } from "./html.js";
import { changesOf, useForm, useList } from "./store.js";
import { Button, Field, Once, Problem, Question, SelectField, Spinner, TextField, TimeField, Toggle } from "./ui.js";
import { t } from "./words.js";

const Section = ({ title, hint, children }) => html`<section class="card group"><h2>${title}</h2><p class="hint">${hint}</p>${children}</section>`;

export function SecretsSection() {
  const list = useList(() => getAll(`${V1}/secrets/search`));
  const [form, field, clear] = useForm({ name: "", value: "", description: "" });
  const [leaving, setLeaving] = useState(null);
  const add = list.act(async () => {
    await post(`${V1}/secrets`, { ...form, name: form.name.trim() });
    clear();
  });
  return html`
    <${Section} title=${t("Secrets")} hint=${t("Agents find them as environment variables of commands that name them. Their values are kept encrypted, are hidden in output, and are never shown again.")}>
      ${list.isLoading && !list.value && html`<${Spinner} />`}
      <ul class="entries">${(list.value ?? []).map(({ name, description }) => html`
        <li key=${name}><div><code>${name}</code><p class="hint">${description}</p></div>
          <${Button} kind="bare" icon="trash" isIcon needs="run" label=${t("Delete {0}", name)} onPress=${() => setLeaving(name)} /></li>`)}</ul>
      ${leaving !== null && html`<${Question} title=${t("Delete {0}?", leaving)} action=${t("Delete")} onClose=${() => setLeaving(null)}
        text=${t("Its value is deleted for good. Agents cannot read it any more.")}
        onYes=${async () => {
          await remove(`${V1}/secrets/${encodeURIComponent(leaving)}`);
          list.again();
        }} />`}
      ${list.value?.length === 0 && html`<p class="none">${t("There are none so far.")}</p>`}
      <h3>${t("Add or replace one")}</h3>
      <${TextField} label=${t("Name")} hint=${t("Name of an environment variable, such as DEPLOY_TOKEN")} spellcheck="false" ...${field("name")} />
      <${TextField} label=${t("Value")} type="password" autocomplete="off" ...${field("value")} />
      <${TextField} label=${t("Description")} hint=${t("Tells the agent the purpose.")} ...${field("description")} />
      <${Problem} error=${list.error} />
      <div class="actions"><${Button} kind="primary" needs="run" onPress=${add} label=${t("Store")} /></div>
    <//>
  `;
}

const linesOf = (text) => text.split("\n").map((one) => one.trim()).filter(Boolean);

/** Parse lines into an object of names and values; throws for a line without a name and the separator `mark`. */
function pairsOf(text, mark) {
  return Object.fromEntries(linesOf(text).map((line) => {
    const at = line.indexOf(mark);
    if (at < 1) throw new Error(t("This line is not a name and a value with {0} between: {1}", mark, line));
    return [line.slice(0, at).trim(), line.slice(at + 1).trim()];
  }));
}

const LinesField = ({ label, hint, value, onValue }) => html`
  <${Field} label=${label} hint=${hint}>${(ids) => html`
    <textarea ...${ids} rows="2" class="mono" spellcheck="false" value=${value} onInput=${(event) => onValue(event.target.value)}></textarea>`}<//>
`;

const TRANSPORTS = [["streamable-http", "HTTP"], ["sse", t("Server-sent events")], ["stdio", t("A program in the sandbox")]];

export function McpSection({ settings, save }) {
  const [form, field, clear] = useForm({ name: "", transport: "streamable-http", url: "", key: "", headers: "", command: "", args: "", env: "" });
  const [error, setError] = useState(null);
  const servers = settings.agent_settings?.mcp_config ?? {};
  const store = (change, done) => async () => {
    setError(null);
    try {
      // The request replaces all servers, so start from those stored now: they may differ from the displayed ones.
      await save({ mcp_config: change((await findSettings())?.agent_settings?.mcp_config ?? {}) });
      done?.();
    } catch (problem) {
      setError(problem);
    }
  };
  const without = (name) => (now) => Object.fromEntries(Object.entries(now).filter(([one]) => one !== name));
  const made = () => {
    if (form.transport === "stdio") return { command: form.command.trim(), args: linesOf(form.args), env: pairsOf(form.env, "=") };
    const headers = { ...(form.key && { Authorization: `Bearer ${form.key}` }), ...pairsOf(form.headers, ":") };
    return { url: form.url.trim(), transport: form.transport, ...(Object.keys(headers).length && { headers }) };
  };
  return html`
    <${Section} title=${t("MCP servers")} hint=${t("Tool servers that agents may use, in conversations that start from now on.")}>
      <ul class="entries">${Object.entries(servers).map(([name, server]) => html`
        <li key=${name}><div><strong>${name}</strong><p class="hint">${server.url ?? [server.command, ...(server.args ?? [])].join(" ")}</p></div>
          <${Button} kind="bare" icon="trash" isIcon needs="run" label=${t("Remove {0}", name)} onPress=${store(without(name))} /></li>`)}</ul>
      ${Object.keys(servers).length === 0 && html`<p class="none">${t("There are none so far.")}</p>`}
      <h3>${t("Add one")}</h3>
      <${TextField} label=${t("Name")} spellcheck="false" ...${field("name")} />
      <${SelectField} label=${t("Reached by")} options=${TRANSPORTS} ...${field("transport")} />
      ${form.transport === "stdio"
        ? html`<${TextField} label=${t("Command")} spellcheck="false" ...${field("command")} /><${LinesField} label=${t("Arguments")} hint=${t("One on each line")} ...${field("args")} />
          <${LinesField} label=${t("Variables")} hint=${t("Such as NAME=value, one on each line; they are kept encrypted")} ...${field("env")} />`
        : html`<${TextField} label=${t("URL")} type="url" ...${field("url")} /><${TextField} label=${t("Key")} type="password" autocomplete="off" hint=${t("Sent as a bearer token; may be empty")} ...${field("key")} />
          <${LinesField} label=${t("Headers")} hint=${t("Such as X-Name: value, one on each line; may be empty")} ...${field("headers")} />`}
      <${Problem} error=${error} title=${t("Not stored")} />
      <div class="actions"><${Button} kind="primary" onPress=${store((now) => ({ ...now, [form.name.trim()]: made() }), clear)} needs="run" label=${t("Add")} /></div>
    <//>
  `;
}

const SCOPES = [["admin", t("Everything its user may do")], ["run", t("Everything except keys, users and the server")], ["read", t("Read only")]];
const scopeOf = (key) => SCOPES.find(([value]) => value === key.scope)?.[1] ?? key.scope;

/** The API keys at a path, and a form that creates another one. */
export function Keys({ path, needs, whose = "" }) {
  const list = useList(() => get(path));
  const [form, field, clear] = useForm({ name: "", scope: "admin", begins: "", ends: "" });
  const [made, setMade] = useState(null);
  const add = list.act(async () => {
    const order = { name: form.name.trim() || null, scope: form.scope, not_before: timeOf(form.begins), expires_at: timeOf(form.ends) };
    setMade(await post(path, order));
    clear();
  });
  return html`
    ${made && html`<${Once} title=${t("{0}: copy it now, it is not shown again.", made.name)} text=${made.key} />`}
    ${list.isLoading && !list.value && html`<${Spinner} />`}
    <ul class="entries">${(list.value ?? []).map((key) => html`
      <li key=${key.id}><div><strong>${key.name}</strong> ${isOver(key) && html`<span class="pill bad">${t("has ended")}</span>`}<p class="hint">${factsOf(key)}</p></div>
        <${Button} kind="danger" needs=${needs} aria-label=${t("Revoke {0}", key.name)} onPress=${list.act(() => remove(`${path}/${key.id}`))} label=${t("Revoke")} /></li>`)}</ul>
    ${list.value?.length === 0 && html`<p class="none">${t("There are none so far.")}</p>`}
    <h3>${whose ? t("Create one {0}", whose) : t("Create one")}</h3>
    <${TextField} label=${t("Name of the key")} hint=${t("To recognize the key later.")} autocomplete="off" ...${field("name")} />
    <${SelectField} label=${t("Permissions")} options=${SCOPES} ...${field("scope")} />
    <div class="filters"><${TimeField} label=${t("Begins")} hint=${t("Empty: now")} ...${field("begins")} />
      <${TimeField} label=${t("Ends")} hint=${t("Empty: never")} ...${field("ends")} /></div>
    <${Problem} error=${list.error} />
    <div class="actions"><${Button} kind="primary" needs=${needs} onPress=${add} label=${t("Create a key")} /></div>
  `;
}

const timeOf = (text) => (text ? new Date(text).toISOString() : null);
const isOver = ({ expires_at }) => expires_at !== null && Date.parse(expires_at) <= Date.now();

function factsOf(key) {
  return [
    `${scopeOf(key)}.`, t("Created {0}.", moment(key.created_at)), key.last_used_at ? t("Last used {0}.", ago(key.last_used_at)) : t("Never used."),
    key.not_before && Date.parse(key.not_before) > Date.now() ? t("Begins {0}.", moment(key.not_before)) : "",
    key.expires_at ? t("Ends {0}.", moment(key.expires_at)) : t("Never ends."),
  ].filter(Boolean).join(" ");
}

export const KeysSection = () => html`
  <${Section} title=${t("API keys")} hint=${t("For programs that act as you. A key is shown only once, when it is created.")}>
    <${Keys} path="api/keys" needs="manage" />
  <//>
`;

export function LoginsSection() {
  const list = useList(() => get(`${V1}/logins`));
  return html`
    <${Section} title=${t("Browsers")} hint=${t("Where you are logged in.")}>
      <${Problem} error=${list.error} />
      <ul class="entries">${(list.value ?? []).map((login) => html`
        <li key=${login.id}><div><strong>${login.is_current ? t("This browser") : t("Another browser")}</strong><p class="hint">${login.client}</p>
          <p class="hint">${t("Last used {0}, ends {1}", ago(login.last_used_at), moment(login.expires_at))}</p></div>
          ${!login.is_current && html`<${Button} kind="danger" needs="manage" onPress=${list.act(() => remove(`${V1}/logins/${login.id}`))} label=${t("Log out")} />`}</li>`)}</ul>
    <//>
  `;
}

const CHANGES = [
  ["conversation", t("Changes of conversations"), t("Their title, state and sandbox.")],
  ["start_task", t("Changes of starts"), t("Each stage, and how it ended.")],
  ["sandbox", t("Changes of sandboxes"), t("Started, paused, failed, removed.")],
];
const EMPTY_WEBHOOK = { url: "", description: "", kinds: "", conversation: true, start_task: true, sandbox: true };

const fromWebhook = ({ url, description, event_kinds, changes }) => ({
  url, description, kinds: (event_kinds ?? []).join(", "), ...Object.fromEntries(CHANGES.map(([name]) => [name, changes.includes(name)])),
});

function toWebhook(form) {
  const kinds = form.kinds.split(/[\s,]+/).filter(Boolean);
  const changes = CHANGES.map(([name]) => name).filter((name) => form[name]);
  return { url: form.url.trim(), description: form.description, event_kinds: kinds.length ? kinds : null, changes };
}

const WebhookFields = ({ field }) => html`
  <${TextField} label=${t("URL")} type="url" placeholder="https://" ...${field("url")} />
  <${TextField} label=${t("Description")} ...${field("description")} />
  <${TextField} label=${t("Kinds of events")} hint=${t("Such as MessageEvent, with commas between; empty: all")} spellcheck="false" ...${field("kinds")} />
  ${CHANGES.map(([name, label, hint]) => html`<${Toggle} key=${name} label=${label} hint=${hint} ...${field(name)} />`)}
`;

export function WebhooksSection() {
  const path = `${V1}/webhook-subscriptions`;
  const list = useList(() => get(path));
  const [form, field, clear] = useForm(EMPTY_WEBHOOK);
  const [made, setMade] = useState(null);
  const add = list.act(async () => {
    setMade(await post(path, toWebhook(form)));
    clear();
  });
  return html`
    <${Section} title=${t("Webhooks")} hint=${t("Notify other programs of your events and changes, signed according to Standard Webhooks.")}>
      ${made && html`<${Once} title=${t("The secret of the signatures: copy it now, it is not shown again.")} text=${made.secret} />`}
      <ul class="entries">${(list.value ?? []).map((one) => html`<${Webhook} key=${one.id} one=${one} path=${`${path}/${one.id}`} list=${list} onSecret=${setMade} />`)}</ul>
      ${list.value?.length === 0 && html`<p class="none">${t("There are none so far.")}</p>`}
      <h3>${t("Add one")}</h3>
      <${WebhookFields} field=${field} />
      <${Problem} error=${list.error} />
      <div class="actions"><${Button} kind="primary" needs="run" onPress=${add} label=${t("Add")} /></div>
    <//>
  `;
}

function Webhook({ one, path, list, onSecret }) {
  const [form, field, clear] = useForm(fromWebhook(one));
  return html`
    <li class="tall"><div><strong>${one.url}</strong><p class="hint">${[one.description, one.event_kinds ? one.event_kinds.join(", ") : t("All events")].filter(Boolean).join(" · ")}</p>
        ${one.disabled_reason && html`<p class="bad-text">${one.disabled_reason}</p>`}
        ${one.quiet_until && html`<p class="hint">${t("Nothing is sent before {0}: the receiver asked for it.", moment(one.quiet_until))}</p>`}
        ${one.former_secret_until && html`<p class="hint">${t("Signed with the former secret, too, until {0}.", moment(one.former_secret_until))}</p>`}</div>
      <${Toggle} label=${t("On")} needs="run" value=${one.is_enabled} onValue=${(is_enabled) => list.act(() => patch(path, { is_enabled }))()} />
      <details><summary>${t("Change")}</summary>
        <${WebhookFields} field=${field} />
        <div class="actions"><${Button} kind="primary" needs="run" onPress=${list.act(() => patch(path, changesOf(toWebhook(form), toWebhook(fromWebhook(one)))), clear)} label=${t("Save")} /></div>
      </details>
      <${Deliveries} path=${path} />
      <div class="actions"><${Button} needs="run" onPress=${list.act(async () => onSecret(await post(`${path}/rotate-secret`)))} label=${t("New secret")} />
        <${Button} kind="danger" needs="run" onPress=${list.act(() => remove(path))} label=${t("Delete")} /></div></li>
  `;
}

function Deliveries({ path }) {
  const [isOpen, setOpen] = useState(false);
  const list = useList(() => (isOpen ? getAll(`${path}/deliveries`, {}, 1) : Promise.resolve([])));
  const toggle = (event) => {
    setOpen(event.target.open);
    list.again();
  };
  return html`
    <details onToggle=${toggle}><summary>${t("Deliveries")}</summary>
      <${Problem} error=${list.error} />
      <ul class="entries">${(list.value ?? []).map((one) => html`
        <li key=${one.id}><div>${one.type} <span class="pill ${{ delivered: "good", failed: "bad" }[one.state] ?? "quiet"}">${one.state}</span>
          <p class="hint">${moment(one.created_at)}${one.status ? t(", answered {0}", one.status) : ""}${one.attempts > 1 ? t(", {0} tries", one.attempts) : ""}${one.next_attempt_at ? t(", next one {0}", moment(one.next_attempt_at)) : ""} ${one.reason}</p></div>
          <${Button} needs="run" onPress=${list.act(() => post(`${path}/deliveries/${one.id}/replay`))} label=${t("Again")} /></li>`)}</ul>
      ${list.value?.length === 0 && !list.isLoading && html`<p class="none">${t("There are none so far.")}</p>`}
    </details>
  `;
}
