// Writes the libraries of the console, one module each, and a table of what they are, to ../static/vendor.
// Run `npm ci && npm run build` here; the same versions give the same files.
import { copyFileSync, existsSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const HERE = dirname(fileURLToPath(import.meta.url));
const OUT = join(HERE, "..", "static", "vendor");
const MODULES = {
  "preact.js": 'export * from "preact";',
  "hooks.js": 'export * from "preact/hooks";',
  "htm.js": 'export { default } from "htm";',
  "markdown-it.js": 'export { default } from "markdown-it";',
  "highlight.js": 'import { common, createLowlight } from "lowlight"; export const lowlight = createLowlight(common);',
  "katex.js": `import { __renderToDomTree } from "katex";
    export const formula = (text, displayMode) => __renderToDomTree(text, { displayMode, output: "mathml", throwOnError: true, maxSize: 20, maxExpand: 200 }).toNode();`,
  "diff.js": 'export { diffArrays, diffWordsWithSpace } from "diff";',
  "xterm.js": 'export { Terminal } from "@xterm/xterm"; export { FitAddon } from "@xterm/addon-fit";',
};
// Hooks change Preact itself, so both use the same copy of it.
const SHARED = { name: "shared", setup: ({ onResolve }) => {
  onResolve({ filter: /^preact$/ }, ({ importer }) => (importer.includes("hooks") ? { path: "./preact.js", external: true } : null));
} };

const packageOf = (path) => /node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(path)?.[1];

for (const name of readdirSync(OUT)) rmSync(join(OUT, name));
const rows = [];
for (const [file, contents] of Object.entries(MODULES)) {
  const { metafile } = await build({
    stdin: { contents, resolveDir: HERE }, bundle: true, minify: true, format: "esm", target: "es2022",
    legalComments: "none", outfile: join(OUT, file), plugins: [SHARED], metafile: true,
  });
  const inside = [...new Set(Object.keys(metafile.inputs).map(packageOf).filter(Boolean))].sort();
  for (const name of inside) rows.push(`| \`${file}\` | \`${name}\` ${about(name)} |`);
}
// The page allows no inline styles, and styles that are set as objects are none. A missing pair of parentheses in the
// library has it make some of its elements by the document itself, whatever `documentOverride` is.
const PATCHES = [
  [/(\w+)\.setAttribute\("style",`\$\{\1\.getAttribute\("style"\)\|\|""\}\$\{(\w+)\};`\)/g, "$1.style.cssText+=`${$2};`"],
  [/this\._document\?\?typeof window<"u"\?window\.document:null/g, 'this._document??(typeof window<"u"?window.document:null)'],
];
const terminal = join(OUT, "xterm.js");
let text = readFileSync(terminal, "utf8");
for (const [before, after] of PATCHES) {
  if (text.match(before)?.length !== 1) throw new Error(`xterm.js is not as expected: ${before}`);
  text = text.replace(before, after);
}
writeFileSync(terminal, text);
copyFileSync(join(HERE, "node_modules/@xterm/xterm/css/xterm.css"), join(OUT, "xterm.css"));
rows.push("| `xterm.css` | `@xterm/xterm`, its style sheet | MIT, `LICENSE-xterm-xterm.txt` |");
writeFileSync(join(OUT, "README.md"), `# Libraries of the console

Written by \`npm ci && npm run build\` in \`agentsvc/http/web/libraries\`.

| file | package of the npm registry | licence |
|---|---|---|
${rows.join("\n")}
`);

/** Return the version and licence of a package, and put the licence beside the files. */
function about(name) {
  const folder = join(HERE, "node_modules", name);
  const { version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  const found = readdirSync(folder).find((one) => /^licen[cs]e/i.test(one));
  const text = `LICENSE-${name.replace("@", "").replace("/", "-")}.txt`;
  if (!found && !existsSync(join(HERE, text))) throw new Error(`${name} has no licence`);
  copyFileSync(found ? join(folder, found) : join(HERE, text), join(OUT, text));
  return `${version} | ${license}, \`${text}\``;
}
