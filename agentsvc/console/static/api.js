// Calls of the server's API. A login has two parts: a cookie, which the browser sends to every port of the host,
// and a token in the storage of this origin, which goes along as a header. Without both the login page comes.

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

export const url = (path) => new URL(path, BASE).href;

const LOGIN_HEADER = "X-Agentsvc-Login";
const STORED_LOGIN = `agentsvc-login ${BASE.pathname}`;

export const storedLogin = () => localStorage.getItem(STORED_LOGIN);

const loginHeader = () => (storedLogin() ? { [LOGIN_HEADER]: storedLogin() } : {});

/** Log in with `{api_key}` or `{token}`. */
export async function logIn(order) {
  const { page_token } = await call("POST", `${V1}/logins`, order);
  localStorage.setItem(STORED_LOGIN, page_token);
}

export async function logOut() {
  await remove(`${V1}/logins/current`);
  localStorage.removeItem(STORED_LOGIN);
}

export function goToLogin() {
  location.assign(url("login"));
}

/** Send a request as who is logged in; throws only where there is no server. */
export const send = (path, { headers, ...options } = {}) =>
  fetch(url(path), { ...options, headers: { ...loginHeader(), ...headers } });

export async function call(method, path, body) {
  const options = { method, headers: { Accept: "application/json" } };
  if (body !== undefined) {
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  let response;
  try {
    response = await send(path, options);
  } catch {
    throw new ApiError(0, "unreachable", "The server does not answer. Check that it runs and that you are online");
  }
  const text = await response.text();
  if (response.ok) return text ? JSON.parse(text) : null;
  if (response.status === 401 && !path.startsWith("sandboxes/") && !isAtLogin()) goToLogin();
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
  return new ApiError(response.status, answer.code ?? "", toMessage(answer) || `The server answered ${response.status}`);
}

function toMessage({ detail, error, message }) {
  if (!Array.isArray(detail)) return detail || error || message;
  return detail.map(({ loc, msg }) => `${(loc ?? []).slice(1).join(".")}: ${msg}`.replace(/^: /, "")).join("\n");
}

export const get = (path, query) => call("GET", query ? `${path}?${params(query)}` : path);
export const post = (path, body = {}) => call("POST", path, body);
export const put = (path, body) => call("PUT", path, body);
export const patch = (path, body) => call("PATCH", path, body);
export const remove = (path) => call("DELETE", path);

/** Return a query; what is empty is left out. */
export function params(values) {
  const kept = Object.entries(values).filter(([, value]) => value !== "" && value != null);
  return new URLSearchParams(kept).toString();
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
