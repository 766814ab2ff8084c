// Differences between two texts, line by line.
import { html } from "./html.js";

const MOST_CELLS = 4_000_000;
const CONTEXT = 3;

/** Return the lines of two texts as [mark, text], where the mark is " ", "-" or "+". */
export function diffLines(before, after) {
  const a = before ? before.replace(/\n$/, "").split("\n") : [];
  const b = after ? after.replace(/\n$/, "").split("\n") : [];
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head += 1;
  let tail = 0;
  while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail += 1;
  return [
    ...a.slice(0, head).map((line) => [" ", line]),
    ...middle(a.slice(head, a.length - tail), b.slice(head, b.length - tail)),
    ...a.slice(a.length - tail).map((line) => [" ", line]),
  ];
}

function middle(a, b) {
  // What differs too much is shown as all old and then all new lines.
  if (a.length * b.length > MOST_CELLS) return [...a.map((line) => ["-", line]), ...b.map((line) => ["+", line])];
  const width = b.length + 1;
  const common = new Uint32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      common[i * width + j] = a[i] === b[j]
        ? common[(i + 1) * width + j + 1] + 1
        : Math.max(common[(i + 1) * width + j], common[i * width + j + 1]);
    }
  }
  const lines = [];
  let i = 0;
  let j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      lines.push([" ", a[i]]);
      i += 1;
      j += 1;
    } else if (j >= b.length || (i < a.length && common[(i + 1) * width + j] >= common[i * width + j + 1])) {
      lines.push(["-", a[i]]);
      i += 1;
    } else {
      lines.push(["+", b[j]]);
      j += 1;
    }
  }
  return lines;
}

/** Leave out lines that are far from any change; null stands for those. */
export function nearChanges(lines) {
  const isNear = new Uint8Array(lines.length);
  lines.forEach(([mark], at) => {
    if (mark !== " ") isNear.fill(1, Math.max(0, at - CONTEXT), at + CONTEXT + 1);
  });
  const kept = [];
  lines.forEach((line, at) => {
    if (isNear[at]) kept.push(line);
    else if (kept.at(-1) !== null && lines.length) kept.push(null);
  });
  return kept;
}

const TONES = { "+": "added", "-": "removed", " ": "" };
const NAMES = { "+": "added", "-": "removed" };

export function Diff({ before, after }) {
  const lines = nearChanges(diffLines(before ?? "", after ?? ""));
  const changed = lines.filter((line) => line && line[0] !== " ");
  if (!changed.length) return html`<p class="hint">There is no difference.</p>`;
  return html`
    <div class="diff" tabindex="0" role="group" aria-label="Changed lines">
      ${lines.map((line) => line === null
        ? html`<div class="diff-gap">⋯</div>`
        : html`<div class="diff-line ${TONES[line[0]]}"><span class="diff-mark">${line[0]}${NAMES[line[0]] && html`<span class="hidden">${NAMES[line[0]]}</span>`}</span><span>${line[1] || " "}</span></div>`)}
    </div>
  `;
}
