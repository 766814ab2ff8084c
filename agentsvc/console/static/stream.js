// Following a stream of the server: it goes on where it was, also after a lost connection.
import { url } from "./api.js";

const TYPES = ["event", "delta", "ready", "resync", "conversation", "start_task", "sandbox"];
const DELETIONS = ["conversation_deleted", "start_task_deleted", "sandbox_deleted"];
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
    const query = this.last === null ? "" : `?after=${this.last}`;
    const source = new EventSource(url(this.path + query));
    this.source = source;
    source.onopen = () => {
      this.wait = FIRST_WAIT_MS;
      this.onState(true);
    };
    source.onerror = () => {
      this.onState(false);
      // The browser tries again by itself, unless the answer was no stream at all.
      if (source.readyState === EventSource.CLOSED) this.reopen();
    };
    for (const type of [...TYPES, ...DELETIONS]) {
      source.addEventListener(type, (message) => this.take(type, message));
    }
    source.addEventListener("end", (message) => {
      this.close();
      this.onMessage("end", JSON.parse(message.data));
    });
  }

  take(type, message) {
    if (type === "event" && message.lastEventId) this.last = Number(message.lastEventId);
    this.onMessage(type, JSON.parse(message.data));
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
    this.source?.close();
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
