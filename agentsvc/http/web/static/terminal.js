// The terminal of a conversation: the output of the agent's commands, and a shell for the user in the sandbox.
import { html, useEffect, useRef, useState } from "./html.js";
import { refusal } from "./me.js";
import { Shell } from "./shell.js";
import { Empty, Problem } from "./ui.js";
import { openTerminal } from "./xterm.js";
import { t } from "./words.js";

const COMMANDS = ["TerminalAction", "ExecuteBashAction"];
const MAX_COMMANDS = 200;
const MAX_CHARS = 100_000;
const PROMPT = "\x1b[0m\x1b[1;34m$\x1b[0m ";

/** Return the agent's commands with their results. */
function commandsOf(items) {
  return items.filter((item) => item.type === "tool" && COMMANDS.includes(item.action?.kind)).map(({ key, action, output, error, rejected }) => ({
    key, command: action.command ?? "", isOver: Boolean(output || error || rejected), place: output?.metadata?.working_dir,
    text: rejected ? t("Rejected: {0}", rejected) : (error ?? output?.text ?? ""), exit: output?.exit_code,
  }));
}

/** Return the output of a command for a terminal, only the end of it if it is long, and a nonzero exit code. */
function shownOutput({ text, exit }) {
  const left = text.length > MAX_CHARS ? t("… {0} characters before this\n{1}", text.length - MAX_CHARS, text.slice(-MAX_CHARS)) : text;
  const code = exit ? `\x1b[0m\x1b[31mexit code ${exit}\x1b[0m\n` : "";
  return `${left.trimEnd()}${left.trim() ? "\n" : ""}${code}`;
}

export function Terminal({ conversation, sandbox, timeline }) {
  const [isShell, setShell] = useState(false);
  const commands = commandsOf(timeline.items);
  const place = commands.findLast((one) => one.place)?.place ?? sandbox?.working_dir;
  const isRunning = conversation.sandbox_status === "RUNNING";
  return html`
    <div class="bar">
      <h2 class="hidden">${t("Terminal")}</h2>
      <div class="choice" role="group" aria-label=${t("Which terminal")}>
        <button type="button" aria-pressed=${String(!isShell)} onClick=${() => setShell(false)}>${t("The agent's commands")}</button>
        ${!refusal("run") && html`<button type="button" aria-pressed=${String(isShell)} disabled=${!isRunning} onClick=${() => setShell(true)}>${t("Your shell")}</button>`}
      </div>
      ${!isRunning && html`<p class="hint">${t("The sandbox does not run, so there is no shell in it.")}</p>`}
    </div>
    ${isShell && isRunning ? html`<${Shell} conversation=${conversation} place=${place} />` : html`<${AgentTerminal} commands=${commands} />`}
  `;
}

function AgentTerminal({ commands }) {
  const box = useRef(null);
  const [error, setError] = useState(null);
  /** The last command written, the command of the last line, and the unfinished commands. */
  const shown = useRef({ terminal: null, last: null, line: null, open: new Set() }).current;
  const write = () => {
    const { terminal, open } = shown;
    if (!terminal) return;
    const at = commands.findIndex((one) => one.key === shown.last);
    const ended = commands.filter((one) => open.has(one.key) && one.isOver);
    const fresh = at < 0 ? commands.slice(-MAX_COMMANDS) : commands.slice(at + 1);
    for (const one of at < 0 ? fresh : [...ended, ...fresh]) {
      // Concurrent commands are written again, with their output.
      if (one.key !== shown.line) terminal.write(`${PROMPT}${one.command}\n`);
      shown.line = one.key;
      if (one.isOver) terminal.write(shownOutput(one));
      open[one.isOver ? "delete" : "add"](one.key);
    }
    shown.last = fresh.at(-1)?.key ?? shown.last;
    terminal.scrollToBottom();
  };
  useEffect(() => {
    let close = () => {};
    let isGone = false;
    openTerminal(box.current, { disableStdin: true, cursorBlink: false }).then((opened) => {
      if (isGone) return opened.close();
      close = opened.close;
      shown.terminal = opened.terminal;
      write();
    }).catch(setError);
    return () => {
      isGone = true;
      close();
    };
  }, []);
  useEffect(write);
  return html`
    <${Problem} error=${error} />
    ${!commands.length && html`<${Empty} icon="terminal" title=${t("No commands")}>${t("The agent has run none so far.")}<//>`}
    <div class="terminal-box" ref=${box} role="group" aria-label=${t("The agent's commands")}></div>
  `;
}
