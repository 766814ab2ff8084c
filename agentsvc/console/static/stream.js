// Following a stream of the server: it goes on where it was, also after a lost connection.
import { send } from "./api.js";

const HIDDEN_MS = 30_000;
const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 15_000;

/**
 * A stream of server-sent events. Browsers allow few connections to one server, so that a page nobody sees
 * lets go of its own after a while.
 */
export class Stream {
  constructor(path, onMessage, onState = () => {}) {
    this.path = path;
    this.onMessage = onMessage;
    this.onState = onState;
    this.last = null;
    this.wait = FIRST_WAIT_MS;
    this.isOver = false;
    this.onVisible = () => this.heedVisibility();
    document.addEventListener("visibilitychange", this.onVisible);
    this.open();
  }

  open() {
    if (this.isOver || this.source) return;
    const source = new AbortController();
    this.source = source;
    this.follow(source).catch(() => {}).then(() => {
      if (this.source !== source) return;
      this.onState(false);
      this.reopen();
    });
  }

  /** Read until the stream ends. An EventSource could not send who is logged in. */
  async follow(source) {
    const query = this.last === null ? "" : `?after=${this.last}`;
    const response = await send(this.path + query, { headers: { Accept: "text/event-stream" }, signal: source.signal });
    if (!response.ok) return;
    this.wait = FIRST_WAIT_MS;
    this.onState(true);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let begun = [];
    let message = {};
    for (;;) {
      const { value, done } = await reader.read();
      if (done || this.source !== source) return;
      const lines = value.split("\n");
      // A large message comes in many pieces, which are put together once.
      const rest = lines.pop();
      for (const line of lines) {
        message = this.heed([...begun, line].join(""), message);
        begun = [];
      }
      begun.push(rest);
    }
  }

  /** Take a line in and return what is known of the message; an empty line ends it. */
  heed(line, message) {
    if (line) {
      const at = line.indexOf(": ");
      return { ...message, [line.slice(0, at)]: line.slice(at + 2) };
    }
    if (message.event) this.take(message.event, message.id, message.data);
    return {};
  }

  take(type, id, data) {
    if (type === "event" && id) this.last = Number(id);
    if (type === "end") this.close();
    // What goes wrong there is no failure of the stream.
    queueMicrotask(() => this.onMessage(type, JSON.parse(data)));
  }

  reopen() {
    this.drop();
    this.timer = setTimeout(() => this.open(), this.wait);
    this.wait = Math.min(this.wait * 2, LONGEST_WAIT_MS);
  }

  heedVisibility() {
    clearTimeout(this.hiding);
    if (document.hidden) this.hiding = setTimeout(() => this.drop(), HIDDEN_MS);
    else this.open();
  }

  drop() {
    this.source?.abort();
    this.source = null;
    clearTimeout(this.timer);
  }

  close() {
    this.isOver = true;
    this.drop();
    clearTimeout(this.hiding);
    document.removeEventListener("visibilitychange", this.onVisible);
  }
}
