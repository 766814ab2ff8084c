// A shell in a sandbox, in its own pseudo-terminal. The agent server runs only single commands, so the shell's input and
// output are two named pipes in the sandbox: one command waits for output, and others write the typed text.
import { post } from "./api.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { Button, Problem } from "./ui.js";
import { openTerminal } from "./xterm.js";
import { t } from "./words.js";

const READ_SECONDS = 20;
const READ_BYTES = 65536;
const GATHER_MS = 15;
const RESIZE_MS = 200;
const ENDED = 7;

const quote = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** Return a command that starts a shell and prints its pipes' directory. The shell ends after two minutes without a read. */
const start = (cols, rows) => `
command -v script >/dev/null || { echo "This sandbox has no \\"script\\", which makes terminals (package bsdutils or util-linux)." >&2; exit 3; }
d=$(mktemp -d /tmp/agentsvc-shell-XXXXXX) && mkfifo "$d/in" "$d/out" || exit 3
export d TERM=xterm-256color
setsid bash -c '
  exec 3<>"$d/in" 4<>"$d/out"
  (while sleep 30; do find "$d" -maxdepth 0 -mmin +2 | grep -q . && { rm -rf "$d"; kill 0; }; [ -d "$d" ] || exit; done) &
  script -qfc "tty >\\"$d/tty\\"; stty cols ${cols} rows ${rows}; exec bash -i" /dev/null <&3 >&4 2>&4
  rm -rf "$d"; kill 0
' >/dev/null 2>&1 </dev/null &
echo "$d"`;

class Session {
  constructor(sandboxId, place) {
    this.path = `sandboxes/${encodeURIComponent(sandboxId)}/agent/api/bash/execute_bash_command`;
    this.place = place;
    this.folder = null;
    this.isOver = false;
    this.typed = "";
    this.writing = Promise.resolve();
  }

  async run(command, timeout = 30) {
    const body = { command, timeout };
    if (this.place) body.cwd = this.place;
    return post(this.path, body);
  }

  /** Run a shell until it ends, and pass its output to `print`. */
  async follow(cols, rows, print) {
    const { stdout, stderr, exit_code } = await this.run(start(cols, rows));
    if (exit_code) throw new Error(stderr?.trim() || t("The shell could not be started."));
    this.folder = stdout.trim();
    if (this.isOver) return this.end();
    const read = `[ -d ${this.folder} ] || exit ${ENDED}; touch ${this.folder}
      timeout ${READ_SECONDS} dd if=${this.folder}/out bs=${READ_BYTES} count=1 status=none 2>/dev/null | base64 -w0`;
    while (!this.isOver) {
      const found = await this.run(read, READ_SECONDS + 10);
      if (found.exit_code === ENDED) return;
      if (found.stdout) print(Uint8Array.from(atob(found.stdout.trim()), (one) => one.charCodeAt(0)));
    }
  }

  /** Send typed text to the shell in order; text typed within a few milliseconds is sent together. */
  type(text) {
    const isFirst = !this.typed;
    this.typed += text;
    if (!isFirst) return;
    this.writing = this.writing.then(() => new Promise((resolve) => setTimeout(resolve, GATHER_MS))).then(() => {
      const all = this.typed;
      this.typed = "";
      if (this.folder && all) return this.run(`printf %s ${quote(all)} >${this.folder}/in`);
    }).catch(() => {});
  }

  resize(cols, rows) {
    clearTimeout(this.resizing);
    if (!this.folder) return;
    this.resizing = setTimeout(() => this.run(`stty -F "$(cat ${this.folder}/tty)" cols ${cols} rows ${rows}`).catch(() => {}), RESIZE_MS);
  }

  end() {
    this.isOver = true;
    if (this.folder) this.run(`rm -rf ${this.folder}/out; printf '\\004' >${this.folder}/in; rm -rf ${this.folder}`).catch(() => {});
  }
}

export function Shell({ conversation, place }) {
  const box = useRef(null);
  const [turn, setTurn] = useState(0);
  const [state, setState] = useState({});
  useEffect(() => {
    const session = new Session(conversation.sandbox_id, place);
    let close = () => {};
    setState({});
    openTerminal(box.current, { cursorBlink: true, convertEol: false }, (cols, rows) => session.resize(cols, rows)).then(async (opened) => {
      if (session.isOver) return opened.close();
      const { terminal } = opened;
      close = opened.close;
      terminal.onData((text) => session.type(text));
      terminal.focus();
      await session.follow(terminal.cols, terminal.rows, (bytes) => terminal.write(bytes));
      setState({ isOver: true });
    }).catch((error) => setState({ error, isOver: true }));
    return () => {
      session.end();
      close();
    };
  }, [turn]);
  return html`
    <${Problem} error=${state.error} />
    <div class="terminal-box" ref=${box} role="group" aria-label=${t("Your shell")}></div>
    ${state.isOver && html`<p class="actions"><span class="hint">${t("The shell has ended.")}</span><${Button} icon="play" onPress=${() => setTurn(turn + 1)} label=${t("Start another one")} /></p>`}
    <p class="hint">${t("The agent does not see this shell, but its files are the same.")}</p>
  `;
}
