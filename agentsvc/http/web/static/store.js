// What the page knows of the user's conversations, starts and sandboxes, kept fresh by one stream.
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
  /** What was told while the lists are asked for, which may be older. */
  meanwhile = [];
  loads = 0;
  /** How often something was told. */
  version = 0;

  begin() {
    if (this.isBegun) return;
    this.isBegun = true;
    // How long ago something was changes by itself.
    setInterval(() => this.tell(), MINUTE_MS);
    followChanges(
      (type, data) => this.take(type, data),
      (isConnected) => {
        this.isConnected = isConnected;
        this.tell();
      },
    );
  }

  /** Changes are told from `ready` on; what was before is listed then, also after a lost connection. */
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
      // Whatever came meanwhile is missing until this has worked out.
      setTimeout(() => this.load(), 2000);
    }
    this.loads -= 1;
    if (!this.loads) this.meanwhile = [];
    this.tell();
  }

  tell() {
    if (this.isTelling) return;
    this.isTelling = true;
    // Not by frames: a page in the background has none.
    setTimeout(() => {
      this.isTelling = false;
      this.version += 1;
      for (const listener of this.listeners) listener();
    }, 16);
  }
}

const byId = (items) => new Map(items.map((item) => [item.id, item]));

export const store = new Store();

/** Have a view drawn anew whenever the store changes. */
export function useStore() {
  const [, redraw] = useState(store.version);
  useEffect(() => {
    const listener = () => redraw(store.version);
    store.listeners.add(listener);
    // It may have been told since this was drawn.
    listener();
    return () => store.listeners.delete(listener);
  }, []);
  return store;
}

/**
 * Return what is listed, with a way to change it that shows what goes wrong and lists it anew; `done` is called when
 * that has come. With `refuse`, that gets what goes wrong, on pages so long that it would not be seen at the top.
 */
export function useList(load, refuse) {
  const list = useLoaded(load);
  const [error, setError] = useState(null);
  // What could not be listed anew is shown as it was.
  const value = useRef();
  value.current = list.value ?? value.current;
  const fail = refuse ?? setError;
  const act = (work, done) => async () => {
    fail(null);
    try {
      await work();
      // What is shown otherwise is as it was before: what was typed stays.
      if (await list.again()) done?.();
    } catch (problem) {
      fail(problem);
    }
  };
  return { ...list, value: value.current, act, error: error ?? list.error };
}

/**
 * Return the values of a form, what a field of it is given, and a way to forget what was changed in it. What was not
 * changed is as it is stored, also when that changes, and what was changed since is not forgotten.
 */
export function useForm(stored) {
  const [changes, setChanges] = useState({});
  const form = { ...stored, ...changes };
  const field = (name) => ({ value: form[name], onValue: (value) => setChanges((old) => ({ ...old, [name]: value })) });
  const clear = () => setChanges((now) => changesOf(now, changes));
  return [form, field, clear];
}

/** Return which of some values are others than they were before. */
export const changesOf = (values, before) =>
  Object.fromEntries(Object.entries(values).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(before[name])));

/**
 * Return a value that some work brings, with what went wrong, and two ways to do it again: `again` tells whether it came,
 * and `look`, for what looks now and then, leaves what is under way alone.
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
      // That there is no server, or a proxy says so for it, is said until there is one: then it is asked again, later
      // each time, since a proxy may lead to the server otherwise and say so of this for good.
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
