// Following a stream of the server over a WebSocket: it goes on where it was, also after a lost connection. Browsers
// limit the other connections to a server to six, which a few tabs would use up.
import { BASE, goToLogin, storedLogin, url } from "./api.js";

const HIDDEN_MS = 30_000;
const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 15_000;
/** The codes that the server closes a stream with: begin anew behind an event, not logged in any more, deleted. */
const RESYNC = 4008;
const LOGGED_OUT = 4001;
const DELETED = 4004;

/** A stream of one page; a page nobody sees lets go of its own after a while. */
export class Stream {
  constructor(path, onMessage, onState = () => {}, { isForHidden = false, after = null, latest = null } = {}) {
    this.path = path;
    this.latest = latest;
    this.onMessage = onMessage;
    this.onState = onState;
    this.last = after;
    this.wait = FIRST_WAIT_MS;
    this.isOver = false;
    this.onVisible = () => this.heedVisibility();
    if (!isForHidden) document.addEventListener("visibilitychange", this.onVisible);
    this.open();
  }

  open() {
    if (this.isOver || this.socket) return;
    const address = new URL(url(this.path));
    address.protocol = address.protocol.replace("http", "ws");
    if (this.last !== null) address.searchParams.set("after", this.last);
    else if (this.latest !== null) address.searchParams.set("latest", this.latest);
    const socket = new WebSocket(address);
    this.socket = socket;
    socket.onopen = () => socket.send(JSON.stringify({ type: "auth", session_api_key: storedLogin() ?? "" }));
    socket.onmessage = ({ data }) => this.socket === socket && this.take(JSON.parse(data));
    socket.onclose = ({ code, reason }) => this.socket === socket && this.end(code, reason);
  }

  take({ type, id, data }) {
    if (type === "event") this.last = id;
    if (type === "ready") {
      this.wait = FIRST_WAIT_MS;
      this.onState(true);
    }
    this.onMessage(type, data, id);
  }

  end(code, reason) {
    if (code === LOGGED_OUT) return goToLogin();
    if (code === DELETED) {
      this.close();
      return this.onMessage("end", { reason });
    }
    if (code === RESYNC) {
      this.last = reason === "" ? null : Number(reason);
      this.onMessage("resync", { last_event_id: this.last });
    } else {
      this.onState(false);
    }
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
    const { socket } = this;
    this.socket = null;
    socket?.close();
    clearTimeout(this.timer);
  }

  close() {
    this.isOver = true;
    this.drop();
    clearTimeout(this.hiding);
    document.removeEventListener("visibilitychange", this.onVisible);
  }
}

/** Return the events of a conversation from one number up to another. */
export function readEvents(path, from, to) {
  return new Promise((resolve) => {
    const found = [];
    const settle = () => {
      stream.close();
      resolve(found);
    };
    const stream = new Stream(path, (type, data, id) => {
      if (type === "event" && id <= to) found.push(data);
      if (type !== "event" || id >= to) settle();
    }, () => {}, { isForHidden: true, after: from > 0 ? from - 1 : null });
  });
}

/**
 * A stream that all tabs of a browser share: one of them reads it and tells the others, and another takes its place
 * when it is closed. Only for streams that begin with what happens now.
 */
export function followTogether(path, onMessage, onState) {
  const follow = (take, note) => new Stream(path, take, note, { isForHidden: true });
  // Browsers have locks on secure origins only.
  if (!navigator.locks) return void follow(onMessage, onState);
  const name = `agentsvc ${BASE.pathname}${path}`;
  const channel = new BroadcastChannel(name);
  let isConnected = null;
  const tell = (message) => {
    channel.postMessage(message);
    heed(message);
  };
  const heed = ({ type, data, state, wants }) => {
    if (wants && isConnected !== null) channel.postMessage({ state: isConnected });
    else if (state !== undefined) onState(state);
    else if (type) onMessage(type, data);
  };
  channel.onmessage = ({ data }) => heed(data);
  // What another tab reads is told from now on: this one lists what is there, and asks whether the other is connected.
  navigator.locks.query().then(({ held }) => {
    if (!held.some((one) => one.name === name)) return;
    onMessage("ready", {});
    channel.postMessage({ wants: "state" });
  });
  navigator.locks.request(name, () => new Promise(() => {
    follow((type, data) => tell({ type, data }), (state) => {
      isConnected = state;
      tell({ state });
    });
  }));
}
