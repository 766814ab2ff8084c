// The settings: a tab for each group.
import { findSettings, get, getAll, post, put, remove, V1 } from "./api.js";
import { ActivitySection } from "./audit.js";
import { GithubAppSection } from "./automations.js";
import { BrowserSection } from "./browser.js";
import { Form, flatten, fromSchema, nest } from "./forms.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { KeysSection, LoginsSection, McpSection, SecretsSection, WebhooksSection } from "./credentials.js";
import { UsageSection } from "./people.js";
import { changesOf, useList, useLoaded } from "./store.js";
import { Button, Head, Problem, SelectField, Spinner, TextField } from "./ui.js";
import { t } from "./words.js";

const SECTIONS = [
  ["", t("Model"), ModelSection],
  ["agent", t("Agent"), AgentSection],
  ["git", t("Git"), GitSection],
  ["sandboxes", t("Sandboxes"), SandboxSection],
  ["secrets", t("Secrets"), SecretsSection],
  ["mcp", t("MCP servers"), McpSection],
  ["keys", t("API keys"), KeysSection],
  ["logins", t("Browsers"), LoginsSection],
  ["webhooks", t("Webhooks"), WebhooksSection],
  ["usage", t("Usage"), UsageSection],
  ["activity", t("Activity"), ActivitySection],
  ["browser", t("This browser"), BrowserSection],
  ["more", t("More"), MoreSection],
];

export function SettingsPage({ section, settings, onSettings }) {
  const [, , Section] = SECTIONS.find(([name]) => name === section) ?? SECTIONS[0];
  const save = async (changes) => {
    await post(`${V1}/settings`, changes);
    return onSettings();
  };
  const tabs = useRef(null);
  useEffect(() => tabs.current.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" }), [section]);
  return html`
    <${Head} title=${t("Settings")} />
    <nav class="tabs many" aria-label=${t("Groups of settings")} ref=${tabs}>
      ${SECTIONS.map(([name, label]) => html`<a href=${`#/settings${name && `/${name}`}`} aria-current=${name === section ? "page" : null}>${label}</a>`)}
    </nav>
    <div class="page narrow"><${Section} key=${section} settings=${settings ?? {}} save=${save} onSettings=${onSettings} /></div>
  `;
}

/** A group of settings with a heading and an explanation. */
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
  const names = { llm: { title: t("All settings of the model"), hint: t("Sent with each call. For empty ones the model's provider uses its defaults."), leave: ["llm.model", "llm.api_key", "llm.base_url"] } };
  return html`
    <${Group} title=${t("Language model")} hint=${t("The model that agents use unless a conversation names another one.")}>
      <dl class="facts"><div><dt>${t("Model")}</dt><dd><code>${settings.llm_model ?? t("none")}</code></dd></div>
        <div><dt>${t("API key")}</dt><dd>${settings.llm_api_key_set ? t("stored") : t("none")}</dd></div>
        <div><dt>${t("Base URL")}</dt><dd>${settings.llm_base_url || t("that of the provider")}</dd></div></dl>
      <div class="actions"><a class="button primary" href="#/setup">${t("Change and test")}</a></div>
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
  const path = (one) => {
    // Browsers resolve `.` and `..` in a path even if they are percent-encoded.
    if (/^\.{0,2}$/.test(one)) throw new Error(t("A name has 1 to 64 letters, digits, dots, underscores and hyphens, and is neither . nor .."));
    return `${V1}/settings/profiles/${encodeURIComponent(one)}`;
  };
  return html`
    <${Group} title=${t("Saved models")} hint=${t("Named models with their keys, to switch between them.")}>
      <ul class="entries">
        ${(profiles.value?.profiles ?? []).map((one) => html`
          <li key=${one.name}><div><strong>${one.name}</strong> ${one.name === profiles.value.active_profile && html`<span class="pill good">${t("in use")}</span>`}<p class="hint">${one.model}</p></div>
            <${Button} needs="run" onPress=${act(() => post(`${path(one.name)}/activate`))} label=${t("Use")} />
            <${Button} kind="bare" icon="trash" isIcon label=${t("Delete {0}", one.name)} needs="run" onPress=${act(() => remove(path(one.name)))} /></li>
        `)}
      </ul>
      <${Problem} error=${error ?? profiles.error} />
      <form class="inline" onSubmit=${(event) => event.preventDefault()}>
        <${TextField} label=${t("Name")} value=${name} onValue=${setName} />
        <${Button} needs="run" onPress=${act(async () => { await post(path(name.trim())); setName(""); })} label=${t("Save the current model")} />
      </form>
    <//>
  `;
}

const AGENT = [
  { key: "confirmation_mode", label: t("Ask before the agent acts"), kind: "switch", hint: t("Actions wait until you confirm or reject them.") },
  { key: "security_analyzer", label: t("Actions to confirm"), kind: "select", options: [["", t("All of them")], ["llm", t("Actions that the model rates as risky")], ["none", t("All actions, without a rating")]], hint: t("Applies when the agent asks for confirmation.") },
  { key: "max_iterations", label: t("Steps"), kind: "number", hint: t("Maximum steps of a run; a message continues a run that reached it. 500 if empty.") },
  { key: "max_budget_per_task", label: t("Budget in US dollars"), kind: "number", hint: t("Maximum cost of a conversation, which stops when it is reached. Empty: no limit.") },
  { key: "enable_default_condenser", label: t("Shorten long histories"), kind: "switch", hint: t("Old events are summarised so that the history fits the model.") },
  { key: "condenser_max_size", label: t("Events before that"), kind: "number", hint: t("Number of events above which it is shortened, 20 or more. 240 if empty.") },
];

function AgentSection({ settings, save }) {
  const names = {
    general: { title: t("Tools"), hint: t("What the agent works with."), leave: ["mcp_config"] },
    agent_context: { title: t("Instructions and skills"), hint: t("Instructions and skills that the agent starts with.") },
    condenser: { title: t("All settings of shortening"), hint: t("How long histories are made to fit the model."), leave: ["condenser.enabled", "condenser.max_size"] },
    verification: { title: t("Verification"), hint: t("A critic may rate the work, and send it back.") },
  };
  return html`
    <${Group} title=${t("How the agent works")}><${Form} fields=${AGENT} values=${settings} onSave=${save} /><//>
    <${SchemaGroups} names=${names} settings=${settings} save=${save} />
  `;
}

const GIT = [
  { key: "git_user_name", label: t("Name"), hint: t("Author of commits in sandboxes.") },
  { key: "git_user_email", label: t("E-mail address") },
  { key: "git_full_clone", label: t("Clone the whole history"), kind: "switch", hint: t("Otherwise only the last commit, which is faster.") },
];
const PROVIDERS = [
  ["github", "GitHub"], ["gitlab", "GitLab"], ["bitbucket", "Bitbucket"], ["bitbucket_data_center", "Bitbucket Data Center"],
  ["forgejo", t("Forgejo or Gitea")], ["azure_devops", "Azure DevOps"], ["enterprise_sso", "Enterprise SSO"],
];

function GitSection({ settings, save, onSettings }) {
  const [form, setForm] = useState({ provider: "github", token: "", host: "" });
  const [error, setError] = useState(null);
  const stored = settings.provider_tokens_set ?? {};
  const change = (name) => (value) => setForm((old) => ({ ...old, [name]: value }));
  /** Replace all tokens, based on those stored now; an empty token keeps the stored one. */
  const store = async (changed) => {
    setError(null);
    try {
      const now = (await findSettings())?.provider_tokens_set ?? {};
      const tokens = changed(Object.fromEntries(Object.entries(now).map(([name, host]) => [name, { token: "", host }])));
      if (Object.keys(tokens).length) await post(`${V1}/secrets/git-providers`, { provider_tokens: tokens });
      else await remove(`${V1}/secrets/git-providers`);
      if (tokens[form.provider]?.token) setForm((now) => ({ ...form, token: "", host: "", ...changesOf(now, form) }));
      await onSettings();
    } catch (problem) {
      setError(problem);
    }
  };
  const add = () => store((others) => ({ ...others, [form.provider]: { token: form.token.trim(), host: form.host.trim() || null } }));
  const drop = (name) => () => store((others) => Object.fromEntries(Object.entries(others).filter(([one]) => one !== name)));
  return html`
    <${Group} title=${t("Commits")}><${Form} fields=${GIT} values=${settings} onSave=${save} /><//>
    <${Group} title=${t("Git providers")} hint=${t("With a token, conversations can clone private repositories. It is sent only to its own host, and validated before it is stored.")}>
      <ul class="entries">${Object.entries(stored).map(([name, host]) => html`
        <li key=${name}><div><strong>${PROVIDERS.find(([one]) => one === name)?.[1] ?? name}</strong><p class="hint">${host ?? t("public host")}</p></div>
          <${Button} kind="bare" icon="trash" isIcon label=${t("Forget the token of {0}", name)} needs="run" onPress=${drop(name)} /></li>`)}</ul>
      <${SelectField} label=${t("Provider")} value=${form.provider} onValue=${change("provider")} options=${PROVIDERS} />
      <${TextField} label=${t("Token")} type="password" autocomplete="off" value=${form.token} onValue=${change("token")} />
      <${TextField} label=${t("Host")} hint=${t("Only for a self-hosted one, such as git.example.org")} value=${form.host} onValue=${change("host")} />
      <${Problem} error=${error} title=${t("Not stored")} />
      <div class="actions"><${Button} kind="primary" needs="run" onPress=${add} label=${t("Store the token")} /></div>
    <//>
    <${GithubAppSection} />
  `;
}

const RULES = [
  { key: "pause_after_seconds", label: t("Pause after seconds without use"), kind: "number", hint: t("0: never. Empty: as the spec or the server says.") },
  { key: "reclaim_after_seconds", label: t("Move memory to swap after seconds without use"), kind: "number", hint: t("If the server has swap. 0: never. Empty: as configured in the spec or the server.") },
  { key: "hibernate_after_seconds", label: t("Hibernate to disk after seconds without use"), kind: "number", hint: t("If the backend supports it. 0: never. Empty: as configured in the spec or the server.") },
  { key: "stop_after_seconds", label: t("Stop after seconds without use"), kind: "number", hint: t("Keeps only the files. 0: never. Empty: as configured in the spec or the server.") },
  { key: "delete_after_seconds", label: t("Delete after seconds without use"), kind: "number", hint: t("With all its files. 0: never. Empty: as configured in the spec or the server.") },
];

function SandboxSection({ settings, save }) {
  const specs = useLoaded(() => getAll(`${V1}/sandbox-specs/search`));
  const rules = useList(() => get(`${V1}/sandbox-rules`));
  const fields = [
    { key: "default_sandbox_spec_id", label: t("Spec of new sandboxes"), kind: "select", options: [["", t("The server's default")], ...(specs.value ?? []).map(({ id }) => [id, id])] },
    { key: "sandbox_grouping_strategy", label: t("New conversations"), kind: "select", options: [
      ["NO_GROUPING", t("get a sandbox of their own")], ["GROUP_BY_NEWEST", t("join the newest sandbox")], ["LEAST_RECENTLY_USED", t("join the one used longest ago")],
      ["FEWEST_CONVERSATIONS", t("join the one with fewest conversations")], ["ADD_TO_ANY", t("join any existing sandbox")]], hint: t("Conversations in one sandbox see each other's files.") },
    { key: "remote_runtime_resource_factor", label: t("Size"), kind: "number", hint: t("A factor, for backends that have sandboxes of several sizes.") },
    { key: "sandbox_runtime_container_image", label: t("Image of the runtime"), hint: t("For clients of the older API; stored only.") },
    { key: "sandbox_base_container_image", label: t("Base image"), hint: t("For clients of the older API; stored only.") },
    { key: "sandbox_api_key", label: t("Key of a remote runtime"), kind: "secret", hint: t("If sandboxes run at another service.") },
  ];
  const saveRules = async (changes) => {
    await put(`${V1}/sandbox-rules`, { ...(await get(`${V1}/sandbox-rules`)), ...changes });
    return rules.again();
  };
  return html`
    <${Group} title=${t("New sandboxes")}><${Form} fields=${fields} values=${settings} onSave=${save} /><//>
    <${Group} title=${t("Idle sandboxes")} hint=${t("What happens to your sandboxes when they are idle.")}>
      <${Problem} error=${rules.error} />${rules.value && html`<${Form} fields=${RULES} values=${rules.value} onSave=${saveRules} />`}
    <//>
  `;
}

const MORE = [
  { key: "search_api_key", label: t("Key of the web search"), kind: "secret", hint: t("For agents that search the web.") },
  { key: "agent", label: t("Agent"), hint: t("Its name, for clients of the older API; stored only.") },
  { key: "language", label: t("Language"), hint: t("Language of other front ends, such as en.") },
  { key: "title_llm_profile", label: t("Saved model for titles"), hint: t("Its name; empty: the conversation's own model.") },
  { key: "disabled_skills", label: t("Skills that are off"), kind: "json", hint: t("A JSON list of names.") },
  { key: "email", label: t("E-mail address") },
  { key: "enable_sound_notifications", label: t("Sounds"), kind: "switch", hint: t("In front ends that play sounds.") },
  { key: "enable_proactive_conversation_starters", label: t("Suggest conversations"), kind: "switch", hint: t("In front ends that suggest conversations.") },
  { key: "enable_solvability_analysis", label: t("Rate whether issues can be solved"), kind: "switch", hint: t("In integrations that rate issues.") },
  { key: "user_consents_to_analytics", label: t("Consent to analytics"), kind: "switch", hint: t("For front ends that ask. This server sends nothing to anybody.") },
  { key: "v1_enabled", label: t("Newer API in older front ends"), kind: "switch" },
];

function MoreSection({ settings, save }) {
  const fields = MORE.map((field) => ({ ...field, isSet: field.key === "search_api_key" && settings.search_api_key_set }));
  return html`<${Group} title=${t("Other settings")} hint=${t("Most of these settings are for other front ends of this server.")}><${Form} fields=${fields} values=${settings} onSave=${save} /><//>
    <${Group} title=${t("For programs")}><p>${t("Every operation of the API is described at")} <a href="docs">/docs</a>.</p><//>`;
}
