// The user's conversations, starts and sandboxes, kept up to date by one stream.
import { getAll, isAbsence, onAnswer, V1 } from "./api.js";
import { useEffect, useRef, useState } from "./html.js";
import { followChanges } from "./stream.js";

const MINUTE_MS = 60 * 1000;
const RECENT_MS = 20 * MINUTE_MS;
const LONGEST_WAIT_MS = 30_000;

class Store {
  conversations = new Map();
  tasks = new Map();
  sandboxes = new Map();
  isLoaded = false;
  isConnected = true;
  listeners = new Set();
  /** Changes that arrived while the lists were being loaded, which may be older. */
  meanwhile = [];
  loads = 0;
  /** Number of notifications of the listeners so far. */
  version = 0;

  begin() {
    if (this.isBegun) return;
    this.isBegun = true;
    // Relative times change without an event.
    setInterval(() => this.tell(), MINUTE_MS);
    followChanges(
      (type, data) => this.take(type, data),
      (isConnected) => {
        this.isConnected = isConnected;
        this.tell();
      },
    );
  }

  /** Process a message of the stream. It reports changes from `ready` on; the lists are loaded then, also after a reconnect. */
  async take(type, data) {
    if (type === "ready" || type === "resync") return this.load();
    if (this.loads) this.meanwhile.push([type, data]);
    this.put(type, data);
    this.tell();
  }

  put(type, data) {
    if (type.endsWith("_deleted")) this.mapOf(type.replace("_deleted", ""))?.delete(data.id);
    else this.mapOf(type)?.set(data.id, data);
  }

  mapOf(subject) {
    return { conversation: this.conversations, start_task: this.tasks, sandbox: this.sandboxes }[subject];
  }

  async load() {
    const since = new Date(Date.now() - RECENT_MS).toISOString();
    this.loads += 1;
    try {
      const [conversations, tasks, sandboxes] = await Promise.all([
        getAll(`${V1}/app-conversations/search`, { sort_order: "UPDATED_AT_DESC" }),
        getAll(`${V1}/app-conversations/start-tasks/search`, { created_at__gte: since }),
        getAll(`${V1}/sandboxes/search`),
      ]);
      this.conversations = byId(conversations);
      this.tasks = byId(tasks);
      this.sandboxes = byId(sandboxes);
      this.isLoaded = true;
      for (const [type, data] of this.meanwhile) this.put(type, data);
    } catch {
      // Without the lists, earlier changes are missing: retry.
      setTimeout(() => this.load(), 2000);
    }
    this.loads -= 1;
    if (!this.loads) this.meanwhile = [];
    this.tell();
  }

  tell() {
    if (this.isTelling) return;
    this.isTelling = true;
    // Not requestAnimationFrame: a page in the background has no frames.
    setTimeout(() => {
      this.isTelling = false;
      this.version += 1;
      for (const listener of this.listeners) listener();
    }, 16);
  }
}

const byId = (items) => new Map(items.map((item) => [item.id, item]));

export const store = new Store();

/** Return the store, and render the view again whenever it changes. */
export function useStore() {
  const [, redraw] = useState(store.version);
  useEffect(() => {
    const listener = () => redraw(store.version);
    store.listeners.add(listener);
    // The store may have changed since the view was rendered.
    listener();
    return () => store.listeners.delete(listener);
  }, []);
  return store;
}

/**
 * Return a loaded list, and `act`, which wraps an action: it shows the action's error, reloads the list after a success, and
 * calls `done` if that succeeded, too. `refuse` gets the errors instead, on pages too long for an error at the top to be seen.
 */
export function useList(load, refuse) {
  const list = useLoaded(load);
  const [error, setError] = useState(null);
  // If reloading fails, the previous list stays visible.
  const value = useRef();
  value.current = list.value ?? value.current;
  const fail = refuse ?? setError;
  const act = (work, done) => async () => {
    fail(null);
    try {
      await work();
      // If reloading fails, the displayed values are outdated: keep the typed text.
      if (await list.again()) done?.();
    } catch (problem) {
      fail(problem);
    }
  };
  return { ...list, value: value.current, act, error: error ?? list.error };
}

/**
 * Return the values of a form, a function that returns the props of a field, and one that discards edits. A field without edits
 * follows its stored value; edits made since the render are not discarded.
 */
export function useForm(stored) {
  const [changes, setChanges] = useState({});
  const form = { ...stored, ...changes };
  const field = (name) => ({ value: form[name], onValue: (value) => setChanges((old) => ({ ...old, [name]: value })) });
  const clear = () => setChanges((now) => changesOf(now, changes));
  return [form, field, clear];
}

/** Return the values that differ from the previous ones. */
export const changesOf = (values, before) =>
  Object.fromEntries(Object.entries(values).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(before[name])));

/**
 * Run an async function; return its value, error and loading state, and two functions that run it again: `again` resolves to
 * whether it succeeded, and `look`, for polling, does nothing while it is running.
 */
export function useLoaded(work, keys = []) {
  const [state, setState] = useState({ isLoading: true });
  const [turn, setTurn] = useState(0);
  const waiting = useRef([]);
  const isUnderWay = useRef(false);
  const absences = useRef(0);
  useEffect(() => {
    let isCurrent = true;
    isUnderWay.current = true;
    const waiters = waiting.current.splice(0);
    const settle = (next) => {
      if (!isCurrent) return;
      isUnderWay.current = false;
      setState(next);
      for (const done of waiters.splice(0)) done(!next.error);
    };
    setState((old) => ({ ...old, isLoading: true }));
    let stop = () => {};
    work().then((value) => {
      absences.current = 0;
      settle({ value });
    }, (error) => {
      settle({ error });
      if (!isCurrent || !isAbsence(error)) return;
      // The server was not reached, or a proxy says so: load again when it responds, with a longer wait each time, because
      // a proxy may forward other paths to the server and fail on this one permanently.
      const wait = Math.min(1000 * (2 ** absences.current - 1), LONGEST_WAIT_MS);
      absences.current += 1;
      const end = onAnswer(() => {
        end();
        const timer = setTimeout(() => setTurn((count) => count + 1), wait);
        stop = () => clearTimeout(timer);
      });
      stop = end;
    });
    return () => {
      isCurrent = false;
      waiting.current.unshift(...waiters);
      stop();
    };
  }, [turn, ...keys]);
  const again = () => new Promise((done) => {
    waiting.current.push(done);
    setTurn((count) => count + 1);
  });
  const look = () => isUnderWay.current || again();
  return { ...state, again, look };
}
