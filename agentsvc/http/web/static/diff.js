// Differences between two texts: numbered lines, marked words that changed, and folded lines that are far from changes.
// A long diff has elements only for the lines near the visible part.
import { coloured, useHighlighting } from "./code.js";
import { html, useMemo, useRef, useState } from "./html.js";
import { diffArrays, diffWordsWithSpace } from "./vendor/diff.js";
import { t } from "./words.js";

const CONTEXT = 3;
const MAX_EDITS = 10_000;
const MAX_MS = 500;
/** Longer diffs are rendered in part, in a box that scrolls. */
const MAX_ROWS = 300;
const ROW_PX = 20;
const MARGIN_ROWS = 30;
const LONGEST_LINE = 2000;
/** Options of the word diff: no words are marked in a line with more edits. */
const MAX_WORD_EDITS = { maxEditLength: 60 };

const linesOf = (text) => (text ? text.replace(/\n$/, "").split("\n") : []);

/** Return the lines of two texts as {mark, text, before, after}: mark is " ", "-" or "+", the others are line numbers or null. */
export function diffLines(before, after) {
  const a = linesOf(before);
  const b = linesOf(after);
  // Without a result within the limits, show all old lines and then all new ones.
  const parts = diffArrays(a, b, { maxEditLength: MAX_EDITS, timeout: MAX_MS })
    ?? [{ value: a, removed: true }, { value: b, added: true }];
  const rows = [];
  let old = 0;
  let now = 0;
  for (const { value, added, removed } of parts) {
    for (const text of value) {
      if (!added) old += 1;
      if (!removed) now += 1;
      rows.push({ mark: added ? "+" : removed ? "-" : " ", text, before: added ? null : old, after: removed ? null : now });
    }
  }
  return rows;
}

/** Replace lines that are far from any change by {gap, count}, unless that gap is open. */
function foldFar(rows, open) {
  const isNear = new Uint8Array(rows.length);
  rows.forEach(({ mark }, at) => {
    if (mark !== " ") isNear.fill(1, Math.max(0, at - CONTEXT), at + CONTEXT + 1);
  });
  const kept = [];
  for (let at = 0; at < rows.length; at += 1) {
    if (isNear[at]) {
      kept.push(rows[at]);
      continue;
    }
    let end = at;
    while (end < rows.length && !isNear[end]) end += 1;
    if (open.has(at)) kept.push(...rows.slice(at, end));
    else kept.push({ gap: at, count: end - at });
    at = end - 1;
  }
  return kept;
}

/** Map each removed line to the added line that replaced it, and vice versa, if as many lines were added as removed. */
function pairsOf(rows) {
  const pairs = new Map();
  for (let at = 0; at < rows.length; at += 1) {
    if (rows[at].mark !== "-") continue;
    let middle = at;
    while (rows[middle]?.mark === "-") middle += 1;
    let end = middle;
    while (rows[end]?.mark === "+") end += 1;
    if (end - middle === middle - at) {
      for (let i = at; i < middle; i += 1) {
        pairs.set(rows[i], rows[i + middle - at]);
        pairs.set(rows[i + middle - at], rows[i]);
      }
    }
    at = Math.max(at, end - 1);
  }
  return pairs;
}

function content(row, pair, language) {
  const { mark, text } = row;
  if (text.length > LONGEST_LINE) return t("{0} … {1} more characters", text.slice(0, LONGEST_LINE), text.length - LONGEST_LINE);
  const [from, to] = mark === "-" ? [text, pair?.text] : [pair?.text, text];
  const parts = pair && pair.text.length <= LONGEST_LINE && diffWordsWithSpace(from, to, MAX_WORD_EDITS);
  if (!parts) return coloured(text, language) || " ";
  return parts.filter(({ added, removed }) => (mark === "-" ? !added : !removed))
    .map(({ value, added, removed }) => (added || removed ? html`<mark>${value}</mark>` : value));
}

const TONES = { "+": "added", "-": "removed", " ": "" };

function Row({ row, pair, language, onOpen, onComment }) {
  if (row.gap !== undefined) {
    return html`<div class="diff-line diff-gap"><button type="button" onClick=${() => onOpen(row.gap)}>${t("⋯ {0} unchanged lines", row.count)}</button></div>`;
  }
  return html`<div class="diff-line ${TONES[row.mark]}"><span class="diff-number">${row.before}</span><span class="diff-number">${row.after}</span><span
    class="diff-mark">${row.mark}${TONES[row.mark] && html`<span class="hidden">${TONES[row.mark]}</span>`}</span><span class="diff-text">${content(row, pair, language)}</span>${onComment
    && html`<button type="button" class="diff-comment" aria-label=${t("Comment on line {0}", row.after ?? row.before)} onClick=${() => onComment(row)}>+</button>`}</div>`;
}

export function Diff({ before, after, path = "", onComment }) {
  const hasColours = useHighlighting();
  const [open, setOpen] = useState(() => new Set());
  const [top, setTop] = useState(0);
  const box = useRef(null);
  const all = useMemo(() => diffLines(before ?? "", after ?? ""), [before, after]);
  const pairs = useMemo(() => pairsOf(all), [all]);
  const rows = useMemo(() => foldFar(all, open), [all, open]);
  const added = all.filter(({ mark }) => mark === "+").length;
  const removed = all.filter(({ mark }) => mark === "-").length;
  if (!added && !removed) return html`<p class="hint">${t("There is no difference.")}</p>`;
  const isLong = rows.length > MAX_ROWS;
  const first = isLong ? Math.max(0, Math.floor(top / ROW_PX) - MARGIN_ROWS) : 0;
  const shown = isLong ? rows.slice(first, first + 2 * MARGIN_ROWS + 40) : rows;
  const onScroll = () => {
    const next = box.current.scrollTop;
    if (isLong && Math.abs(next - top) >= ROW_PX * 5) setTop(next);
  };
  const openGap = (gap) => setOpen((old) => new Set([...old, gap]));
  return html`
    <p class="diff-counts"><span class="good-text">+${added}</span> <span class="bad-text">−${removed}</span></p>
    <div class="diff ${isLong ? "long" : ""}" ref=${box} onScroll=${onScroll} tabindex="0" role="group" aria-label=${t("Changed lines")}>
      <div class="diff-space" style=${{ height: `${first * ROW_PX}px` }}></div>
      ${shown.map((row, i) => html`<${Row} key=${first + i} row=${row} pair=${pairs.get(row)} language=${hasColours ? path : ""} onOpen=${openGap} onComment=${onComment} />`)}
      <div class="diff-space" style=${{ height: `${(rows.length - first - shown.length) * ROW_PX}px` }}></div>
    </div>
  `;
}
