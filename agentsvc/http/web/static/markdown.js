// Markdown as elements. The library only parses it and produces no markup: only the elements named here are created, so
// there is nothing to sanitise, and links lead to http, https and mailto only.
import { Code } from "./code.js";
import { Formula, readFormulas } from "./formula.js";
import { h } from "./vendor/preact.js";
import { useMemo } from "./vendor/hooks.js";
import MarkdownIt from "./vendor/markdown-it.js";
import { t } from "./words.js";

const SAFE_LINK = /^(?:https?:\/\/|mailto:)/i;
const TASK = /^\[([ xX])\]\s+/;
/** Limits on characters and elements; the text beyond them is shown without formatting. */
const MAX_CHARS = 50_000;
const MAX_ELEMENTS = 6000;
/** The number of elements that a formula counts as. */
const FORMULA_COST = 20;
const TAGS = new Set("blockquote br del em hr li ol p strong table tbody td th thead tr ul".split(" "));

const parser = new MarkdownIt({ html: false, linkify: true }).enable("strikethrough");
parser.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
readFormulas(parser);
parser.validateLink = (address) => SAFE_LINK.test(address);

/** Markdown, rendered as elements. */
export function Markdown({ text }) {
  return useMemo(() => h("div", { class: "markdown" }, elements(text ?? "")), [text]);
}

function elements(text) {
  const parts = nest(parser.parse(text.slice(0, MAX_CHARS), {}), { left: MAX_ELEMENTS });
  return text.length > MAX_CHARS ? [...parts, h("p", { class: "pre" }, text.slice(MAX_CHARS))] : parts;
}

/** Return the elements for a flat list of tokens, in which an element has an opening and a closing token. */
function nest(tokens, budget) {
  const root = { children: [] };
  const open = [root];
  for (const token of tokens) {
    const inside = open.at(-1);
    if (token.nesting === 1) open.push({ token, children: [] });
    else if (token.nesting === -1) {
      const { token: begun, children } = open.pop();
      open.at(-1).children.push(...element(begun, children, budget));
    } else inside.children.push(...leaf(token, budget));
  }
  return root.children;
}

function element(token, children, budget) {
  // The parser hides the paragraphs of a tight list: render only their content.
  if (token.hidden || (budget.left -= 1) < 0) return children;
  const { tag } = token;
  if (tag === "a") return [link(token.attrGet("href"), children)];
  if (/^h[1-6]$/.test(tag)) return [h(`h${Math.min(Number(tag[1]) + 2, 6)}`, null, children)];
  if (tag === "s") return [h("del", null, children)];
  if (tag === "ol" && token.attrGet("start") !== null) return [h("ol", { start: token.attrGet("start") }, children)];
  if (tag === "table") return [h("div", { class: "wide", tabindex: "0" }, h("table", null, children))];
  if (tag === "li") return [h("li", null, item(children))];
  const align = /text-align:(\w+)/.exec(token.attrGet("style") ?? "");
  return TAGS.has(tag) ? [h(tag, align && { class: `to-${align[1]}` }, children)] : children;
}

/** Return the content of a list item; the `[ ]` or `[x]` of a task becomes a box. */
function item(children) {
  const [first, ...rest] = children;
  const task = typeof first === "string" ? TASK.exec(first) : null;
  return task ? [task[1] === " " ? "☐ " : "☑ ", first.slice(task[0].length), ...rest] : children;
}

function leaf(token, budget) {
  switch (token.type) {
    case "inline":
      return nest(token.children, budget);
    case "softbreak":
      return ["\n"];
    case "hardbreak":
    case "hr":
      return [h(token.tag)];
    case "code_inline":
      return (budget.left -= 1) < 0 ? [token.content] : [h("code", null, token.content)];
    case "fence":
    case "code_block":
      return (budget.left -= 1) < 0
        ? [token.content]
        : [h(Code, { text: token.content.replace(/\n$/, ""), language: token.info.trim().split(/\s/)[0] })];
    case "formula":
      return (budget.left -= FORMULA_COST) < 0 ? [token.content] : [h(Formula, { text: token.content, isBlock: token.block })];
    case "image":
      return [link(token.attrGet("src"), [token.content || t("image")])];
    default:
      return token.content ? [token.content] : [];
  }
}

const link = (href, children) => h("a", { href, target: "_blank", rel: "noopener noreferrer nofollow" }, children);
