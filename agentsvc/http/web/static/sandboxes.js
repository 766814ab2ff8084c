// Sandboxes, with their state, isolation, conversations and actions; and the specs.
import { get, getAll, post, remove, V1 } from "./api.js";
import { SandboxCharts } from "./charts.js";
import { ago, bytes, conversationState, moment, plain, sandboxState, span } from "./format.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { useLoaded, useStore, store } from "./store.js";
import { Button, Empty, Head, Pill, Problem, Question, Spinner, tell } from "./ui.js";
import { t } from "./words.js";

const USAGE_MS = 10_000;
const TAIL = 200;

/** Return the resource usage of sandboxes by id; polled, because the change stream does not report measurements. */
function useUsage() {
  const { value, look } = useLoaded(() => getAll(`${V1}/sandboxes/search`));
  useEffect(() => {
    const timer = setInterval(look, USAGE_MS);
    return () => clearInterval(timer);
  }, []);
  return new Map((value ?? []).map((one) => [one.id, one.usage]));
}

export function SandboxesPage() {
  const { sandboxes, conversations, isLoaded } = useStore();
  const usage = useUsage();
  const specs = useLoaded(() => getAll(`${V1}/sandbox-specs/search`));
  const [doomed, setDoomed] = useState(null);
  const attempt = (work) => {
    tell(null);
    return work().catch(tell);
  };
  const start = (spec) => () => attempt(async () => {
    const sandbox = await post(`${V1}/sandboxes?sandbox_spec_id=${encodeURIComponent(spec)}`);
    store.sandboxes.set(sandbox.id, sandbox);
    store.tell();
  });
  const all = [...sandboxes.values()].sort((a, b) => (a.created_at < b.created_at ? 1 : -1));
  return html`
    <${Head} title=${t("Sandboxes")} />
    <div class="page wide-page">
      ${!isLoaded && html`<${Spinner} />`}
      ${isLoaded && !all.length && html`<${Empty} icon="box" title=${t("No sandboxes")}>${t("Each conversation gets one when it starts.")}<//>`}
      <ul class="cards">
        ${all.map((one) => html`
          <${SandboxCard} key=${one.id} sandbox=${one} usage=${usage.get(one.id)} attempt=${attempt} onDelete=${() => setDoomed(one)}
            living=${[...conversations.values()].filter((c) => c.sandbox_id === one.id)} />
        `)}
      </ul>
      <h2>${t("Specs")}</h2>
      <p class="hint">${t("Templates of sandboxes. They are in the server's configuration.")}</p>
      <${Problem} error=${specs.error} onAgain=${specs.again} />
      <ul class="cards">
        ${(specs.value ?? []).map((spec, i) => html`
          <li class="card" key=${spec.id}>
            <h3>${spec.id} ${i === 0 && html`<span class="pill quiet">${t("default")}</span>`}</h3>
            <dl class="facts">
              <${Fact} name=${t("Workspace")} value=${html`<code>${spec.working_dir}</code>`} />
              ${spec.command && html`<${Fact} name=${t("Command")} value=${html`<code>${spec.command.join(" ")}</code>`} />`}
              ${Object.keys(spec.initial_env).length > 0 && html`<${Fact} name=${t("Variables")} value=${Object.keys(spec.initial_env).join(", ")} />`}
            </dl>
            <div class="actions"><${Button} icon="play" needs="run" onPress=${start(spec.id)} label=${t("Start one")} /></div>
          </li>
        `)}
      </ul>
    </div>
    ${doomed && html`
      <${Question} title=${t("Delete this sandbox?")} action=${t("Delete")} onClose=${() => setDoomed(null)}
        text=${t("All its files are deleted for good. Its conversations stay readable.")}
        onYes=${() => remove(`${V1}/sandboxes/${doomed.id}`)} />
    `}
  `;
}

/** Return the name of a sandbox: the title of its first conversation, and the number of others. */
function nameOf([first, ...others]) {
  if (!first) return t("Sandbox without a conversation");
  const title = first.title || t("Untitled");
  return others.length ? t("{0} and {1} more", title, others.length) : title;
}

const capital = (text) => text.replace(/^./, (letter) => letter.toUpperCase());

const Fact = ({ name, value }) => (value ? html`<div><dt>${name}</dt><dd>${value}</dd></div>` : null);

function SandboxCard({ sandbox, usage, living, attempt, onDelete }) {
  const { id, status } = sandbox;
  const [isLogShown, showLog] = useState(false);
  const [isUseShown, showUse] = useState(false);
  const act = (name) => () => attempt(() => post(`${V1}/sandboxes/${id}/${name}`));
  return html`
    <li class="card">
      <h3>${nameOf(living)} <${Pill} state=${sandboxState(status)} /></h3>
      ${sandbox.status_detail && html`<p class="pre ${status === "ERROR" ? "bad-text" : "hint"}">${sandbox.status_detail}</p>`}
      <dl class="facts">
        <${Fact} name=${t("Id")} value=${html`<code>${id}</code>`} />
        <${Fact} name=${t("Spec")} value=${sandbox.sandbox_spec_id} />
        <${Fact} name=${t("Isolation")} value=${sandbox.isolation ?? t("not known yet")} />
        <${Fact} name=${t("Limits in force")} value=${sandbox.enforced_limits.join(", ").replace(/_/g, " ") || t("none")} />
        <${Fact} name=${t("Made")} value=${html`<time datetime=${sandbox.created_at} title=${moment(sandbox.created_at)}>${ago(sandbox.created_at)}</time>`} />
        <${Fact} name=${t("Memory")} value=${usage?.memory_bytes != null && bytes(usage.memory_bytes)} />
        <${Fact} name=${t("CPU time")} value=${usage?.cpu_seconds != null && span(usage.cpu_seconds)} />
        <${Fact} name=${t("Disk")} value=${usage?.disk_bytes != null && bytes(usage.disk_bytes)} />
        <${Fact} name=${t("Processes")} value=${usage?.processes != null && String(usage.processes)} />
        ${Object.entries(sandbox.facts).map(([name, value]) => html`<${Fact} name=${capital(name.replace(/_/g, " "))} value=${value} />`)}
        <${Fact} name=${t("Paused as")} value=${sandbox.paused_as} />
      </dl>
      ${living.length > 0 && html`
        <ul class="living" aria-label=${t("Conversations in it")}>
          ${living.map((one) => html`<li key=${one.id}><a href=${`#/c/${one.id}`}>${one.title || t("Untitled")}</a> <${Pill} state=${conversationState(one)} /></li>`)}
        </ul>`}
      ${isUseShown && html`<${SandboxCharts} id=${id} />`}
      ${isLogShown && html`<${Log} id=${id} />`}
      <div class="actions">
        ${["RUNNING", "STARTING"].includes(status) && html`<${Button} icon="pause" needs="run" onPress=${act("pause")} label=${t("Pause")} />`}
        ${status === "RUNNING" && html`<${Button} icon="stop" needs="run" onPress=${act("stop")} label=${t("Stop")} title=${t("Ends what runs in it, and keeps its files")} />`}
        ${["PAUSED", "ERROR"].includes(status) && html`<${Button} icon="play" needs="run" onPress=${act("resume")} label=${t("Resume")} />`}
        ${status !== "MISSING" && html`<${Button} icon="file" onPress=${() => showLog(!isLogShown)} label=${t("Log")} aria-expanded=${String(isLogShown)} />`}
        ${status !== "MISSING" && html`<${Button} icon="chart" onPress=${() => showUse(!isUseShown)} label=${t("Use")} title=${t("What it uses over time")} aria-expanded=${String(isUseShown)} />`}
        <${Button} kind="danger" icon="trash" needs="run" onPress=${onDelete} label=${t("Delete")} />
      </div>
    </li>
  `;
}

/** The last lines of a sandbox's log, the newest at the end. */
function Log({ id }) {
  const log = useLoaded(() => get(`${V1}/sandboxes/${id}/logs`, { tail: TAIL }), [id]);
  const lines = log.value?.lines;
  const box = useRef(null);
  useEffect(() => {
    if (box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [lines]);
  return html`
    <div class="bar"><h4>${t("The last lines it wrote")}</h4><${Button} icon="refresh" isIcon kind="bare" label=${t("Look again")} onPress=${log.again} /></div>
    <${Problem} error=${log.error} />
    ${log.isLoading && !lines && html`<${Spinner} />`}
    ${lines && (lines.length ? html`<pre class="output" tabindex="0" aria-label=${t("Log")} ref=${box}>${plain(lines.join("\n"))}</pre>` : html`<p class="hint">${t("It has written nothing.")}</p>`)}
  `;
}
