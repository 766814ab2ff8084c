// Automations: rules that start agents, and the runs that they started.
import { get, patch, post, put, remove } from "./api.js";
import { ago, moment, money, span } from "./format.js";
import { toNumber } from "./forms.js";
import { html, useState } from "./html.js";
import { changesOf, useForm, useList, useLoaded } from "./store.js";
import { Button, Copyable, Empty, Field, Head, Once, Pill, Problem, Question, SelectField, Spinner, TextField, Toggle, tell } from "./ui.js";
import { t } from "./words.js";

const PATH = "api/automation/v1";
const APP = `${PATH}/github-app`;
const PAGE = 100;
const SHOWN_RUNS = 20;

const KINDS = [
  ["cron", t("On a schedule")],
  ["once", t("Once")],
  ["webhook", t("By a webhook")],
  ["git", t("By issues and pull requests")],
  ["manual", t("By hand only")],
];
const SUBJECTS = [
  ["request", t("An issue that is labelled, or a mention")],
  ["issue", t("Each new issue: answer it")],
  ["pull_request", t("Each new pull request: review it")],
];
const TASKS = [["prompt", t("An agent")], ["command", t("A command, without an agent")]];
const PROVIDERS = [["", t("Where it is found")], ["github", "GitHub"], ["gitlab", "GitLab"], ["forgejo", "Forgejo"], ["bitbucket", "Bitbucket"]];
const RUNS = {
  PENDING: [t("Waiting"), "quiet"],
  RUNNING: [t("Working"), "busy"],
  COMPLETED: [t("Finished"), "good"],
  FAILED: [t("Failed"), "bad"],
  CANCELLED: [t("Cancelled"), "quiet"],
  SKIPPED: [t("Skipped"), "quiet"],
};
const AS_SET = t("Empty: as the settings say");
const LIMITS = [
  ["timeout", t("Maximum run time in seconds"), t("Empty: no limit")],
  ["max_budget", t("Maximum cost in US dollars"), AS_SET],
  ["max_iterations", t("Maximum steps"), AS_SET],
];
const POLLING = t("Polling interval in seconds");
const EMPTY = {
  name: "", does: "prompt", task: "", type: "cron", schedule: "0 9 * * 1-5", timezone: Intl.DateTimeFormat().resolvedOptions().timeZone, at: "", on: "",
  subject: "request", label: "agent", mention: "", poll_seconds: "", url: "", ref: "", provider: "", pull_request: false, timeout: "", max_budget: "", max_iterations: "",
};

/** Whether this server has automations; false until it has answered. */
export const useHasAutomations = () => Boolean(useLoaded(() => get(PATH, { limit: 1 })).value);

function toForm(one) {
  const task = { does: one.command === null ? "prompt" : "command", task: one.command ?? one.prompt };
  const on = one.trigger.type === "git" ? { subject: one.trigger.on } : { on: (one.trigger.on ?? []).join(", ") };
  const values = { ...one, ...one.repos?.[0], ...one.trigger, ...task, ...on, pull_request: one.pull_request };
  const shown = (value, usual) => (typeof usual === "boolean" ? value : String(value ?? ""));
  return Object.fromEntries(Object.entries(EMPTY).map(([name, usual]) => [name, name in values ? shown(values[name], usual) : usual]));
}

/** Split a text at spaces and commas; return null if it has no words. */
function words(text) {
  const found = text.split(/[\s,]+/).filter(Boolean);
  return found.length ? found : null;
}

function toTrigger(form) {
  switch (form.type) {
    case "cron":
      return { schedule: form.schedule, timezone: form.timezone };
    case "once":
      return { at: form.at };
    case "webhook":
      return { on: words(form.on) };
    case "git":
      return { on: form.subject, label: form.label || null, mention: form.mention || null, poll_seconds: toNumber(POLLING, form.poll_seconds) };
    default:
      return {};
  }
}

/** Return the request body for a form. Trigger fields that are not in the form are kept if the type is unchanged. */
function toOrder(form, was = {}) {
  const trigger = { ...(was.trigger?.type === form.type ? was.trigger : {}), type: form.type, ...toTrigger(form) };
  const repository = { url: form.url.trim(), ref: form.ref.trim() || null, provider: form.provider || null };
  const limits = Object.fromEntries(LIMITS.map(([name, label]) => [name, toNumber(label, form[name])]));
  const task = Object.fromEntries(TASKS.map(([name]) => [name, (name === form.does && form.task) || null]));
  return { name: form.name.trim(), ...task, trigger, pull_request: form.type !== "git" && form.pull_request, repos: repository.url ? [repository] : null, ...limits };
}

function Fields({ form, field }) {
  const fields = {
    cron: html`<${TextField} label=${t("Schedule")} hint=${t("A cron expression of five fields, such as 0 9 * * 1-5, or @daily")} class="mono" ...${field("schedule")} />
      <${TextField} label=${t("Time zone")} ...${field("timezone")} />`,
    once: html`<${TextField} label=${t("When")} hint=${t("Such as 2030-01-31T09:00:00+01:00; without an offset it is UTC")} ...${field("at")} />`,
    webhook: html`<${TextField} label=${t("Kinds of events")} hint=${t("Such as issues.opened, with commas between; empty: all")} ...${field("on")} />`,
    git: html`<${SelectField} label=${t("Works on")} options=${SUBJECTS} ...${field("subject")} />
      ${form.subject === "request" && html`<${TextField} label=${t("Label")} hint=${t("An agent starts on an issue that gets it.")} ...${field("label")} />
        <${TextField} label=${t("Account to mention")} hint=${t("An agent begins where it is mentioned; empty: mentions count for nothing")} ...${field("mention")} />`}
      <${TextField} label=${POLLING} hint=${t("For servers it cannot reach; empty: it tells by its webhook")} inputmode="numeric" ...${field("poll_seconds")} />`,
  };
  return html`
    <${TextField} label=${t("Name")} ...${field("name")} />
    <${SelectField} label=${t("Done by")} options=${TASKS} ...${field("does")} />
    <${Field} label=${t("Task")} hint=${form.does === "command" && t("A shell in the sandbox runs it. Its exit code and the end of its output are the result.")}>${(ids) => html`
      <textarea ...${ids} rows="4" class=${form.does === "command" ? "mono" : ""} value=${form.task} onInput=${(event) => field("task").onValue(event.target.value)}></textarea>`}<//>
    <${SelectField} label=${t("Starts")} options=${KINDS} ...${field("type")} />
    ${fields[form.type]}
    <${TextField} label=${t("Repository")} hint=${t("owner/name, or a URL; empty: none")} spellcheck="false" ...${field("url")} />
    <${TextField} label=${t("Branch")} hint=${t("Empty: the default branch")} spellcheck="false" ...${field("ref")} />
    <${SelectField} label=${t("Git host")} options=${PROVIDERS} ...${field("provider")} />
    ${form.type !== "git" && html`<${Toggle} label=${t("Open a draft pull request of what is committed")} needs="run" ...${field("pull_request")} />`}
    ${LIMITS.map(([name, label, hint]) => html`<${TextField} key=${name} label=${label} hint=${hint} inputmode="decimal" ...${field(name)} />`)}
  `;
}

async function findAll() {
  const found = [];
  for (;;) {
    const { automations } = await get(PATH, { limit: PAGE, offset: found.length });
    found.push(...automations);
    if (automations.length < PAGE) return found;
  }
}

export function AutomationsPage() {
  const all = useList(findAll, tell);
  const [form, field, clear] = useForm(EMPTY);
  const [secret, setSecret] = useState(null);
  const [doomed, setDoomed] = useState(null);
  const add = all.act(async () => {
    setSecret((await post(PATH, toOrder(form))).secret);
    clear();
  });
  return html`
    <${Head} title=${t("Automations")}><${Button} icon="refresh" isIcon kind="bare" label=${t("Look again")} onPress=${all.again} /><//>
    <div class="page wide-page">
      ${secret && html`<${Once} title=${t("The secret of the signatures: copy it now, it is not shown again.")} text=${secret} />`}
      <${Problem} error=${all.error} />
      ${all.isLoading && !all.value && html`<${Spinner} />`}
      ${all.value?.length === 0 && html`<${Empty} icon="refresh" title=${t("No automations")}>${t("They start agents on a schedule, by a webhook, or for issues, and open pull requests.")}<//>`}
      <ul class="cards">${(all.value ?? []).map((one) => html`<${Automation} key=${one.id} one=${one} act=${all.act} onSecret=${setSecret} onDelete=${() => setDoomed(one)} />`)}</ul>
      <details class="card"><summary>${t("Add one")}</summary>
        <${Fields} form=${form} field=${field} />
        <div class="actions"><${Button} kind="primary" needs="run" onPress=${add} label=${t("Add")} /></div>
      </details>
    </div>
    ${doomed && html`
      <${Question} title=${t("Delete {0}?", doomed.name)} action=${t("Delete")} onClose=${() => setDoomed(null)}
        text=${t("Its runs are deleted; their conversations are kept.")}
        onYes=${async () => {
          await remove(`${PATH}/${doomed.id}`);
          all.again();
        }} />
    `}
  `;
}

function Automation({ one, act, onSecret, onDelete }) {
  const path = `${PATH}/${one.id}`;
  const [form, field, clear] = useForm(toForm(one));
  const [isOpen, setOpen] = useState(false);
  const [turn, setTurn] = useState(0);
  const isSigned = ["webhook", "git"].includes(one.trigger.type);
  const dispatch = act(async () => {
    await post(`${path}/dispatch`);
    setOpen(true);
    setTurn(turn + 1);
  });
  return html`
    <li class="card">
      <h3>${one.name}</h3>
      <p class="hint">${[KINDS.find(([kind]) => kind === one.trigger.type)[1], one.trigger.schedule, one.trigger.timezone, one.trigger.label, one.repos?.[0]?.url].filter(Boolean).join(" · ")}</p>
      ${one.command !== null && html`<pre class="pre">${one.command}</pre>`}
      ${one.disabled_reason && html`<p class="bad-text">${one.disabled_reason}</p>`}
      <dl class="facts">
        ${one.next_run_at && html`<div><dt>${t("Next run")}</dt><dd>${moment(one.next_run_at)}</dd></div>`}
        ${one.last_triggered_at && html`<div><dt>${t("Last run")}</dt><dd>${ago(one.last_triggered_at)}</dd></div>`}
        ${isSigned && html`<div><dt>${t("Webhooks go to")}</dt><dd><${Copyable} text=${new URL(one.events_path, location.href).href} /></dd></div>`}
      </dl>
      <${Toggle} label=${t("On")} needs="run" value=${one.enabled} onValue=${(enabled) => act(() => patch(path, { enabled }))()} />
      ${isOpen && html`<${Runs} key=${turn} path=${path} />`}
      <details><summary>${t("Change")}</summary>
        <${Fields} form=${form} field=${field} />
        <div class="actions"><${Button} kind="primary" needs="run" onPress=${act(() => patch(path, changesOf(toOrder(form, one), toOrder(toForm(one), one))), clear)} label=${t("Save")} /></div>
      </details>
      <div class="actions">
        <${Button} icon="play" needs="run" onPress=${dispatch} label=${t("Run now")} />
        <${Button} icon="book" onPress=${() => setOpen(!isOpen)} label=${t("Runs")} aria-expanded=${String(isOpen)} />
        ${isSigned && html`<${Button} needs="run" onPress=${act(async () => onSecret((await post(`${path}/rotate-secret`)).secret))} label=${t("New secret")} />`}
        <${Button} kind="danger" icon="trash" needs="run" onPress=${onDelete} label=${t("Delete")} />
      </div>
    </li>
  `;
}

function Runs({ path }) {
  const runs = useList(async () => (await get(`${path}/runs`, { limit: SHOWN_RUNS })).runs);
  return html`
    <div class="bar"><h4>${t("Runs")}</h4><${Button} icon="refresh" isIcon kind="bare" label=${t("Look again")} onPress=${runs.again} /></div>
    <${Problem} error=${runs.error} />
    ${runs.value?.length === 0 && html`<p class="none">${t("There are none so far.")}</p>`}
    <ul class="entries">${(runs.value ?? []).map((run) => html`
      <li key=${run.id}><div><${Pill} state=${RUNS[run.status]} /> ${run.conversation_id ? html`<a href=${`#/c/${run.conversation_id}`}>${moment(run.created_at)}</a>` : moment(run.created_at)}
        <p class="hint">${[run.duration_seconds != null && span(run.duration_seconds), money(run.cost), run.attempt > 1 && t("try {0}", run.attempt)].filter(Boolean).join(" · ")}</p>
        <p class=${run.error_detail ? "bad-text" : "pre"}>${run.error_detail ?? run.result}</p></div>
        ${["PENDING", "RUNNING"].includes(run.status) && html`<${Button} needs="run" onPress=${runs.act(() => post(`${PATH}/runs/${run.id}/cancel`))} label=${t("Cancel")} />`}</li>`)}</ul>
  `;
}

const NO_APP = { app_id: "", private_key: "", webhook_secret: "", host: "" };

/** The GitHub App that automations act as; renders nothing if the server has no automations. */
export function GithubAppSection() {
  const hasAutomations = useHasAutomations();
  const apps = useList(async () => {
    try {
      return [await get(APP)];
    } catch (error) {
      if (error.status === 404) return [];
      throw error;
    }
  });
  const [form, field, clear] = useForm(NO_APP);
  const store = apps.act(async () => {
    await put(APP, { ...form, app_id: form.app_id.trim(), host: form.host.trim() || null });
    clear();
  });
  if (!hasAutomations) return null;
  return html`
    <section class="card group"><h2>${t("GitHub App")}</h2>
      <p class="hint">${t("Where it is installed, automations act as the App instead of with your token. Conversations never get its tokens.")}</p>
      <ul class="entries">${(apps.value ?? []).map((app) => html`
        <li key=${app.app_id}><div><strong>${app.slug}</strong><p class="hint">${[app.app_id, app.host, !app.has_webhook_secret && t("without the secret of its webhook, deliveries are rejected")].filter(Boolean).join(" · ")}</p>
          <p class="hint">${t("Its webhook goes to")}</p><${Copyable} text=${new URL(app.events_path, location.href).href} /></div>
          <${Button} kind="bare" icon="trash" isIcon needs="run" label=${t("Forget {0}", app.slug)} onPress=${apps.act(() => remove(APP))} /></li>`)}</ul>
      <${TextField} label=${t("App ID")} spellcheck="false" ...${field("app_id")} />
      <${Field} label=${t("Private key")} hint=${t("The file that GitHub has made, in PEM; empty: the stored one stays")}>${(ids) => html`
        <textarea ...${ids} rows="3" class="mono" spellcheck="false" value=${form.private_key} onInput=${(event) => field("private_key").onValue(event.target.value)}></textarea>`}<//>
      <${TextField} label=${t("Secret of its webhook")} type="password" autocomplete="off" hint=${t("Empty: the stored one stays")} ...${field("webhook_secret")} />
      <${TextField} label=${t("GitHub Enterprise")} hint=${t("Its host; empty: github.com")} ...${field("host")} />
      <${Problem} error=${apps.error} title=${t("Not stored")} />
      <div class="actions"><${Button} kind="primary" needs="run" onPress=${store} label=${t("Store the App")} /></div>
    </section>
  `;
}
