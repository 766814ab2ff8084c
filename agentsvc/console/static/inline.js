// What stands in a line of Markdown as elements: code, links, emphasis. Takes time that grows with the length of the
// text only, whatever is in it: each mark is looked for from left to right once.
import { h } from "./vendor/preact.js";

const SAFE_LINK = /^(?:https?:\/\/|mailto:)/i;
const ESCAPED = "\\`*_{}[]()#+-.!~|>";
const MOST_DEPTH = 8;
/** What comes after so many marks of one text is shown as it is written: each is an element of the page. */
const MOST_MARKS = 4000;
const MOST_SPACES = 8;

const BRACKET = /\]/g;
const PARENTHESIS = /\)/g;
const SPACE = /\s/g;
const QUOTE = /"/g;
const LINE = /\n/g;
const ADDRESS_END = /[\s<>()]/g;

/** What begins with a mark and a character that may follow it, and where it may end; tried in this order. */
const PAIRS = [
  { tag: "strong", mark: "**", following: /\S/, end: /\*\*/g },
  { tag: "em", mark: "*", following: /[^\s*]/, end: /(?<!\s)\*/g },
  { tag: "strong", mark: "__", following: /\S/, end: /__(?!\w)/g, isOfWords: true },
  { tag: "em", mark: "_", following: /[^\s_]/, end: /(?<!\s)_(?!\w)/g, isOfWords: true },
  { tag: "del", mark: "~~", following: /[^]/, end: /~~/g },
];

/** Return what a text is made of: texts and elements. */
export const inline = (text) => parse(text, 0, { left: MOST_MARKS });

function parse(text, depth, budget) {
  if (depth > MOST_DEPTH) return [text];
  const scanner = new Scanner(text, depth, budget);
  const marks = /!?\[|[`\\*_~\n]|https?:\/\//g;
  const found = [];
  let done = 0;
  let mark;
  while (budget.left > 0 && (mark = marks.exec(text))) {
    const made = scanner.read(mark[0], mark.index);
    if (!made) continue;
    budget.left -= 1;
    const [element, end, begin = mark.index] = made;
    if (begin > done) found.push(text.slice(done, begin));
    found.push(element);
    done = marks.lastIndex = end;
  }
  if (done < text.length) found.push(text.slice(done));
  return found;
}

/** Reads what begins at a mark: an element, where it ends, and where it begins unless that is at the mark. */
class Scanner {
  constructor(text, depth, budget) {
    this.text = text;
    this.depth = depth;
    this.budget = budget;
    this.seen = new Map();
  }

  /** Return where the next match from a place on begins; Infinity if there is none. Places must only grow. */
  next(pattern, from) {
    let at = this.seen.get(pattern) ?? -1;
    if (at < from) {
      pattern.lastIndex = from;
      at = pattern.exec(this.text)?.index ?? Infinity;
      this.seen.set(pattern, at);
    }
    return at;
  }

  read(mark, at) {
    switch (mark[0]) {
      case "`":
        return this.code(at);
      case "!":
      case "[":
        return this.link(at + mark.length, at);
      case "h":
        return this.address(at);
      case "\\":
        return this.escaped(at);
      case "\n":
        return this.lineBreak(at);
      default:
        return this.pair(at);
    }
  }

  /** As many backticks end a piece of code as begin it. */
  code(at) {
    this.runs ??= runsOf(this.text);
    const { length, end } = this.runs.get(at) ?? {};
    if (!end) return null;
    const inner = this.text.slice(at + length, end);
    const isPadded = inner.length > 2 && inner.startsWith(" ") && inner.endsWith(" ");
    return [h("code", null, isPadded ? inner.slice(1, -1) : inner), end + length];
  }

  link(begin, at) {
    const { text } = this;
    const close = this.next(BRACKET, begin);
    if (text[close + 1] !== "(" || this.next(LINE, begin) < close) return null;
    const start = close + 2;
    let end = Math.min(this.next(PARENTHESIS, start), this.next(SPACE, start));
    if (end === Infinity || end === start) return null;
    const target = text.slice(start, end);
    for (let spaces = 0; spaces < MOST_SPACES && /\s/.test(text[end] ?? ""); spaces += 1) end += 1;
    if (end > start + target.length) {
      // A title, which is not shown.
      if (text[end] !== '"') return null;
      end = this.next(QUOTE, end + 1) + 1;
    }
    if (text[end] !== ")") return null;
    const source = text.slice(at, end + 1);
    const label = text.slice(begin, close);
    return [SAFE_LINK.test(target) ? anchor(target, label ? parse(label, this.depth + 1, this.budget) : [target]) : source, end + 1];
  }

  pair(at) {
    const { text } = this;
    for (const { tag, mark, following, end, isOfWords } of PAIRS) {
      const begin = at + mark.length;
      if (!text.startsWith(mark, at) || !following.test(text[begin] ?? " ")) continue;
      if (isOfWords && /\w/.test(text[at - 1] ?? "")) continue;
      const close = this.next(end, begin + 1);
      if (close === Infinity) continue;
      return [h(tag, null, parse(text.slice(begin, close), this.depth + 1, this.budget)), close + mark.length];
    }
    return null;
  }

  escaped(at) {
    const next = this.text[at + 1] ?? " ";
    if (next === "\n") return [h("br"), at + 2];
    return ESCAPED.includes(next) ? [next, at + 2] : null;
  }

  address(at) {
    let end = this.next(ADDRESS_END, at);
    if (end === Infinity) end = this.text.length;
    while (".,;:!?'\"".includes(this.text[end - 1])) end -= 1;
    const target = this.text.slice(at, end);
    return /^https?:\/\/./.test(target) ? [anchor(target, [target]), end] : null;
  }

  lineBreak(at) {
    let begin = at;
    while (this.text[begin - 1] === " ") begin -= 1;
    return at - begin < 2 ? null : [h("br"), at + 1, begin];
  }
}

function anchor(target, inner) {
  return h("a", { href: target, target: "_blank", rel: "noopener noreferrer nofollow" }, inner);
}

/** Return how long each run of backticks is, and where the next one of that length begins. */
function runsOf(text) {
  const runs = new Map();
  const last = new Map();
  for (const { 0: run, index } of text.matchAll(/`+/g)) {
    if (last.has(run.length)) last.get(run.length).end = index;
    const found = { length: run.length };
    runs.set(index, found);
    last.set(run.length, found);
  }
  return runs;
}
