// The terminal of a conversation: what the agent's commands printed, and commands of one's own beside it.
import { post } from "./api.js";
import { html, useRef, useState } from "./html.js";
import { refusal } from "./me.js";
import { Button, Empty, Problem } from "./ui.js";

const COMMANDS = ["TerminalAction", "ExecuteBashAction"];
const MOST_COMMANDS = 100;
const MOST_CHARS = 20_000;
const LONGEST_SECONDS = 120;
// Colours, titles and moves of the cursor, which mean nothing on a page.
const ESCAPES = /\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-~])/g;
const CONTROLS = /[\x00-\x08\x0b-\x1f\x7f]/g;

/** Return a text as a terminal leaves it: what was written over is gone. */
export function printed(text) {
  const lines = (text ?? "").replace(ESCAPES, "").split("\n");
  const left = lines.map((line) => overwritten(line).replace(CONTROLS, "")).join("\n");
  return left.length > MOST_CHARS ? `… ${left.length - MOST_CHARS} characters before this\n${left.slice(-MOST_CHARS)}` : left;
}

function overwritten(line) {
  let end = line.length;
  while (line[end - 1] === "\r") end -= 1;
  return line.slice(line.lastIndexOf("\r", end - 1) + 1, end);
}

/** Return the commands of an agent, with what came of each. */
function commandsOf(items) {
  return items.filter((item) => item.type === "tool" && COMMANDS.includes(item.action?.kind)).map(({ key, at, action, output, error, rejected }) => ({
    key, at, who: "Agent", command: action.command ?? "", place: output?.metadata?.working_dir,
    text: error ?? output?.text ?? "", exit: output?.exit_code, note: rejected ? "Rejected" : !output && !error ? "No result so far" : "",
  }));
}

export function Terminal({ conversation, sandbox, timeline }) {
  const [own, setOwn] = useState([]);
  const agents = commandsOf(timeline.items);
  const all = [...agents, ...own].sort((a, b) => Date.parse(a.at) - Date.parse(b.at));
  const place = agents.findLast((one) => one.place)?.place ?? sandbox?.working_dir;
  return html`
    <h2>Terminal</h2>
    ${all.length > MOST_COMMANDS && html`<p class="hint">The last ${MOST_COMMANDS} commands. The conversation has all of them.</p>`}
    ${!all.length && html`<${Empty} icon="terminal" title="No commands">The agent has run none so far.<//>`}
    <ol class="session" aria-label="Commands">
      ${all.slice(-MOST_COMMANDS).map((one) => html`<${Command} key=${one.key} one=${one} />`)}
    </ol>
    ${refusal("run") ? null : conversation.sandbox_status === "RUNNING"
      ? html`<${Prompt} conversation=${conversation} place=${place} onDone=${(one) => setOwn((old) => [...old, one])} />`
      : html`<p class="hint">The sandbox does not run, so that you cannot run commands in it.</p>`}
  `;
}

function Command({ one }) {
  const text = printed(one.text).trimEnd();
  return html`
    <li>
      <pre class="command" tabindex="0"><code>${one.who === "You" ? "you " : ""}$ ${one.command}</code></pre>
      ${text && html`<pre class="output" tabindex="0">${text}</pre>`}
      ${(one.note || one.exit > 0 || one.exit < 0) && html`<p class="hint">${one.note || `Exit code ${one.exit}`}</p>`}
    </li>
  `;
}

/** Runs a command of the user in the sandbox, in a shell of its own; the agent does not see it. */
function Prompt({ conversation, place, onDone }) {
  const [command, setCommand] = useState("");
  const [error, setError] = useState(null);
  const count = useRef(0);
  const run = async () => {
    if (!command.trim()) return;
    setError(null);
    const body = { command, timeout: LONGEST_SECONDS };
    if (place) body.cwd = place;
    try {
      const found = await post(`sandboxes/${encodeURIComponent(conversation.sandbox_id)}/agent/api/bash/execute_bash_command`, body);
      count.current += 1;
      const isLate = found.exit_code === -1;
      onDone({
        key: `own-${count.current}`, at: new Date().toISOString(), who: "You", command,
        text: [found.stdout, found.stderr].filter(Boolean).join("\n"), exit: found.exit_code,
        note: isLate ? `It did not start, or was ended: commands may take ${LONGEST_SECONDS} seconds here.` : "",
      });
      setCommand("");
    } catch (problem) {
      setError(problem);
    }
  };
  const onKey = (event) => {
    if (event.key !== "Enter" || event.isComposing) return;
    event.preventDefault();
    event.currentTarget.form.querySelector("button").click();
  };
  return html`
    <${Problem} error=${error} />
    <form class="prompt" onSubmit=${(event) => event.preventDefault()}>
      <label class="hidden" for="own-command">Command</label>
      <input id="own-command" class="mono" value=${command} placeholder="A command of yours" autocomplete="off" autocapitalize="off"
        spellcheck="false" onInput=${(event) => setCommand(event.target.value)} onKeyDown=${onKey} />
      <${Button} kind="primary" icon="play" onPress=${run} label="Run" />
    </form>
    <p class="hint">It runs in a shell of its own${place ? html`, in <code>${place}</code>` : ""}. The agent does not see it, but its files are the same.</p>
  `;
}
