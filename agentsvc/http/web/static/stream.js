// Server events, over one WebSocket for all tabs of a browser: one tab holds the connection and forwards messages to the
// others; when it is closed, another tab takes over. The WebSocket carries the user's changes, and the events of each
// conversation that a tab shows. It resumes after a lost connection.
import { BASE, goToLogin, newId, storedLogin, url, V1 } from "./api.js";

const HIDDEN_MS = 30_000;
const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 15_000;
/** The close code of the server for a login that is not valid any more. */
const LOGGED_OUT = 4001;
const NAME = `agentsvc ${BASE.pathname}`;
const TAB = newId();

/** The WebSocket of a browser, with the subscriptions of its tabs; it reconnects and subscribes again. */
class Connection {
  /** Subscriptions by stream name; each resumes after the last event received. */
  orders = new Map();
  isReady = false;
  wait = FIRST_WAIT_MS;

  constructor(tell) {
    this.tell = tell;
    this.open();
  }

  open() {
    clearTimeout(this.timer);
    this.timer = null;
    const address = new URL(url(`${V1}/events/stream`));
    address.protocol = address.protocol.replace("http", "ws");
    const socket = new WebSocket(address);
    this.socket = socket;
    socket.onopen = () => socket.send(JSON.stringify({ type: "auth", session_api_key: storedLogin() ?? "" }));
    socket.onmessage = ({ data }) => this.take(JSON.parse(data));
    socket.onclose = ({ code }) => this.end(code);
  }

  take(message) {
    const { type, stream, id } = message;
    if (type === "ready" && !stream) {
      this.wait = FIRST_WAIT_MS;
      this.isReady = true;
      this.tell({ state: true });
      for (const order of this.orders.values()) this.say({ type: "follow", ...order });
    }
    if (type === "event" && this.orders.has(stream)) this.orders.set(stream, { ...this.orders.get(stream), after: id });
    this.tell({ message });
  }

  end(code) {
    if (code === LOGGED_OUT) return goToLogin();
    this.isReady = false;
    this.tell({ state: false });
    this.timer = setTimeout(() => this.open(), this.wait);
    this.wait = Math.min(this.wait * 2, LONGEST_WAIT_MS);
  }

  /** Reconnect at once if it is waiting for the next attempt. */
  retry() {
    if (this.timer !== null) this.open();
  }

  say(order) {
    if (this.isReady) this.socket.send(JSON.stringify(order));
  }

  follow(order) {
    this.orders.set(order.stream, order);
    this.say({ type: "follow", ...order });
  }

  unfollow(stream) {
    if (this.orders.delete(stream)) this.say({ type: "unfollow", stream });
  }

  /** Cancel the subscriptions of a closed tab. */
  forget(tab) {
    for (const stream of this.orders.keys()) if (stream.startsWith(tab)) this.unfollow(stream);
  }
}

/** The subscriptions of this tab, through its own connection or that of another tab. */
class Hub {
  streams = new Map();
  tabs = new Set();
  isHeld = false;
  connection = null;
  channel = null;
  wait = FIRST_WAIT_MS;
  onChange = () => {};
  onState = () => {};

  begin(onChange, onState) {
    this.onChange = onChange;
    this.onState = onState;
    // Browsers have locks in secure contexts only; elsewhere each tab has its own connection.
    if (!navigator.locks) return this.lead();
    this.channel = new BroadcastChannel(NAME);
    this.channel.onmessage = ({ data }) => this.heed(data);
    // Held until this tab is closed, so that the tab with the connection notices that.
    navigator.locks.request(`${NAME} ${TAB}`, () => {
      this.isHeld = true;
      this.askForAll();
      return new Promise(() => {});
    });
    navigator.locks.query().then(({ held }) => {
      if (!held.some((one) => one.name === NAME)) return;
      // The messages that another tab receives arrive here from now on: load the lists.
      this.onChange("ready", {});
      this.ask({ wants: "state" });
    });
    navigator.locks.request(NAME, () => {
      this.lead();
      return new Promise(() => {});
    });
  }

  lead() {
    this.connection = new Connection((told) => {
      if (this.streams.has(told.message?.stream)) return this.heed(told);
      this.channel?.postMessage(told);
      this.heed(told);
    });
    for (const stream of this.streams.values()) this.connection.follow(stream.order);
    this.channel?.postMessage({ wants: "orders" });
  }

  /** Send a request to the tab with the connection, which considers a tab closed that does not hold its lock. */
  ask(request) {
    if (this.connection) this.serve(request);
    else if (this.isHeld || request.wants) this.channel?.postMessage(request);
  }

  askForAll() {
    for (const stream of this.streams.values()) this.ask({ follow: stream.order, tab: TAB });
  }

  /** Process the request of a tab without a connection; cancel its subscriptions when it is closed. */
  serve({ follow, unfollow, wants, tab }) {
    if (follow) this.connection.follow(follow);
    else if (unfollow) this.connection.unfollow(unfollow);
    else if (wants === "connection") this.connection.retry();
    else if (wants === "state") this.channel?.postMessage({ state: this.connection.isReady });
    if (!tab || tab === TAB || this.tabs.has(tab)) return;
    this.tabs.add(tab);
    navigator.locks.request(`${NAME} ${tab}`, () => {
      this.tabs.delete(tab);
      this.connection.forget(tab);
    });
  }

  heed(told) {
    const { message, state, wants } = told;
    if (message?.stream) this.streams.get(message.stream)?.take(message);
    else if (message) this.onChange(message.type, message.data);
    else if (state !== undefined) this.note(state);
    else if (wants === "orders") this.askForAll();
    else if (this.connection) this.serve(told);
  }

  /** Report the connection state. Tabs without the connection request retries themselves, because browsers throttle hidden tabs. */
  note(isConnected) {
    this.onState(isConnected);
    clearTimeout(this.timer);
    this.wait = isConnected ? FIRST_WAIT_MS : Math.min(this.wait * 2, LONGEST_WAIT_MS);
    if (!isConnected && !this.connection) this.timer = setTimeout(() => this.ask({ wants: "connection" }), this.wait);
  }

  add(stream) {
    this.streams.set(stream.name, stream);
    this.ask({ follow: stream.order, tab: TAB });
  }

  remove(stream) {
    if (this.streams.delete(stream.name)) this.ask({ unfollow: stream.name });
  }
}

const hub = new Hub();

/** Subscribe to the user's changes; `onChange` gets "ready" when the lists have to be loaded. */
export const followChanges = (onChange, onState) => hub.begin(onChange, onState);

/** A subscription to the events of a conversation; suspended when the page has been hidden for a while. */
export class Stream {
  constructor(id, onMessage, { isForHidden = false, after = null, latest = null } = {}) {
    this.id = id;
    this.name = `${TAB}-${newId().slice(0, 12)}`;
    this.latest = latest;
    this.onMessage = onMessage;
    this.last = after;
    this.wait = FIRST_WAIT_MS;
    this.isOver = false;
    this.onVisible = () => this.heedVisibility();
    if (!isForHidden) document.addEventListener("visibilitychange", this.onVisible);
    hub.add(this);
  }

  get order() {
    const from = this.last !== null ? { after: this.last } : this.latest !== null ? { latest: this.latest } : {};
    return { stream: this.name, conversation_id: this.id, ...from };
  }

  take({ type, id, data }) {
    if (type === "event") this.last = id;
    if (type === "ready") this.wait = FIRST_WAIT_MS;
    if (type === "end" && ["deleted", "not_found"].includes(data.reason)) this.close();
    else if (type === "resync" || type === "end") {
      if (type === "resync") this.last = data.last_event_id;
      hub.remove(this);
      this.timer = setTimeout(() => this.open(), this.wait);
      this.wait = Math.min(this.wait * 2, LONGEST_WAIT_MS);
      if (type === "end") return;
    }
    this.onMessage(type, data, id);
  }

  open() {
    clearTimeout(this.timer);
    if (!this.isOver && !hub.streams.has(this.name)) hub.add(this);
  }

  heedVisibility() {
    clearTimeout(this.hiding);
    if (document.hidden) this.hiding = setTimeout(() => hub.remove(this), HIDDEN_MS);
    else this.open();
  }

  close() {
    this.isOver = true;
    hub.remove(this);
    clearTimeout(this.timer);
    clearTimeout(this.hiding);
    document.removeEventListener("visibilitychange", this.onVisible);
  }
}

/** Return the events of a conversation between two numbers, inclusive, as [event, number]. */
export function readEvents(id, from, to) {
  return new Promise((resolve) => {
    const found = [];
    const settle = () => {
      stream.close();
      resolve(found);
    };
    const stream = new Stream(id, (type, data, number) => {
      if (type === "event" && number <= to) found.push([data, number]);
      if (type !== "event" || number >= to) settle();
    }, { isForHidden: true, after: from > 0 ? from - 1 : null });
  });
}
