// What opens things to others: secrets, MCP servers, API keys, browsers, webhooks.
import { get, getAll, patch, post, put, remove, V1 } from "./api.js";
import { ago, moment } from "./format.js";
import { html, useState } from "./html.js";
import { useLoaded } from "./store.js";
import { Button, Copyable, Empty, Problem, SelectField, Spinner, TextField, Toggle } from "./ui.js";

/** Return what is listed, with a way to change it that shows what goes wrong and lists it anew. */
function useList(load) {
  const list = useLoaded(load);
  const [error, setError] = useState(null);
  const act = (work) => async () => {
    setError(null);
    try {
      await work();
      list.again();
    } catch (problem) {
      setError(problem);
    }
  };
  return { ...list, act, error: error ?? list.error };
}

const useForm = (empty) => {
  const [form, setForm] = useState(empty);
  const field = (name) => ({ value: form[name], onValue: (value) => setForm((old) => ({ ...old, [name]: value })) });
  return [form, field, () => setForm(empty)];
};

const Section = ({ title, hint, children }) => html`<section class="card group"><h2>${title}</h2><p class="hint">${hint}</p>${children}</section>`;

export function SecretsSection() {
  const list = useList(() => getAll(`${V1}/secrets/search`));
  const [form, field, clear] = useForm({ name: "", value: "", description: "" });
  const add = list.act(async () => {
    await post(`${V1}/secrets`, { ...form, name: form.name.trim() });
    clear();
  });
  return html`
    <${Section} title="Secrets" hint="Agents find them as environment variables of commands that name them. Their values are kept encrypted, are hidden in output, and are never shown again.">
      ${list.isLoading && !list.value && html`<${Spinner} />`}
      <ul class="entries">${(list.value ?? []).map(({ name, description }) => html`
        <li key=${name}><div><code>${name}</code><p class="hint">${description}</p></div>
          <${Button} kind="bare" icon="trash" isIcon label=${`Delete ${name}`} onPress=${list.act(() => remove(`${V1}/secrets/${encodeURIComponent(name)}`))} /></li>`)}</ul>
      ${list.value?.length === 0 && html`<p class="none">There are none so far.</p>`}
      <h3>Add or replace one</h3>
      <${TextField} label="Name" hint="As a variable is called, such as DEPLOY_TOKEN" spellcheck="false" ...${field("name")} />
      <${TextField} label="Value" type="password" autocomplete="off" ...${field("value")} />
      <${TextField} label="Description" hint="Tells the agent what it is for." ...${field("description")} />
      <${Problem} error=${list.error} />
      <div class="actions"><${Button} kind="primary" onPress=${add} label="Store" /></div>
    <//>
  `;
}

const TRANSPORTS = [["streamable-http", "HTTP"], ["sse", "Server-sent events"], ["stdio", "A program in the sandbox"]];

export function McpSection({ settings, save }) {
  const [form, field, clear] = useForm({ name: "", transport: "streamable-http", url: "", key: "", command: "", args: "" });
  const [error, setError] = useState(null);
  const servers = settings.agent_settings?.mcp_config ?? {};
  const store = (next) => async () => {
    setError(null);
    try {
      await save({ mcp_config: next() });
      clear();
    } catch (problem) {
      setError(problem);
    }
  };
  const without = (name) => Object.fromEntries(Object.entries(servers).filter(([one]) => one !== name));
  const made = () => {
    if (form.transport === "stdio") return { command: form.command.trim(), args: form.args.split("\n").map((one) => one.trim()).filter(Boolean) };
    const headers = form.key ? { headers: { Authorization: `Bearer ${form.key}` } } : {};
    return { url: form.url.trim(), transport: form.transport, ...headers };
  };
  return html`
    <${Section} title="MCP servers" hint="Tool servers that agents may use, in conversations that start from now on.">
      <ul class="entries">${Object.entries(servers).map(([name, server]) => html`
        <li key=${name}><div><strong>${name}</strong><p class="hint">${server.url ?? [server.command, ...(server.args ?? [])].join(" ")}</p></div>
          <${Button} kind="bare" icon="trash" isIcon label=${`Remove ${name}`} onPress=${store(() => without(name))} /></li>`)}</ul>
      ${Object.keys(servers).length === 0 && html`<p class="none">There are none so far.</p>`}
      <h3>Add one</h3>
      <${TextField} label="Name" spellcheck="false" ...${field("name")} />
      <${SelectField} label="Reached by" options=${TRANSPORTS} ...${field("transport")} />
      ${form.transport === "stdio"
        ? html`<${TextField} label="Command" spellcheck="false" ...${field("command")} /><${TextField} label="Argument" hint="One; add more by the API" ...${field("args")} />`
        : html`<${TextField} label="URL" type="url" ...${field("url")} /><${TextField} label="Key" type="password" autocomplete="off" hint="Sent as a bearer token; may be empty" ...${field("key")} />`}
      <${Problem} error=${error} title="Not stored" />
      <div class="actions"><${Button} kind="primary" onPress=${store(() => ({ ...servers, [form.name.trim()]: made() }))} label="Add" /></div>
    <//>
  `;
}

const SCOPES = [["admin", "Everything you may do"], ["run", "All but keys, users and the server"], ["read", "Looking only"]];
const scopeOf = (key) => SCOPES.find(([value]) => value === key.scope)?.[1] ?? key.scope;

export function KeysSection() {
  const list = useList(() => get("api/keys"));
  const [form, field, clear] = useForm({ name: "", scope: "admin", expires: "" });
  const [made, setMade] = useState(null);
  const add = list.act(async () => {
    const expires_at = form.expires ? new Date(form.expires).toISOString() : null;
    setMade(await post("api/keys", { name: form.name.trim() || null, scope: form.scope, expires_at }));
    clear();
  });
  return html`
    <${Section} title="API keys" hint="For programs that act as you. A key is shown once, when it is made.">
      ${made && html`<div class="success"><div><strong>${made.name}: copy it now.</strong><${Copyable} text=${made.key} /></div></div>`}
      <ul class="entries">${(list.value ?? []).map((key) => html`
        <li key=${key.id}><div><strong>${key.name}</strong><p class="hint">${scopeOf(key)}. Made ${moment(key.created_at)}. ${key.last_used_at ? `Last used ${ago(key.last_used_at)}.` : "Never used."}
          ${key.expires_at ? ` Ends ${moment(key.expires_at)}.` : ""}</p></div>
          <${Button} kind="danger" onPress=${list.act(() => remove(`api/keys/${key.id}`))} label="Revoke" /></li>`)}</ul>
      <h3>Make one</h3>
      <${TextField} label="Name" hint="Says later what it is for." ...${field("name")} />
      <${SelectField} label="Opens" options=${SCOPES} ...${field("scope")} />
      <${TextField} label="Ends" type="datetime-local" hint="Empty: never" ...${field("expires")} />
      <${Problem} error=${list.error} />
      <div class="actions"><${Button} kind="primary" onPress=${add} label="Make a key" /></div>
    <//>
  `;
}

export function LoginsSection() {
  const list = useList(() => get(`${V1}/logins`));
  return html`
    <${Section} title="Browsers" hint="Where you are logged in.">
      <${Problem} error=${list.error} />
      <ul class="entries">${(list.value ?? []).map((login) => html`
        <li key=${login.id}><div><strong>${login.is_current ? "This browser" : "Another browser"}</strong><p class="hint">${login.client}</p>
          <p class="hint">Last used ${ago(login.last_used_at)}, ends ${moment(login.expires_at)}</p></div>
          ${!login.is_current && html`<${Button} kind="danger" onPress=${list.act(() => remove(`${V1}/logins/${login.id}`))} label="Log out" />`}</li>`)}</ul>
    <//>
  `;
}

export function WebhooksSection() {
  const path = `${V1}/webhook-subscriptions`;
  const list = useList(() => get(path));
  const [form, field, clear] = useForm({ url: "", description: "", kinds: "" });
  const [made, setMade] = useState(null);
  const add = list.act(async () => {
    const kinds = form.kinds.split(/[\s,]+/).filter(Boolean);
    setMade(await post(path, { url: form.url.trim(), description: form.description, event_kinds: kinds.length ? kinds : null }));
    clear();
  });
  const rotate = (id) => list.act(async () => setMade(await post(`${path}/${id}/rotate-secret`)));
  return html`
    <${Section} title="Webhooks" hint="Tell other programs of your events and changes, signed as Standard Webhooks says.">
      ${made && html`<div class="success"><div><strong>The secret of the signatures: copy it now.</strong><${Copyable} text=${made.secret} /></div></div>`}
      <ul class="entries">${(list.value ?? []).map((one) => html`
        <li key=${one.id} class="tall"><div><strong>${one.url}</strong><p class="hint">${one.description} ${one.event_kinds ? one.event_kinds.join(", ") : "All events"}</p>
            ${one.disabled_reason && html`<p class="bad-text">${one.disabled_reason}</p>`}</div>
          <${Toggle} label="On" value=${one.is_enabled} onValue=${(is_enabled) => list.act(() => patch(`${path}/${one.id}`, { is_enabled }))()} />
          <div class="actions"><${Button} onPress=${rotate(one.id)} label="New secret" />
            <${Button} kind="danger" onPress=${list.act(() => remove(`${path}/${one.id}`))} label="Delete" /></div>
          <${Deliveries} path=${`${path}/${one.id}`} /></li>`)}</ul>
      ${list.value?.length === 0 && html`<p class="none">There are none so far.</p>`}
      <h3>Add one</h3>
      <${TextField} label="URL" type="url" placeholder="https://" ...${field("url")} />
      <${TextField} label="Description" ...${field("description")} />
      <${TextField} label="Kinds of events" hint="Such as MessageEvent, with commas between; empty: all" spellcheck="false" ...${field("kinds")} />
      <${Problem} error=${list.error} />
      <div class="actions"><${Button} kind="primary" onPress=${add} label="Add" /></div>
    <//>
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
    <details onToggle=${toggle}><summary>Deliveries</summary>
      <${Problem} error=${list.error} />
      <ul class="entries">${(list.value ?? []).map((one) => html`
        <li key=${one.id}><div>${one.type} <span class="pill ${{ delivered: "good", failed: "bad" }[one.state] ?? "quiet"}">${one.state}</span>
          <p class="hint">${moment(one.created_at)}${one.status ? `, answered ${one.status}` : ""} ${one.reason}</p></div>
          <${Button} onPress=${list.act(() => post(`${path}/deliveries/${one.id}/replay`))} label="Again" /></li>`)}</ul>
      ${list.value?.length === 0 && !list.isLoading && html`<p class="none">There are none so far.</p>`}
    </details>
  `;
}
