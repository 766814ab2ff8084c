"use strict";

// Shows openapi.json of the same server. All text goes into the page as text, never as markup.

const METHODS = ["get", "put", "post", "delete", "options", "head", "patch"];
const KEY = '"$AGENTSVC_KEY"';
// Without a name and a password, which a browser refuses to take from the address of a page.
const HERE = location.origin + location.pathname;
const byId = (id) => document.getElementById(id);

let api = { paths: {}, components: {} };
let operations = [];

// Elements

function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, String(value));
  }
  element.append(...children.flat().filter((child) => child != null && child !== false));
  return element;
}

function words(text) {
  return text.split(/(`[^`]+`)/).filter(Boolean).map((part) =>
    part.startsWith("`") ? make("code", {}, part.slice(1, -1)) : part);
}

function paragraphs(text) {
  return (text || "").trim().split(/\n\n+/).filter(Boolean).map((part) => make("p", {}, words(part)));
}

function badge(text, isWarning) {
  return make("li", { class: isWarning ? "badge warn" : "badge" }, text);
}

function method(name) {
  return make("span", { class: `method ${name}` }, name.toUpperCase());
}

function code(text, label) {
  const button = make("button", { class: "copy", type: "button" }, "Copy");
  const block = make("pre", { tabindex: "0", "aria-label": label }, text);
  button.addEventListener("click", () => copy(text, button, block));
  return make("div", { class: "code" }, block, button);
}

async function copy(text, button, block) {
  let isDone = false;
  if (navigator.clipboard) {
    isDone = await navigator.clipboard.writeText(text).then(() => true, () => false);
  }
  if (!isDone) getSelection().selectAllChildren(block);
  button.textContent = isDone ? "Copied" : "Selected";
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}

// Schemas

function refName(schema) {
  return schema.$ref ? schema.$ref.split("/").pop() : null;
}

function resolve(value) {
  if (!value || !value.$ref) return value || {};
  const found = value.$ref.slice(2).split("/").reduce((node, step) => (node || {})[step], api) || {};
  const { $ref, ...beside } = value;
  return { ...found, ...beside };
}

function typeOf(schema) {
  const name = refName(schema);
  if (name) return name;
  const options = schema.anyOf || schema.oneOf;
  if (options) return [...new Set(options.map(typeOf))].join(" | ");
  if ("const" in schema) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  if (schema.type === "array") return schema.items ? `list of ${typeOf(schema.items)}` : "list";
  if (schema.type === "object" && typeof schema.additionalProperties === "object") {
    return `map to ${typeOf(schema.additionalProperties)}`;
  }
  const type = [].concat(schema.type || "anything").join(" | ");
  return schema.format ? `${type} (${schema.format})` : type;
}

function limits(schema) {
  const named = [
    ["minimum", "≥"], ["exclusiveMinimum", ">"], ["maximum", "≤"], ["exclusiveMaximum", "<"],
    ["minLength", "length ≥"], ["maxLength", "length ≤"], ["minItems", "items ≥"],
    ["maxItems", "items ≤"], ["maxProperties", "members ≤"], ["pattern", "matches"],
  ];
  const isTelling = (value) => typeof value !== "number" || Number.isSafeInteger(Math.round(value));
  const found = named.filter(([key]) => key in schema && isTelling(schema[key])).map(([key, sign]) => `${sign} ${schema[key]}`);
  const options = (schema.anyOf || []).flatMap(limits);
  if ("default" in schema && schema.default !== null) {
    found.push(`default ${JSON.stringify(schema.default)}`);
  }
  return [...found, ...options];
}

// The objects inside of a schema, with the name each is known by.
function inner(schema) {
  const name = refName(schema);
  const whole = resolve(schema);
  if (whole.properties || whole.enum) return [{ name, schema: whole }];
  const parts = [...(whole.anyOf || []), ...(whole.oneOf || []), whole.items,
    whole.additionalProperties].filter((part) => part && typeof part === "object");
  return parts.flatMap(inner);
}

function about(schema) {
  const texts = [schema.description, ...limits(schema)].filter(Boolean);
  return texts.length ? make("span", { class: "about" }, " ", words(texts.join(" · "))) : null;
}

function field(name, schema, isRequired, seen, isAnswer) {
  const label = [
    make("span", { class: "name" }, name), " ",
    make("span", { class: "type" }, typeOf(schema)),
    isRequired && !isAnswer && make("span", { class: "must" }, "required"),
    !isRequired && isAnswer && make("span", { class: "about" }, " not always there"),
    about(schema),
  ];
  const below = inner(schema).filter((part) => !part.name || !seen.includes(part.name));
  if (!below.length) return make("li", {}, label);
  return make("li", {}, lazy(label, () => below.map((part) => tree(part, seen, isAnswer))));
}

// What is inside is made when it is opened, since schemas may go deep.
function lazy(label, build) {
  const details = make("details", {}, make("summary", {}, make("span", { class: "row" }, label)));
  details.addEventListener("toggle", () => {
    if (details.open && details.childElementCount === 1) details.append(...build());
  });
  return details;
}

function tree(part, seen, isAnswer) {
  const inside = part.name ? [...seen, part.name] : seen;
  const { properties = {}, required = [], description, title } = part.schema;
  const head = description && make("li", { class: "about" }, part.name && make("b", {}, `${title || part.name}: `), words(description.trim().split("\n\n")[0]));
  const values = part.schema.enum && make("li", {}, part.schema.enum.flatMap((value) => [make("code", {}, String(value)), " "]));
  const rows = Object.entries(properties).map(([name, schema]) =>
    field(name, schema, required.includes(name), inside, isAnswer));
  return make("ul", { class: "tree" }, head, values, rows);
}

function schemaView(schema, isAnswer) {
  const parts = inner(schema);
  const line = make("p", {}, make("span", { class: "type" }, typeOf(schema)), about(schema));
  return [line, ...parts.map((part) => tree(part, [], isAnswer))];
}

// One operation

function curl(operation) {
  const examples = (place) => operation.parameters.filter((one) => one.in === place && "example" in one);
  const path = operation.path.replace(/\{(\w+)\}/g, (whole, name) => {
    const found = examples("path").find((one) => one.name === name);
    return found ? encodeURIComponent(found.example) : whole;
  });
  const query = new URLSearchParams(examples("query").flatMap((one) =>
    [].concat(one.example).map((value) => [one.name, String(value)])));
  const base = HERE.replace(/\/docs$/, "");
  const address = base + path + (query.size ? `?${query}` : "");
  const verb = operation.method === "get" ? "" : ` -X ${operation.method.toUpperCase()}`;
  const lines = [`curl${verb} ${quote(address)}`, ...keyOf(operation), ...bodyOf(operation)];
  return lines.join(" \\\n  ");
}

function keyOf(operation) {
  const name = Object.keys(operation.security[0] || {})[0];
  const scheme = name && api.components.securitySchemes[name];
  return scheme ? [`-H ${quote(`${scheme.name}: `)}${KEY}`] : [];
}

function bodyOf(operation) {
  const content = (operation.requestBody || {}).content || {};
  const [media] = Object.keys(content);
  if (!media || !("example" in content[media])) return [];
  const { example } = content[media];
  if (media === "multipart/form-data") {
    return Object.keys(example).map((name) => `-F ${quote(`${name}=@README.md`)}`);
  }
  if (media === "application/x-www-form-urlencoded") {
    return Object.entries(example).map(([name, value]) => `--data-urlencode ${quote(`${name}=${value}`)}`);
  }
  return [`-H ${quote(`Content-Type: ${media}`)}`, `-d ${quote(JSON.stringify(example, null, 2))}`];
}

function quote(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

function address(operation) {
  const parts = operation.path.split(/(\{\w+\})/).filter(Boolean).map((part) =>
    part.startsWith("{") ? make("span", { class: "part" }, part) : part);
  return make("div", { class: "address" }, method(operation.method), make("span", { class: "path" }, parts));
}

function keysText(operation) {
  const names = operation.security.flatMap(Object.keys);
  if (!names.length) return "No key needed";
  const scheme = api.components.securitySchemes[names[0]];
  return scheme.description;
}

function parameterTable(operation) {
  if (!operation.parameters.length) return [];
  const rows = operation.parameters.map((one) => make("tr", {},
    make("td", {}, make("span", { class: "name" }, one.name), one.required && make("span", { class: "must" }, "required"),
      make("div", { class: "about" }, `in ${one.in}`)),
    make("td", {}, make("span", { class: "type" }, typeOf(one.schema)), about({ description: one.description, ...one.schema }),
      inner(one.schema).filter((part) => part.schema.enum).map((part) =>
        make("div", {}, part.schema.enum.flatMap((value) => [make("code", {}, String(value)), " "]))),
      "example" in one && make("div", { class: "about" }, "Example ", make("code", {}, [].concat(one.example).join(", "))))));
  return [make("h2", {}, "Parameters"), make("table", {}, make("tbody", {}, rows))];
}

function requestView(operation) {
  const content = (operation.requestBody || {}).content;
  if (!content) return [];
  const cards = Object.entries(content).slice(0, 1).map(([, { schema, example }]) => make("div", { class: "card" },
    make("div", { class: "head" }, Object.keys(content).map((media) => make("code", {}, media)),
      operation.requestBody.required && make("span", { class: "must" }, "required")),
    make("div", { class: "inside" }, schemaView(schema)),
    example !== undefined && code(JSON.stringify(example, null, 2), "Example of the body")));
  return [make("h2", {}, "Body"), ...cards];
}

function answerView([status, reference], isOpen) {
  const answer = resolve(reference);
  const kind = status < "400" ? "fine" : status < "500" ? "wrong" : "broken";
  const content = Object.entries(answer.content || {});
  const inside = content.flatMap(([media, { schema }]) => [
    make("p", {}, make("code", {}, media)), ...(schema ? schemaView(schema, true) : [])]);
  const [first, ...more] = answer.description.split("\n");
  return make("details", { class: "card", open: isOpen },
    make("summary", {}, make("span", { class: `status ${kind}` }, status), make("span", {}, words(first)),
      more.map((line) => make("span", {}, words(line)))),
    make("div", { class: "inside" }, inside));
}

function operationView(operation) {
  const answers = Object.entries(operation.responses);
  return [
    make("h1", {}, operation.summary),
    address(operation),
    make("ul", { class: "badges" }, operation.deprecated && badge("Deprecated", true),
      operation.tags.map((tag) => badge(tag)), badge(keysText(operation)), badge(operation.operationId)),
    ...paragraphs(operation.description),
    make("h2", {}, "Try it"), code(curl(operation), "Command"),
    ...parameterTable(operation),
    ...requestView(operation),
    make("h2", {}, "Answers"),
    ...answers.map((answer) => answerView(answer, answer[0] < "400")),
  ];
}

function overview() {
  const groups = Map.groupBy ? Map.groupBy(operations, (one) => one.tags[0]) : grouped();
  const about = Object.fromEntries(api.tags.map((tag) => [tag.name, tag.description]));
  const tiles = [...groups].filter(([, members]) => isShown(members[0])).map(([tag, members]) =>
    make("li", {}, make("a", { href: `#${members[0].operationId}` }, make("b", {}, tag),
      make("span", { class: "about" }, about[tag] || `${members.length} operations`))));
  const schemes = Object.values(api.components.securitySchemes).map((scheme) => make("tr", {},
    make("td", {}, make("code", {}, scheme.name ? `${scheme.name}: KEY` : `Authorization: ${scheme.scheme} …`)),
    make("td", { class: "about" }, scheme.description)));
  return [
    make("h1", {}, `${api.info.title} API`), ...paragraphs(api.info.description),
    make("h2", {}, "Keys"), make("table", {}, make("tbody", {}, schemes)),
    make("h2", {}, "Operations"), make("ul", { class: "tiles" }, tiles),
  ];
}

function grouped() {
  const groups = new Map();
  for (const one of operations) groups.set(one.tags[0], [...(groups.get(one.tags[0]) || []), one]);
  return groups;
}

// The list and what is shown of it

function breakable(path) {
  return path.split(/(?<=\/)/).flatMap((part) => [part, make("wbr")]);
}

function isShown(operation) {
  return !operation.deprecated || byId("old").checked;
}

function matches(operation, text) {
  const whole = `${operation.method} ${operation.path} ${operation.summary} ${operation.operationId} ${operation.tags}`;
  return text.toLowerCase().split(/\s+/).every((word) => whole.toLowerCase().includes(word));
}

function list() {
  const text = byId("filter").value.trim();
  const current = location.hash.slice(1);
  const shown = operations.filter((one) => (isShown(one) && matches(one, text)));
  const groups = [...new Set(shown.map((one) => one.tags[0]))].map((tag) => {
    const members = shown.filter((one) => one.tags[0] === tag);
    const isOpen = text !== "" || members.some((one) => one.operationId === current) || shown.length < 30;
    return make("details", { class: "group", open: isOpen },
      make("summary", {}, tag, " ", make("span", { class: "count" }, members.length)),
      members.map((one) => entry(one, current)));
  });
  byId("list").replaceChildren(...groups);
  byId("none").hidden = shown.length > 0;
}

function entry(operation, current) {
  const isCurrent = operation.operationId === current;
  return make("a", { class: operation.deprecated ? "entry is-old" : "entry", href: `#${operation.operationId}`,
    "aria-current": isCurrent ? "page" : false },
  method(operation.method),
  make("span", {}, make("span", { class: "text" }, operation.summary), make("small", {}, breakable(operation.path))));
}

function show() {
  const operation = operations.find((one) => one.operationId === location.hash.slice(1));
  if (operation && operation.deprecated) byId("old").checked = true;
  byId("main").replaceChildren(...(operation ? operationView(operation) : overview()));
  document.title = operation ? `${operation.summary} · ${api.info.title}` : `${api.info.title} API`;
  closeMenu();
  list();
  scrollTo(0, 0);
  const current = byId("list").querySelector("[aria-current]");
  if (current) current.scrollIntoView({ block: "nearest" });
}

function closeMenu() {
  byId("side").classList.remove("is-open");
  byId("menu").setAttribute("aria-expanded", "false");
}

// Light and dark

function kept(name, value) {
  try {
    if (value !== undefined) localStorage.setItem(name, value);
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
}

setTheme(kept("theme") || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));

// The start

function read(description) {
  api = description;
  operations = Object.entries(api.paths).flatMap(([path, item]) =>
    METHODS.filter((name) => item[name]).map((name) => ({ parameters: [], security: [], ...item[name], path, method: name })));
}

function listen() {
  byId("filter").addEventListener("input", list);
  byId("old").addEventListener("change", () => { list(); if (!location.hash.slice(1)) show(); });
  addEventListener("hashchange", show);
  byId("theme").addEventListener("click", () => {
    const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    kept("theme", next);
    setTheme(next);
  });
  byId("menu").addEventListener("click", () => {
    const isOpen = byId("side").classList.toggle("is-open");
    byId("menu").setAttribute("aria-expanded", String(isOpen));
  });
  addEventListener("keydown", (event) => {
    if (event.key === "/" && !/^(INPUT|TEXTAREA)$/.test(document.activeElement.tagName)) {
      event.preventDefault();
      byId("filter").focus();
    }
  });
}

// What the console keeps of its login, which is only good together with the browser's cookie.
function loginHeader() {
  const page = kept(`agentsvc-login ${new URL("./", HERE).pathname}`);
  return page ? { "X-Agentsvc-Login": page } : {};
}

async function begin() {
  const answer = await fetch(new URL("openapi.json", HERE), { headers: loginHeader() });
  if (!answer.ok) throw new Error(`openapi.json was answered with ${answer.status}`);
  read(await answer.json());
  byId("title").textContent = api.info.title;
  byId("version").textContent = api.info.version;
  listen();
  show();
}

begin().catch((failure) => byId("main").replaceChildren(make("p", { class: "must" }, `The description cannot be shown: ${failure.message}`)));
