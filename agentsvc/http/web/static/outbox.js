// Outgoing messages to an agent: each is stored in the browser, shown at once, and sent once, until it appears in the
// conversation.
import { conversationPath, isRefusal, keep, kept, newId, onKept, post, textContent, V1 } from "./api.js";
import { useCallback, useEffect, useMemo, useRef, useState } from "./html.js";

export const SENDING = "sending";
export const TAKEN = "taken";
export const FAILED = "failed";

const NOT_DELIVERED = "MessageNotDelivered";
/** Maximum assumed difference between the clocks of the browser and of a sandbox. */
const CLOCKS_MS = 60_000;
const AGAIN_MS = 1000;

class Outbox {
  constructor(id, redraw) {
    this.name = `outbox ${id}`;
    this.id = id;
    this.redraw = redraw;
    this.sending = new Set();
  }

  get messages() {
    return kept(this.name) ?? [];
  }

  write(messages) {
    keep(this.name, messages.length ? messages : null);
    this.redraw();
  }

  change(key, changes) {
    this.write(this.messages.map((one) => (one.key === key ? { ...one, ...changes } : one)));
  }

  drop(key) {
    this.write(this.messages.filter((one) => one.key !== key));
  }

  /** Store a message and send it; `after` is the number of the last event before it, null if the events are not loaded yet. */
  add(conversation, text, after, images) {
    const message = { key: newId(), text, images, at: new Date().toISOString(), state: SENDING, after };
    this.write([...this.messages, message]);
    this.deliver(conversation, message);
  }

  retry(conversation, key) {
    const message = this.messages.find((one) => one.key === key);
    if (!message) return;
    this.change(key, { state: SENDING, error: "" });
    this.deliver(conversation, message);
  }

  /** Send the messages again whose sending was interrupted, such as by closing the page: the server accepts each once. */
  resume(conversation) {
    for (const message of this.messages) if (message.state === SENDING) this.deliver(conversation, message);
  }

  async deliver(conversation, { key, text, images, isQueued }) {
    if (this.sending.has(key)) return;
    this.sending.add(key);
    const path = conversationPath(this.id);
    const content = [...textContent(text), ...(images?.length ? [{ type: "image", image_urls: images }] : [])];
    const queue = () => {
      this.change(key, { isQueued: true });
      return post(`${V1}/conversations/${this.id}/pending-messages`, { role: "user", content }, key);
    };
    try {
      if (conversation.sandbox_status === "PAUSED") await post(`${V1}/sandboxes/${conversation.sandbox_id}/resume`);
      // An idempotency key is bound to one operation, so a message that was queued once has to be queued again.
      if (isQueued || conversation.sandbox_status !== "RUNNING") await queue();
      else await post(`${path}/send-message`, { role: "user", content }, key);
      this.change(key, { state: TAKEN });
    } catch (error) {
      if (error.code === "request_in_progress") {
        // Another tab sends the message, or did when it was closed: retry until the outcome is known.
        setTimeout(() => this.messages.filter((one) => one.key === key && one.state === SENDING).forEach((one) => this.deliver(conversation, one)), AGAIN_MS);
        return;
      }
      // A rejected message gets a new key to be sent anew; in other cases it may have been accepted, and keeps its key.
      this.change(key, { state: FAILED, error: error.message, ...(isRefusal(error) ? { key: newId() } : {}) });
    } finally {
      this.sending.delete(key);
    }
  }

  /** Drop the messages that have appeared in the conversation, and those that it reports as not delivered. */
  settle(items) {
    const { messages } = this;
    if (!messages.length) return;
    const refused = new Map(items.filter(({ title }) => title === NOT_DELIVERED).map((one) => [one.text.split("\nThe message was:\n")[1], one]));
    let left = messages.filter(({ text, state, at }) => state !== TAKEN || !(Date.parse(refused.get(text)?.at) > Date.parse(at)));
    // Each event matches one message; of messages with the same text, those the server accepted match before failed ones.
    for (const one of left.toSorted((a, b) => (a.state === FAILED) - (b.state === FAILED))) {
      const { key, text, after, at, used = [] } = left.find((other) => other.key === one.key);
      const told = items.find((item) => item.type === "user" && item.text === text && !used.includes(item.number)
        && (after == null ? Date.parse(item.at) > Date.parse(at) - CLOCKS_MS : item.number > after));
      if (told) left = left.filter((other) => other.key !== key).map((other) => (other.text === text ? { ...other, used: [...(other.used ?? []), told.number] } : other));
    }
    if (left.length !== messages.length) this.write(left);
  }
}

/** Return the outgoing messages of a conversation, and functions to send, retry and drop them. */
export function useOutbox(conversation, timeline, isLoaded) {
  const [, redraw] = useState(0);
  const { id } = conversation;
  const outbox = useMemo(() => new Outbox(id, () => redraw((turn) => turn + 1)), [id]);
  useEffect(() => onKept((name) => name === outbox.name && outbox.redraw()), [outbox]);
  const now = useRef(conversation);
  now.current = conversation;
  useEffect(() => {
    // Another tab may have been closed while it was sending: its user sees this one next.
    const resume = () => document.hidden || outbox.resume(now.current);
    outbox.resume(now.current);
    document.addEventListener("visibilitychange", resume);
    return () => document.removeEventListener("visibilitychange", resume);
  }, [outbox]);
  useEffect(() => {
    if (isLoaded) outbox.settle(timeline.items);
  }, [outbox, timeline.count, isLoaded]);
  return {
    messages: outbox.messages,
    send: (text, images = []) => outbox.add(conversation, text, isLoaded ? timeline.last : null, images),
    retry: (key) => outbox.retry(conversation, key),
    drop: useCallback((key) => outbox.drop(key), [outbox]),
  };
}
