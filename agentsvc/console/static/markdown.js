// Markdown as elements. No markup in the text is ever taken for HTML, so there is nothing to sanitise: what is
// shown is made of the elements below only, and links lead to http, https and mailto only.
import { inline } from "./inline.js";
import { useMemo } from "./vendor/hooks.js";
import { h } from "./vendor/preact.js";

// None of these may take longer than the length of a line: no two parts of one may match the same characters.
const FENCE = /^(\s*)(`{3,}|~{3,})\s*([^`\s]*)/;
const HEADING = /^(#{1,6})\s+(.*)$/s;
const RULE = /^\s*(?:(?:-\s*){3,}|(?:\*\s*){3,}|(?:_\s*){3,})$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/s;
const ROW = /^\s*\|(.+)\|\s*$/s;
const DIVIDER = /^\s*\|(?:\s*:?-+:?\s*\|)+\s*$/;
const TASK = /^\[([ xX])\]\s+/;
const MOST_DEPTH = 8;

/** Return the elements that show a text. */
export function Markdown({ text }) {
  return useMemo(() => h("div", { class: "markdown" }, blocks((text ?? "").replace(/\r\n?/g, "\n").split("\n"), 0)), [text]);
}

function blocks(lines, depth) {
  const found = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    if (!line.trim()) {
      at += 1;
      continue;
    }
    const [element, next] = (depth < MOST_DEPTH && block(lines, at, depth)) || paragraph(lines, at);
    found.push(element);
    at = next;
  }
  return found;
}

function block(lines, at, depth) {
  const line = lines[at];
  const heading = HEADING.exec(line);
  if (heading) return [h(`h${Math.min(heading[1].length + 2, 6)}`, null, inline(headingText(heading[2]))), at + 1];
  if (FENCE.test(line)) return fenced(lines, at);
  if (RULE.test(line)) return [h("hr"), at + 1];
  if (/^\s*>/.test(line)) return quote(lines, at, depth);
  if (ITEM.test(line)) return list(lines, at, depth);
  if (ROW.test(line) && DIVIDER.test(lines[at + 1] ?? "")) return table(lines, at);
  return null;
}

/** Return the text of a heading without the signs that may close it. */
function headingText(text) {
  let end = text.trimEnd().length;
  while (text[end - 1] === "#") end -= 1;
  return text.slice(0, end).trimEnd();
}

function starts(lines, at) {
  const line = lines[at];
  return HEADING.test(line) || FENCE.test(line) || /^\s*>/.test(line) || ITEM.test(line) || RULE.test(line) || DIVIDER.test(lines[at + 1] ?? "");
}

function paragraph(lines, at) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !starts(lines, end)) end += 1;
  return [h("p", null, inline(lines.slice(at, end).join("\n"))), end];
}

function fenced(lines, at) {
  const [, indent, fence, language] = FENCE.exec(lines[at]);
  let end = at + 1;
  while (end < lines.length && !lines[end].trim().startsWith(fence)) end += 1;
  const code = lines.slice(at + 1, end).map((line) => (line.startsWith(indent) ? line.slice(indent.length) : line));
  return [h("pre", { "data-language": language || null, tabindex: "0" }, h("code", null, code.join("\n"))), end + 1];
}

function quote(lines, at, depth) {
  let end = at;
  while (end < lines.length && /^\s*>/.test(lines[end])) end += 1;
  const inner = lines.slice(at, end).map((line) => line.replace(/^\s*> ?/, ""));
  return [h("blockquote", null, blocks(inner, depth + 1)), end];
}

function list(lines, at, depth) {
  const [, indent, mark] = ITEM.exec(lines[at]);
  const isOrdered = /\d/.test(mark);
  const items = [];
  let end = at;
  while (end < lines.length) {
    const item = ITEM.exec(lines[end]);
    if (!item || item[1].length > indent.length + 1 || item[1].length < indent.length || /\d/.test(item[2]) !== isOrdered) break;
    const body = [item[3]];
    end += 1;
    while (end < lines.length && belongs(lines, end, indent.length)) {
      body.push(lines[end].slice(Math.min(indent.length + 2, lines[end].search(/\S|$/))));
      end += 1;
    }
    items.push(h("li", null, itemBody(body, depth)));
  }
  const start = isOrdered && parseInt(mark, 10) !== 1 ? parseInt(mark, 10) : null;
  return [h(isOrdered ? "ol" : "ul", { start }, items), end];
}

function belongs(lines, at, indent) {
  const depth = lines[at].search(/\S/);
  if (depth < 0) return (lines[at + 1] ?? "").search(/\S/) > indent;
  return depth > indent || !(starts(lines, at) || !lines[at - 1].trim());
}

function itemBody(body, depth) {
  const task = TASK.exec(body[0]);
  const rest = task ? [body[0].slice(task[0].length), ...body.slice(1)] : body;
  const elements = blocks(rest, depth + 1);
  // A short item is its text only, without a paragraph around it.
  const inner = elements[0]?.type === "p" ? [...elements[0].props.children, ...elements.slice(1)] : elements;
  return task ? [task[1] === " " ? "☐ " : "☑ ", ...inner] : inner;
}

function table(lines, at) {
  const cells = (line) => ROW.exec(line)[1].split("|").map((cell) => inline(cell.trim()));
  let end = at + 2;
  while (end < lines.length && ROW.test(lines[end])) end += 1;
  const head = h("tr", null, cells(lines[at]).map((cell) => h("th", null, cell)));
  const body = lines.slice(at + 2, end).map((line) => h("tr", null, cells(line).map((cell) => h("td", null, cell))));
  const element = h("div", { class: "wide", tabindex: "0" }, h("table", null, h("thead", null, head), h("tbody", null, body)));
  return [element, end];
}
