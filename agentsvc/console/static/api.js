// Calls of the server's API. The cookie of the login goes along; without one the login page comes.

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

export function goToLogin() {
  location.assign(url("login"));
}

export async function call(method, path, body) {
  const options = { method, headers: { Accept: "application/json" } };
  if (body !== undefined) {
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  let response;
  try {
    response = await fetch(url(path), options);
  } catch {
    throw new ApiError(0, "unreachable", "The server does not answer. Check that it runs and that you are online");
  }
  const text = await response.text();
  if (response.ok) return text ? JSON.parse(text) : null;
  if (response.status === 401 && !path.startsWith("sandboxes/")) goToLogin();
  throw toError(response, text);
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
