// Formulas: TeX between dollar signs, or \( \) and \[ \], shown as MathML by a library that is loaded with the first one.
import { html, useEffect, useRef } from "./html.js";

const PATTERNS = [
  [/\$\$((?:[^$\\]|\\[\s\S]){1,2000}?)\$\$/y, true],
  // Sums of money are none: the first sign has no space behind it, and the last one no digit.
  [/\$(?![\s$])((?:[^$\\\n]|\\[^\n]){1,500}?)(?<!\s)\$(?!\d)/y, false],
  [/\\\(((?:(?!\\[()])[\s\S]){1,2000})\\\)/y, false],
  [/\\\[((?:(?!\\[[\]])[\s\S]){1,2000})\\\]/y, true],
];
/** Brackets with a backslash before them may be meant as they are. */
const IS_MATHS = /[\\^_=+*/<>\d-]|^\s*[a-zA-Z]\s*$/;

let library = null;

export function Formula({ text, isBlock }) {
  const box = useRef(null);
  useEffect(() => {
    let isThere = true;
    library ??= import("./vendor/katex.js");
    library.then(({ formula }) => isThere && box.current.replaceChildren(formula(text, isBlock))).catch(() => {
      // What is no TeX stays as it was written.
    });
    return () => {
      isThere = false;
    };
  }, [text, isBlock]);
  // Its own key: what the library has put into an element is not to be changed into another formula.
  return html`<span class=${isBlock ? "formula block" : "formula"} ref=${box} key=${text}>${text}</span>`;
}

/** Have a parser of Markdown tell formulas, as tokens of the type `formula`. */
export function readFormulas(parser) {
  parser.inline.ruler.before("escape", "formula", (state, silent) => {
    const sign = state.src[state.pos];
    if (sign !== "$" && sign !== "\\") return false;
    for (const [pattern, isBlock] of PATTERNS) {
      pattern.lastIndex = state.pos;
      const [whole, text] = pattern.exec(state.src) ?? [];
      if (!whole || !IS_MATHS.test(text)) continue;
      if (!silent) Object.assign(state.push("formula", "", 0), { content: text.trim(), block: isBlock });
      state.pos += whole.length;
      return true;
    }
    return false;
  });
}
