// Formulas: TeX between dollar signs, or \( \) and \[ \], rendered as MathML by a library that is loaded with the first one.
import { html, useEffect, useRef } from "./html.js";

const PATTERNS = [
  [/\$\$((?:[^$\\]|\\[\s\S]){1,2000}?)\$\$/y, true],
  // Not sums of money: the first sign has no space after it, and the last one no digit.
  [/\$(?![\s$])((?:[^$\\\n]|\\[^\n]){1,500}?)(?<!\s)\$(?!\d)/y, false],
  [/\\\(((?:(?!\\[()])[\s\S]){1,2000})\\\)/y, false],
  [/\\\[((?:(?!\\[[\]])[\s\S]){1,2000})\\\]/y, true],
];
/** A formula must match this, because brackets with a backslash may be meant literally. */
const IS_MATHS = /[\\^_=+*/<>\d-]|^\s*[a-zA-Z]\s*$/;

let library = null;

export function Formula({ text, isBlock }) {
  const box = useRef(null);
  useEffect(() => {
    let isThere = true;
    library ??= import("./vendor/katex.js");
    library.then(({ formula }) => isThere && box.current.replaceChildren(formula(text, isBlock))).catch(() => {
      // The text stays as it was written if it is not valid TeX, or if the library cannot be loaded.
    });
    return () => {
      isThere = false;
    };
  }, [text, isBlock]);
  // A key per text, so that Preact replaces the element instead of updating content that the library has put into it.
  return html`<span class=${isBlock ? "formula block" : "formula"} ref=${box} key=${text}>${text}</span>`;
}

/** Add a rule to a Markdown parser that produces tokens of the type `formula`. */
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
