// Code in colours: the library is loaded when the first code is shown, and the code is there before that.
import { html, h, useEffect, useState } from "./html.js";
import { Copy } from "./ui.js";

const MAX_CHARS = 40_000;
const LANGUAGES = {
  py: "python", js: "javascript", mjs: "javascript", jsx: "javascript", ts: "typescript", tsx: "typescript", sh: "bash", bash: "bash",
  md: "markdown", yml: "yaml", rs: "rust", rb: "ruby", htm: "xml", html: "xml", svg: "xml", h: "c", hpp: "cpp", cc: "cpp", cs: "csharp",
  toml: "ini", cfg: "ini", kt: "kotlin", console: "shell", dockerfile: "bash",
};

let library = null;
let isAsked = false;
const waiting = new Set();

function load() {
  if (isAsked) return;
  isAsked = true;
  import("./vendor/highlight.js").then((found) => {
    library = found.lowlight;
    for (const tell of waiting) tell((count) => count + 1);
  }, () => {});
}

/** Return the name that the library has for a language or the ending of a file, or "". */
export function languageOf(name) {
  const ending = name.split(".").at(-1).toLowerCase();
  const language = LANGUAGES[ending] ?? ending;
  return library?.registered(language) ? language : "";
}

/** Whether code can be coloured, and a drawing when it can. */
export function useHighlighting() {
  const [, redraw] = useState(0);
  useEffect(() => {
    waiting.add(redraw);
    load();
    return () => waiting.delete(redraw);
  }, []);
  return library !== null;
}

/** Return a text as coloured elements. */
export function coloured(text, language) {
  const known = language && text.length <= MAX_CHARS ? languageOf(language) : "";
  return known ? toElements(library.highlight(known, text).children) : text;
}

const toElements = (nodes) => nodes.map((node) =>
  node.type === "element" ? h("span", { class: node.properties.className.join(" ") }, toElements(node.children)) : node.value);

/** A block of code with a button that copies it. */
export function Code({ text, language = "" }) {
  useHighlighting();
  return html`
    <div class="code" data-language=${language || null}>
      <pre tabindex="0"><code>${coloured(text, language)}</code></pre>
      <${Copy} text=${text} />
    </div>
  `;
}
