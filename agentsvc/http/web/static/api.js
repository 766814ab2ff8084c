// Calls of the server's API. A login has two parts: a cookie, which the browser sends to every port of the host,
// and a token in the storage of this origin, which goes along as a header. Without both the login page comes.
import { t } from "./words.js";

/** Where the server is, whatever path a proxy has put before it. */
export const BASE = new URL("../../", import.meta.url);

/** What the server refused, with its own words as the message. */
export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** Whether what was asked for is sure not to be done: a proxy may give up what the server goes on with. */
export const isRefusal = ({ status, code }) => status >= 400 && status < 500 && code !== "request_in_progress";

/** Whether there was no server to answer, which a proxy may say for it; it does not know the server's codes. */
export const isAbsence = ({ status, code }) => status === 0 || ([502, 503].includes(status) && !code);

const LOOK_MS = 2000;
/** What is told of an answer, with the time since when it waits. */
const waiting = new Map();

/** An answer to what was asked at some time is one to whoever waited before that: what was under way says nothing. */
function heardServer(askedAt) {
  for (const [tell, since] of waiting) {
    if (since > askedAt) continue;
    waiting.delete(tell);
    tell();
  }
}

/** Call a function once, when the server answers; ask it now and then until it does. Return what ends that. */
export function onAnswer(tell) {
  waiting.set(tell, performance.now());
  const look = () => {
    const at = performance.now();
    return waiting.has(tell) && fetch(url("alive")).then(({ ok }) => ok && heardServer(at), () => {});
  };
  const timer = setInterval(look, LOOK_MS);
  return () => {
    clearInterval(timer);
    waiting.delete(tell);
  };
}

export const url = (path) => new URL(path, BASE).href;

const LOGIN_HEADER = "X-Agentsvc-Login";
const STORED_LOGIN = `agentsvc-login ${BASE.pathname}`;

/** The login of this page, as long as it is open: in another tab, somebody else may log in meanwhile. */
let login = localStorage.getItem(STORED_LOGIN);

export const storedLogin = () => login;

const loginHeader = () => (login ? { [LOGIN_HEADER]: login } : {});

/** Log in with `{api_key}` or `{token}`, or with what another path of the API wants. */
export async function logIn(order, path = `${V1}/logins`) {
  login = (await call("POST", path, order)).page_token;
  localStorage.setItem(STORED_LOGIN, login);
}

export async function logOut() {
  // Streams end with the login, and may bring the login page before the answer comes.
  isEnding = true;
  const isStored = isStoredMine();
  const forgotten = isStored ? forgetKept() : [];
  try {
    await remove(`${V1}/logins/current`);
  } catch (error) {
    // A login that has ended by itself is one that has ended.
    if (error.status !== 401) {
      isEnding = false;
      for (const [key, text] of forgotten) localStorage.setItem(key, text);
      throw error;
    }
  }
  if (isStored) localStorage.removeItem(STORED_LOGIN);
  login = null;
}

const KEPT = `agentsvc-kept ${BASE.pathname} `;

/** What the browser has no room for is kept as long as the page. */
const unkept = new Map();

/** Forget all that is kept, and return it. */
function forgetKept() {
  unkept.clear();
  const all = Object.entries(localStorage).filter(([key]) => key.startsWith(KEPT));
  for (const [key] of all) localStorage.removeItem(key);
  return all;
}

/** Forget what was kept for another user, whose login has ended without a log-out. */
export function keepFor(user) {
  if (![null, user].includes(kept("user"))) forgetKept();
  keep("user", user);
}

/** What is stored is of who is logged in now, which another tab may have changed. */
const isStoredMine = () => login === localStorage.getItem(STORED_LOGIN);

/** Keep a value in this browser until the log-out, under a name; null removes it. */
export function keep(name, value) {
  if (!isStoredMine()) return;
  unkept.delete(name);
  try {
    // Other tabs are told of what is removed.
    if (value !== null) return localStorage.setItem(KEPT + name, JSON.stringify(value));
  } catch {
    unkept.set(name, value);
  }
  localStorage.removeItem(KEPT + name);
}

export function kept(name) {
  if (unkept.has(name)) return unkept.get(name);
  if (!isStoredMine()) return null;
  try {
    return JSON.parse(localStorage.getItem(KEPT + name));
  } catch {
    return null;
  }
}

/** Call a function with the name of each value that another tab keeps or removes, and the JSON of before; return what ends that. */
export function onKept(tell) {
  const heed = ({ key, oldValue }) => key?.startsWith(KEPT) && isStoredMine() && tell(key.slice(KEPT.length), oldValue);
  addEventListener("storage", heed);
  return () => removeEventListener("storage", heed);
}

/** Return a new id. Browsers make UUIDs on secure origins only. */
export const newId = () => [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

let isLeaving = false;
let isEnding = false;
const PLACE = `agentsvc-place ${BASE.pathname}`;

/** Go to the page to log in, once: the end of a login is told in several ways at the same time. */
export function goToLogin() {
  if (isLeaving) return;
  isLeaving = true;
  // Another tab that logs out forgets whose the place is.
  sessionStorage.setItem(PLACE, isEnding || (login && !kept("user")) ? "" : location.hash);
  location.assign(url("login"));
}

/** Go from the page to log in to where a login was missing in this tab. */
export function goBack() {
  const place = sessionStorage.getItem(PLACE) ?? "";
  sessionStorage.removeItem(PLACE);
  location.replace(BASE.href + place);
}

/** Return what work of the network brings; where it brings nothing, there is no server. */
const reached = (work) => work.catch(() => {
  throw new ApiError(0, "unreachable", t("The server does not answer. Check that it runs and that you are online"));
});

/** Send a request as who is logged in; throws only where there is no server. */
export const send = (path, { headers, ...options } = {}) =>
  reached(fetch(url(path), { ...options, headers: { ...loginHeader(), ...headers } }));

/** Where a 401 may be about a key or a token that was sent along, and not about the login. */
const TELLS_OF_OTHERS = /^sandboxes\/|\/(?:git-providers|github-app)$/;

/** Call an operation; with a `key` it is done once, however often it is called. */
export async function call(method, path, body, key) {
  const options = { method, headers: { Accept: "application/json" } };
  if (key) options.headers["Idempotency-Key"] = key;
  if (body !== undefined) {
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  const at = performance.now();
  const response = await send(path, options);
  // It may end before its answer does.
  const text = await reached(response.text());
  // A proxy that does not reach the server answers for it.
  if (![502, 503, 504].includes(response.status)) heardServer(at);
  if (response.ok) return text ? JSON.parse(text) : null;
  if (response.status === 401 && !TELLS_OF_OTHERS.test(path) && !isAtLogin()) goToLogin();
  throw toError(response, text);
}

export const isAtLogin = () => location.href.split(/[?#]/)[0] === url("login");

/** Have the browser save what is at a path: a link to it would not say who is logged in. */
export async function download(path) {
  const response = await send(path);
  if (!response.ok) throw toError(response, await response.text());
  const [, name] = /filename="?([^";]+)/.exec(response.headers.get("Content-Disposition") ?? "") ?? [];
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await response.blob());
  link.download = name ?? "";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

function toError(response, text) {
  let answer = {};
  try {
    answer = JSON.parse(text) ?? {};
  } catch {
    // A proxy in between may answer with a page of its own.
  }
  return new ApiError(response.status, answer.code ?? "", toMessage(answer) || t("The server answered {0}", response.status));
}

function toMessage({ detail, error, message }) {
  if (!Array.isArray(detail)) return detail || error || message;
  return detail.map(({ loc, msg }) => `${(loc ?? []).slice(1).join(".")}: ${msg}`.replace(/^: /, "")).join("\n");
}

export const get = (path, query) => call("GET", query ? `${path}?${params(query)}` : path);
export const post = (path, body = {}, key = null) => call("POST", path, body, key);
export const put = (path, body) => call("PUT", path, body);
export const patch = (path, body) => call("PATCH", path, body);
export const remove = (path) => call("DELETE", path);

/** Return a query; what is empty is left out. */
export function params(values) {
  const kept = Object.entries(values).filter(([, value]) => value !== "" && value != null);
  return new URLSearchParams(kept).toString();
}

/** Return the settings as they are now, or null before the first save. */
export async function findSettings() {
  try {
    return await get(`${V1}/settings`);
  } catch (error) {
    if (error.status === 404) return null;
    throw error;
  }
}

/** Return the items of all pages of a search, up to a number of pages. */
export async function getAll(path, query = {}, pages = 10) {
  const items = [];
  let page_id = null;
  do {
    const page = await get(path, { ...query, page_id });
    items.push(...page.items);
    page_id = page.next_page_id;
    pages -= 1;
  } while (page_id && pages > 0);
  return items;
}

export const V1 = "api/v1";
export const conversationPath = (id) => `${V1}/app-conversations/${id}`;

/** Return where a conversation is at its agent server, by way of the gateway. */
export function agentPath(conversation) {
  const id = conversation.id.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
  return `sandboxes/${encodeURIComponent(conversation.sandbox_id)}/agent/api/conversations/${id}`;
}

/** Return what a start or a message takes: a text as content. */
export const textContent = (text) => [{ type: "text", text }];
