// Components that show the items of a conversation.
import { Diff } from "./diff.js";
import { moment, span } from "./format.js";
import { html } from "./html.js";
import { Markdown } from "./markdown.js";
import { Button, Copy, Icon } from "./ui.js";
import { t } from "./words.js";

/** Labels of the risk levels that agents assign to their actions. */
export const RISKS = { LOW: t("low"), MEDIUM: t("medium"), HIGH: t("high") };

const MAX_CHARS = 20_000;

/**
 * Show an item. `open` is the set of keys of unfolded items, which remain so when scrolled out of view. `onAgain` gets the
 * text to send again, `onFork` the id of the last event of the fork, `onBack` the message before which files are restored.
 */
export function Card({ item, run, open, onToggle, onAgain, onFork, onBack }) {
  const fold = (head, body, kind = "") => html`
    <${Fold} head=${head} kind=${kind} isOpen=${open.has(item.key)} onToggle=${() => onToggle(item.key)}>${body}<//>
  `;
  switch (item.type) {
    case "user":
      return html`<div class="bubble user"><h3 class="who">${t("You")} <${At} item=${item} /><${Acts} item=${item} onAgain=${onAgain} onFork=${onFork} onBack=${onBack} /></h3><${Markdown} text=${item.text} />
        ${item.images?.map((image) => (image.startsWith("data:") ? html`<img class="sent-image" src=${image} alt=${t("An image that was sent along")} />` : html`<p class="hint">${image}</p>`))}</div>`;
    case "agent":
      return html`<div class="bubble agent"><h3 class="who">${t("Agent")} <${At} item=${item} /><${Acts} item=${item} onFork=${onFork} /></h3><${Markdown} text=${item.text} /></div>`;
    case "tool":
      return fold(html`<${ToolHead} item=${item} run=${run} />`, () => html`<${ToolBody} item=${item} onFork=${onFork} />`, toolTone(item));
    case "group":
      return fold(html`<${Icon} name=${item.steps.some(isBad) ? "warn" : "check"} /><span class="fold-title">${item.label}</span>
        <span class="fold-end">${item.steps.some(isBad) && html`<span class="pill bad">${t("{0} failed", item.steps.filter(isBad).length)}</span>`}</span>`,
        () => item.steps.map((step) => html`<${Card} key=${step.key} item=${step} run=${run} open=${open} onToggle=${onToggle} onFork=${onFork} />`), "group");
    case "thought":
      return fold(html`<${Icon} name="thought" /><span class="fold-title">${t("Thought")}</span>`, () => html`<${Markdown} text=${item.text} />`, "quiet");
    case "system":
      return fold(html`<${Icon} name="gear" /><span class="fold-title">${t("System prompt, {0} tools", item.tools.length)}</span>`,
        () => html`<${Block} kind="output" text=${item.text} /><p class="hint">${item.tools.join(", ")}</p>`, "quiet");
    case "refusal":
      return html`<div class="problem passing"><${Icon} name="warn" /><div><strong>${t("The model does not answer")}</strong> <${At} item=${item} /><p>${item.text}</p></div></div>`;
    case "error":
      return html`<div class="problem"><${Icon} name="warn" /><div><strong>${item.title ?? t("Error")}</strong>
        <p class="pre">${item.text}</p>${item.remedy && html`<p>${item.remedy} ${item.isSettings && html`<a href="#/setup">${t("Open the settings")}</a>`}</p>`}</div></div>`;
    default:
      return html`<p class="note"><span>${item.text}</span></p>`;
  }
}

/** Buttons of a message: copy it, fork from it, restore the files from before it, edit it and send it again. */
const Acts = ({ item, onAgain, onFork, onBack }) => html`
  <span class="acts"><${Copy} text=${item.text} /><${Fork} item=${item} onFork=${onFork} />
    ${onBack && html`<${Button} kind="bare" icon="undo" isIcon needs="run" label=${t("Put files back to before this message")} onPress=${() => onBack(item)} />`}
    ${onAgain && html`<${Button} kind="bare" icon="pen" isIcon needs="run" label=${t("Edit and send again")} onPress=${() => onAgain(item.text)} />`}
  </span>
`;

const Fork = ({ item, onFork }) => html`<${Button} kind="bare" icon="fork" isIcon needs="run" label=${t("Fork from here")}
  title=${t("Fork from here: go on with a copy whose history ends with this, and whose files are those of now")} onPress=${() => onFork(item.event ?? item.key)} />`;

const At = ({ item }) => html`<time datetime=${item.at}>${moment(item.at)}</time>`;

function Fold({ head, kind, isOpen, onToggle, children }) {
  return html`
    <div class="fold ${kind}">
      <button type="button" class="fold-head" aria-expanded=${String(isOpen)} onClick=${onToggle}>
        <span class="chevron"><${Icon} name="right" /></span>${head}
      </button>
      ${isOpen && html`<div class="fold-body">${children()}</div>`}
    </div>
  `;
}

const isBad = (item) => toolTone(item) === "failed";

function toolTone(item) {
  if (item.rejected) return "rejected";
  const { error, output } = item;
  return error || output?.is_error || (output?.exit_code ?? 0) > 0 ? "failed" : "";
}

function ToolHead({ item, run }) {
  const { icon, title, detail } = describe(item);
  return html`
    <${Icon} name=${icon} />
    <span class="fold-title">${title}</span>
    ${detail && html`<code class="fold-detail">${detail}</code>`}
    <span class="fold-end">${item.seconds >= 1 && html`<span class="hint">${span(item.seconds)}</span>`}${outcome(item, run)}</span>
  `;
}

function describe({ tool, action, summary }) {
  switch (action?.kind) {
    case "TerminalAction":
    case "ExecuteBashAction":
      return { icon: "terminal", title: summary || t("Run"), detail: action.command };
    case "FileEditorAction":
      return { icon: action.command === "view" ? "file" : "pen", title: { view: t("Read"), create: t("Create"), undo_edit: t("Undo") }[action.command] ?? t("Edit"), detail: shortPath(action.path) };
    case "TaskTrackerAction":
      return { icon: "check", title: t("Plan"), detail: "" };
    default:
      return { icon: "tool", title: summary || tool, detail: summary ? tool : "" };
  }
}

/** Return a path relative to the workspace; a path outside it is unchanged. */
const shortPath = (path) => (path ?? "").replace(/^.*\/workspace\/(?:project\/)?/, "");

function outcome({ output, error, rejected }, run) {
  if (rejected) return html`<span class="pill quiet">${t("Rejected")}</span>`;
  if (error) return html`<span class="pill bad">${t("Failed")}</span>`;
  if (!output && run === "running") return html`<span class="pill busy">${t("Running")}</span>`;
  if (!output) return html`<span class="pill ${run === "waiting_for_confirmation" ? "warn" : "quiet"}">${run === "waiting_for_confirmation" ? t("Waits") : t("No result")}</span>`;
  if (output.exit_code > 0) return html`<span class="pill bad">${t("Exit {0}", output.exit_code)}</span>`;
  if (output.is_error) return html`<span class="pill bad">${t("Failed")}</span>`;
  return html`<span class="done-mark"><${Icon} name="check" /><span class="hidden">${t("done")}</span></span>`;
}

function ToolBody({ item, onFork }) {
  const { action, output, error, rejected, risk } = item;
  return html`
    <${Call} action=${action} output=${output} />
    ${rejected && html`<p><strong>${t("Rejected:")}</strong> ${rejected}</p>`}
    ${error && html`<p class="pre bad-text">${error}</p>`}
    ${output?.text && !isEdit(action) && html`<h4>${t("Output")}</h4><${Block} kind="output" text=${output.text} />`}
    ${isEdit(action) && output?.is_error && html`<${Block} kind="output" text=${output.text} />`}
    ${output?.exit_code != null && html`<p class="hint">${t("Exit code")} ${output.exit_code}${output.metadata?.working_dir ? html` ${t("in")} <code>${output.metadata.working_dir}</code>` : ""}</p>`}
    ${risk && !["UNKNOWN", "LOW"].includes(risk) && html`<p class="hint">${t("Risk, as the agent sees it: {0}", RISKS[risk] ?? risk)}</p>`}
    <p class="acts">${item.answer && html`<${Fork} item=${{ key: item.answer }} onFork=${onFork} />`}</p>
  `;
}

const isEdit = (action) => action?.kind === "FileEditorAction" && action.command !== "view";

/** The arguments of a tool call: a command, an edit of a file, a plan, or JSON. */
export function Call({ action, output }) {
  switch (action?.kind) {
    case "TerminalAction":
    case "ExecuteBashAction":
      return html`<${Block} kind="command" text=${action.command} />`;
    case "FileEditorAction":
      return html`<p class="path"><code>${action.path}</code></p>${isEdit(action) && html`<${Edit} action=${action} output=${output} />`}`;
    case "TaskTrackerAction":
      return html`<ul class="plan">${(action.task_list ?? []).map((task) => html`<li class=${task.status}>${task.title}</li>`)}</ul>`;
    default: {
      const { kind, ...rest } = action ?? {};
      return html`<${Block} kind="command" text=${JSON.stringify(rest.data ?? rest, null, 2)} />`;
    }
  }
}

function Edit({ action, output }) {
  const after = output?.new_content;
  if (after != null) return html`<${Diff} before=${output.old_content ?? ""} after=${after} path=${action.path} />`;
  if (action.command === "create") return html`<${Diff} before="" after=${action.file_text} path=${action.path} />`;
  if (action.command === "undo_edit") return null;
  return html`<${Diff} before=${action.old_str ?? ""} after=${action.new_str ?? ""} path=${action.path} />`;
}

/** A command or its output, truncated if long; the copy button copies all of it. */
const Block = ({ kind, text }) => html`<div class="code"><pre class=${kind} tabindex="0">${cut(text)}</pre><${Copy} text=${text ?? ""} /></div>`;

function cut(text) {
  const whole = text ?? "";
  return whole.length > MAX_CHARS ? t("{0}\n… {1} more characters; the download has all of them", whole.slice(0, MAX_CHARS), whole.length - MAX_CHARS) : whole;
}
