// Client of the server's API. A login has two parts: a cookie, which the browser sends to every port of the host, and a
// page token in this origin's localStorage, which is sent as a header. Without both, the login page is shown.
import { t } from "./words.js";

/** The base URL of the server, including any path prefix that a proxy adds. */
export const BASE = new URL("../../", import.meta.url);

/** An error response, with its text as the message; status 0 if the server was not reached. */
export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** Whether an error proves that the request was not executed. A 5xx does not: behind a proxy, the server may go on. */
export const isRefusal = ({ status, code }) => status >= 400 && status < 500 && code !== "request_in_progress";

/** Whether the server was not reached: no response, or a 502 or 503 of a proxy, which has no error code of the server. */
export const isAbsence = ({ status, code }) => status === 0 || ([502, 503].includes(status) && !code);

const LOOK_MS = 2000;
/** Callbacks that wait for a response of the server, with the time of their registration. */
const waiting = new Map();

/** Call the callbacks that were registered before the answered request was sent: responses to earlier requests prove nothing. */
function heardServer(askedAt) {
  for (const [tell, since] of waiting) {
    if (since > askedAt) continue;
    waiting.delete(tell);
    tell();
  }
}

/** Call a function once when the server responds again; poll `alive` until then. Return a function that cancels this. */
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

/** The page token of this page, read once: another user may log in meanwhile in another tab. */
let login = localStorage.getItem(STORED_LOGIN);

export const storedLogin = () => login;

const loginHeader = () => (login ? { [LOGIN_HEADER]: login } : {});

/** Log in with `{api_key}` or `{token}`, or with the body that another login path expects; store the page token. */
export async function logIn(order, path = `${V1}/logins`) {
  login = (await call("POST", path, order)).page_token;
  localStorage.setItem(STORED_LOGIN, login);
}

export async function logOut() {
  // Streams end with the login, and may open the login page before this request returns.
  isEnding = true;
  const isStored = isStoredMine();
  const forgotten = isStored ? forgetKept() : [];
  try {
    await remove(`${V1}/logins/current`);
  } catch (error) {
    // A 401 means that the login has ended already.
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

/** Values for which localStorage has no room; they are lost with the page. */
const unkept = new Map();

/** Delete all kept values; return the entries that were in localStorage. */
function forgetKept() {
  unkept.clear();
  const all = Object.entries(localStorage).filter(([key]) => key.startsWith(KEPT));
  for (const [key] of all) localStorage.removeItem(key);
  return all;
}

/** Delete the values kept for another user whose login ended without a log-out, and record the user. */
export function keepFor(user) {
  if (![null, user].includes(kept("user"))) forgetKept();
  keep("user", user);
}

/** Whether the stored page token is still that of this page: in another tab, another user may have logged in. */
const isStoredMine = () => login === localStorage.getItem(STORED_LOGIN);

/** Store a JSON value in this browser under a name, until the log-out; null deletes it. */
export function keep(name, value) {
  if (!isStoredMine()) return;
  unkept.delete(name);
  try {
    // null is deleted below instead of stored; other tabs get a storage event for it.
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

/** Call a function with the name and old JSON of values that another tab stores or deletes. Return a function that ends this. */
export function onKept(tell) {
  const heed = ({ key, oldValue }) => key?.startsWith(KEPT) && isStoredMine() && tell(key.slice(KEPT.length), oldValue);
  addEventListener("storage", heed);
  return () => removeEventListener("storage", heed);
}

/** Return a random id of 32 hexadecimal digits; browsers have `crypto.randomUUID` in secure contexts only. */
export const newId = () => [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

let isLeaving = false;
let isEnding = false;
const PLACE = `agentsvc-place ${BASE.pathname}`;

/** Navigate to the login page, once: several requests and streams may report the end of a login at the same time. */
export function goToLogin() {
  if (isLeaving) return;
  isLeaving = true;
  // After a log-out in another tab, it is unknown which user the route belongs to.
  sessionStorage.setItem(PLACE, isEnding || (login && !kept("user")) ? "" : location.hash);
  location.assign(url("login"));
}

/** Navigate from the login page back to the route at which this tab found no login. */
export function goBack() {
  const place = sessionStorage.getItem(PLACE) ?? "";
  sessionStorage.removeItem(PLACE);
  location.replace(BASE.href + place);
}

/** Await a network operation; throw an ApiError with status 0 if it fails. */
const reached = (work) => work.catch(() => {
  throw new ApiError(0, "unreachable", t("The server does not answer. Check that it runs and that you are online"));
});

/** Send a request with the page token; throws only if the server cannot be reached. */
export const send = (path, { headers, ...options } = {}) =>
  reached(fetch(url(path), { ...options, headers: { ...loginHeader(), ...headers } }));

/** Paths on which a 401 may concern a key or token in the request (of a sandbox, of a git provider) and not the login. */
const TELLS_OF_OTHERS = /^sandboxes\/|\/(?:git-providers|github-app)$/;

/** Call an operation and return its JSON. With a `key` (Idempotency-Key), it is executed once even if the call is repeated. */
export async function call(method, path, body, key) {
  const options = { method, headers: { Accept: "application/json" } };
  if (key) options.headers["Idempotency-Key"] = key;
  if (body !== undefined) {
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  const at = performance.now();
  const response = await send(path, options);
  // The connection may break before the end of the body.
  const text = await reached(response.text());
  // A proxy sends these statuses if it cannot reach the server.
  if (![502, 503, 504].includes(response.status)) heardServer(at);
  if (response.ok) return text ? JSON.parse(text) : null;
  if (response.status === 401 && !TELLS_OF_OTHERS.test(path) && !isAtLogin()) goToLogin();
  throw toError(response, text);
}

export const isAtLogin = () => location.href.split(/[?#]/)[0] === url("login");

/** Download a path as a file; a plain link would not send the page token. */
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
    // A proxy may respond with a page of its own.
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

/** Return a query string without the empty values. */
export function params(values) {
  const kept = Object.entries(values).filter(([, value]) => value !== "" && value != null);
  return new URLSearchParams(kept).toString();
}

/** Return the current settings, or null if none have been saved yet. */
export async function findSettings() {
  try {
    return await get(`${V1}/settings`);
  } catch (error) {
    if (error.status === 404) return null;
    throw error;
  }
}

/** Return the items of a paginated search, from at most `pages` pages. */
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

/** Return the path of a conversation on its agent server, through the gateway. */
export function agentPath(conversation) {
  const id = conversation.id.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
  return `sandboxes/${encodeURIComponent(conversation.sandbox_id)}/agent/api/conversations/${id}`;
}

/** Return a text as the `content` of a start or a message. */
export const textContent = (text) => [{ type: "text", text }];
