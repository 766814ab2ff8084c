// The settings, in groups: a tab for each, which says what it is for.
import { get, getAll, post, put, remove, V1 } from "./api.js";
import { ActivitySection } from "./audit.js";
import { BrowserSection } from "./browser.js";
import { Form, flatten, fromSchema, nest } from "./forms.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { KeysSection, LoginsSection, McpSection, SecretsSection, WebhooksSection } from "./credentials.js";
import { UsageSection } from "./people.js";
import { useLoaded } from "./store.js";
import { Button, Head, Problem, SelectField, Spinner, TextField } from "./ui.js";

const SECTIONS = [
  ["", "Model", ModelSection],
  ["agent", "Agent", AgentSection],
  ["git", "Git", GitSection],
  ["sandboxes", "Sandboxes", SandboxSection],
  ["secrets", "Secrets", SecretsSection],
  ["mcp", "MCP servers", McpSection],
  ["keys", "API keys", KeysSection],
  ["logins", "Browsers", LoginsSection],
  ["webhooks", "Webhooks", WebhooksSection],
  ["usage", "Usage", UsageSection],
  ["activity", "Activity", ActivitySection],
  ["browser", "This browser", BrowserSection],
  ["more", "More", MoreSection],
];

export function SettingsPage({ section, settings, onSettings }) {
  const [, , Section] = SECTIONS.find(([name]) => name === section) ?? SECTIONS[0];
  const save = async (changes) => {
    await post(`${V1}/settings`, changes);
    await onSettings();
  };
  const tabs = useRef(null);
  useEffect(() => tabs.current.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" }), [section]);
  return html`
    <${Head} title="Settings" />
    <nav class="tabs many" aria-label="Groups of settings" ref=${tabs}>
      ${SECTIONS.map(([name, label]) => html`<a href=${`#/settings${name && `/${name}`}`} aria-current=${name === section ? "page" : null}>${label}</a>`)}
    </nav>
    <div class="page narrow"><${Section} key=${section} settings=${settings ?? {}} save=${save} onSettings=${onSettings} /></div>
  `;
}

/** A group of settings with a heading and a sentence on what it is for. */
export const Group = ({ title, hint, children }) => html`
  <section class="card group"><h2>${title}</h2>${hint && html`<p class="hint">${hint}</p>`}${children}</section>
`;

function SchemaGroups({ names, settings, save }) {
  const schema = useLoaded(() => get(`${V1}/settings/agent-schema`));
  if (schema.error) return html`<${Problem} error=${schema.error} onAgain=${schema.again} />`;
  if (!schema.value) return html`<${Spinner} />`;
  return schema.value.sections.filter(({ key }) => key in names).map((section) => {
    const { title, hint, leave = [] } = names[section.key];
    const fields = fromSchema(section).filter(({ key }) => !leave.includes(key));
    return html`
      <details class="card group" key=${section.key}><summary>${title}</summary><p class="hint">${hint}</p>
        <${Form} fields=${fields} values=${flatten(fields, settings.agent_settings)} onSave=${(changes) => save({ agent_settings_diff: nest(changes) })} />
      </details>
    `;
  });
}

function ModelSection({ settings, save, onSettings }) {
  const names = { llm: { title: "All settings of the model", hint: "Sent with each call. What is not set is left to the model's provider.", leave: ["llm.model", "llm.api_key", "llm.base_url"] } };
  return html`
    <${Group} title="Language model" hint="The model that agents use unless a conversation names another one.">
      <dl class="facts"><div><dt>Model</dt><dd><code>${settings.llm_model ?? "none"}</code></dd></div>
        <div><dt>API key</dt><dd>${settings.llm_api_key_set ? "stored" : "none"}</dd></div>
        <div><dt>Base URL</dt><dd>${settings.llm_base_url || "that of the provider"}</dd></div></dl>
      <div class="actions"><a class="button primary" href="#/setup">Change and test</a></div>
    <//>
    <${Profiles} onSettings=${onSettings} />
    <${SchemaGroups} names=${names} settings=${settings} save=${save} />
  `;
}

function Profiles({ onSettings }) {
  const profiles = useLoaded(() => get(`${V1}/settings/profiles`));
  const [name, setName] = useState("");
  const [error, setError] = useState(null);
  const act = (work) => async () => {
    setError(null);
    try {
      await work();
      await onSettings();
      profiles.again();
    } catch (problem) {
      setError(problem);
    }
  };
  const path = (one) => `${V1}/settings/profiles/${encodeURIComponent(one)}`;
  return html`
    <${Group} title="Saved models" hint="Models with their keys, by name, to change between them.">
      <ul class="entries">
        ${(profiles.value?.profiles ?? []).map((one) => html`
          <li key=${one.name}><div><strong>${one.name}</strong> ${one.name === profiles.value.active_profile && html`<span class="pill good">in use</span>`}<p class="hint">${one.model}</p></div>
            <${Button} needs="run" onPress=${act(() => post(`${path(one.name)}/activate`))} label="Use" />
            <${Button} kind="bare" icon="trash" isIcon label=${`Delete ${one.name}`} needs="run" onPress=${act(() => remove(path(one.name)))} /></li>
        `)}
      </ul>
      <${Problem} error=${error ?? profiles.error} />
      <form class="inline" onSubmit=${(event) => event.preventDefault()}>
        <${TextField} label="Name" value=${name} onValue=${setName} />
        <${Button} needs="run" onPress=${act(async () => { await post(path(name.trim())); setName(""); })} label="Save the current model" />
      </form>
    <//>
  `;
}

const AGENT = [
  { key: "confirmation_mode", label: "Ask before the agent acts", kind: "switch", hint: "Actions wait until you confirm or reject them." },
  { key: "security_analyzer", label: "Which actions are asked about", kind: "select", options: [["", "All of them"], ["llm", "Those that the model calls risky"], ["none", "All of them, without a rating"]], hint: "Counts where the agent asks." },
  { key: "max_iterations", label: "Steps", kind: "number", hint: "After so many steps a run stops; a message lets it go on. 500 if empty." },
  { key: "max_budget_per_task", label: "Budget in US dollars", kind: "number", hint: "A conversation that has cost so much stops. Empty: no limit." },
  { key: "enable_default_condenser", label: "Shorten long histories", kind: "switch", hint: "What is long past is summarised, so that it fits the model." },
  { key: "condenser_max_size", label: "Events before that", kind: "number", hint: "From so many events on, 20 or more. 240 if empty." },
];

function AgentSection({ settings, save }) {
  const names = {
    general: { title: "Tools", hint: "What the agent works with.", leave: ["mcp_config"] },
    agent_context: { title: "Instructions and skills", hint: "What the agent knows before it begins." },
    condenser: { title: "All settings of shortening", hint: "How long histories are made to fit the model.", leave: ["condenser.enabled", "condenser.max_size"] },
    verification: { title: "Verification", hint: "A critic may rate the work, and send it back." },
  };
  return html`
    <${Group} title="How the agent works"><${Form} fields=${AGENT} values=${settings} onSave=${save} /><//>
    <${SchemaGroups} names=${names} settings=${settings} save=${save} />
  `;
}

const GIT = [
  { key: "git_user_name", label: "Name", hint: "Who commits in sandboxes." },
  { key: "git_user_email", label: "E-mail address" },
  { key: "git_full_clone", label: "Clone the whole history", kind: "switch", hint: "Otherwise only the last commit, which is faster." },
];
const PROVIDERS = [
  ["github", "GitHub"], ["gitlab", "GitLab"], ["bitbucket", "Bitbucket"], ["bitbucket_data_center", "Bitbucket Data Center"],
  ["forgejo", "Forgejo or Gitea"], ["azure_devops", "Azure DevOps"], ["enterprise_sso", "Enterprise SSO"],
];

function GitSection({ settings, save, onSettings }) {
  const [form, setForm] = useState({ provider: "github", token: "", host: "" });
  const [error, setError] = useState(null);
  const stored = settings.provider_tokens_set ?? {};
  const change = (name) => (value) => setForm((old) => ({ ...old, [name]: value }));
  // The whole set is replaced; an empty token stands for the one that is stored.
  const others = Object.fromEntries(Object.entries(stored).map(([name, host]) => [name, { token: "", host }]));
  const store = async (tokens) => {
    setError(null);
    try {
      if (Object.keys(tokens).length) await post(`${V1}/secrets/git-providers`, { provider_tokens: tokens });
      else await remove(`${V1}/secrets/git-providers`);
      setForm((old) => ({ ...old, token: "", host: "" }));
      await onSettings();
    } catch (problem) {
      setError(problem);
    }
  };
  const add = () => store({ ...others, [form.provider]: { token: form.token.trim(), host: form.host.trim() || null } });
  const drop = (name) => () => store(Object.fromEntries(Object.entries(others).filter(([one]) => one !== name)));
  return html`
    <${Group} title="Commits"><${Form} fields=${GIT} values=${settings} onSave=${save} /><//>
    <${Group} title="Git providers" hint="With a token, conversations clone private repositories. It is shown to its own host only, and checked before it is kept.">
      <ul class="entries">${Object.entries(stored).map(([name, host]) => html`
        <li key=${name}><div><strong>${PROVIDERS.find(([one]) => one === name)?.[1] ?? name}</strong><p class="hint">${host ?? "public host"}</p></div>
          <${Button} kind="bare" icon="trash" isIcon label=${`Forget the token of ${name}`} needs="run" onPress=${drop(name)} /></li>`)}</ul>
      <${SelectField} label="Provider" value=${form.provider} onValue=${change("provider")} options=${PROVIDERS} />
      <${TextField} label="Token" type="password" autocomplete="off" value=${form.token} onValue=${change("token")} />
      <${TextField} label="Host" hint="Only for one of your own, such as git.example.org" value=${form.host} onValue=${change("host")} />
      <${Problem} error=${error} title="Not stored" />
      <div class="actions"><${Button} kind="primary" needs="run" onPress=${add} label="Store the token" /></div>
    <//>
  `;
}

const RULES = [
  { key: "pause_after_seconds", label: "Pause after seconds without use", kind: "number", hint: "0: never. Empty: as the spec or the server says." },
  { key: "stop_after_seconds", label: "Stop after seconds without use", kind: "number", hint: "Keeps the files only. 0: never. Empty: as the spec or the server says." },
  { key: "delete_after_seconds", label: "Delete after seconds without use", kind: "number", hint: "With all files. 0: never. Empty: as the spec or the server says." },
];

function SandboxSection({ settings, save }) {
  const specs = useLoaded(() => getAll(`${V1}/sandbox-specs/search`));
  const rules = useLoaded(() => get(`${V1}/sandbox-rules`));
  const fields = [
    { key: "default_sandbox_spec_id", label: "Spec of new sandboxes", kind: "select", options: [["", "The server's default"], ...(specs.value ?? []).map(({ id }) => [id, id])] },
    { key: "sandbox_grouping_strategy", label: "New conversations", kind: "select", options: [
      ["NO_GROUPING", "get a sandbox of their own"], ["GROUP_BY_NEWEST", "join the newest sandbox"], ["LEAST_RECENTLY_USED", "join the one used longest ago"],
      ["FEWEST_CONVERSATIONS", "join the one with fewest conversations"], ["ADD_TO_ANY", "join any"]], hint: "Conversations in one sandbox see each other's files." },
    { key: "remote_runtime_resource_factor", label: "Size", kind: "number", hint: "A factor, for backends that have sandboxes of several sizes." },
    { key: "sandbox_runtime_container_image", label: "Image of the runtime", hint: "For clients of the older API; stored only." },
    { key: "sandbox_base_container_image", label: "Base image", hint: "For clients of the older API; stored only." },
    { key: "sandbox_api_key", label: "Key of a remote runtime", kind: "secret", hint: "Where sandboxes are at another service." },
  ];
  const saveRules = async (changes) => {
    await put(`${V1}/sandbox-rules`, { ...rules.value, ...changes });
    rules.again();
  };
  return html`
    <${Group} title="New sandboxes"><${Form} fields=${fields} values=${settings} onSave=${save} /><//>
    <${Group} title="Idle sandboxes" hint="What becomes of your sandboxes that nobody uses.">
      <${Problem} error=${rules.error} />${rules.value && html`<${Form} fields=${RULES} values=${rules.value} onSave=${saveRules} />`}
    <//>
  `;
}

const MORE = [
  { key: "search_api_key", label: "Key of the web search", kind: "secret", hint: "For agents that search the web." },
  { key: "agent", label: "Agent", hint: "Its name, for clients of the older API; stored only." },
  { key: "language", label: "Language", hint: "Of other front ends, such as en." },
  { key: "title_llm_profile", label: "Saved model for titles", hint: "Its name; empty: the conversation's own model." },
  { key: "disabled_skills", label: "Skills that are off", kind: "json", hint: "A JSON list of names." },
  { key: "email", label: "E-mail address" },
  { key: "enable_sound_notifications", label: "Sounds", kind: "switch", hint: "In front ends that make them." },
  { key: "enable_proactive_conversation_starters", label: "Suggest conversations", kind: "switch", hint: "In front ends that do." },
  { key: "enable_solvability_analysis", label: "Rate whether issues can be solved", kind: "switch", hint: "In integrations that do." },
  { key: "user_consents_to_analytics", label: "Consent to analytics", kind: "switch", hint: "For front ends that ask. This server sends nothing to anybody." },
  { key: "v1_enabled", label: "Newer API in older front ends", kind: "switch" },
];

function MoreSection({ settings, save }) {
  const fields = MORE.map((field) => ({ ...field, isSet: field.key === "search_api_key" && settings.search_api_key_set }));
  return html`<${Group} title="Other settings" hint="Most of these are for other front ends of this server."><${Form} fields=${fields} values=${settings} onSave=${save} /><//>
    <${Group} title="For programs"><p>Every operation of the API is described at <a href="docs">/docs</a>.</p><//>`;
}
