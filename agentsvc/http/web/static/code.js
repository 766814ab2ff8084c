// Syntax highlighting: the library is loaded with the first code block, which is shown without colours until then.
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

/** Return the library's name for a language or a file extension, or "" if it is unknown or the library is not loaded. */
export function languageOf(name) {
  const ending = name.split(".").at(-1).toLowerCase();
  const language = LANGUAGES[ending] ?? ending;
  return library?.registered(language) ? language : "";
}

/** Return whether the library is loaded, and render again when it is. */
export function useHighlighting() {
  const [, redraw] = useState(0);
  useEffect(() => {
    waiting.add(redraw);
    load();
    return () => waiting.delete(redraw);
  }, []);
  return library !== null;
}

/** Return a text as highlighted elements, or unchanged if it is long or its language is unknown. */
export function coloured(text, language) {
  const known = language && text.length <= MAX_CHARS ? languageOf(language) : "";
  return known ? toElements(library.highlight(known, text).children) : text;
}

const toElements = (nodes) => nodes.map((node) =>
  node.type === "element" ? h("span", { class: node.properties.className.join(" ") }, toElements(node.children)) : node.value);

/** A code block with a copy button. */
export function Code({ text, language = "" }) {
  useHighlighting();
  return html`
    <div class="code" data-language=${language || null}>
      <pre tabindex="0"><code>${coloured(text, language)}</code></pre>
      <${Copy} text=${text} />
    </div>
  `;
}
