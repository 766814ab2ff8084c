// The contents of a conversation's sandbox: files, changes since the last commit, and ports.
import { conversationPath, get } from "./api.js";
import { Diff } from "./diff.js";
import { html, useState } from "./html.js";
import { refusal } from "./me.js";
import { useLoaded } from "./store.js";
import { Button, Empty, Icon, Problem, Spinner } from "./ui.js";
import { t } from "./words.js";

const MARKS = { ADDED: ["A", "good", t("added")], UPDATED: ["M", "warn", t("changed")], DELETED: ["D", "bad", t("deleted")], MOVED: ["R", "quiet", t("moved")] };

const Asleep = () => html`<${Empty} icon="box" title=${t("The sandbox does not run")}>${t("Resume it to see what is in it.")}<//>`;

export function Changes({ conversation, onComment }) {
  const isAwake = conversation.sandbox_status === "RUNNING";
  const changes = useLoaded(async () => (isAwake ? get(`${conversationPath(conversation.id)}/git/changes`, { path: "." }) : []), [isAwake]);
  const [shown, setShown] = useState(null);
  if (!isAwake) return html`<${Asleep} />`;
  const all = changes.value ?? [];
  return html`
    <div class="bar"><h2>${t("Changes since the last commit")}</h2><${Button} icon="refresh" isIcon kind="bare" label=${t("Look again")} onPress=${changes.again} /></div>
    <${Problem} error=${changes.error} onAgain=${changes.again} />
    ${changes.isLoading && !changes.value && html`<${Spinner} />`}
    ${changes.value?.length === 0 && !changes.isLoading && html`<${Empty} icon="diff" title=${t("No changes")}>${t("The files are as they were in the last commit.")}<//>`}
    <${Tree} tree=${toTree(all)} isOpen=${all.length <= MAX_OPEN} show=${({ path, status }, name) => html`
      <button type="button" aria-expanded=${String(shown === path)} title=${path} onClick=${() => setShown(shown === path ? null : path)}>
        <span class="mark ${MARKS[status]?.[1] ?? ""}" aria-hidden="true">${MARKS[status]?.[0] ?? "?"}</span>${name}
        <span class="hidden">, ${MARKS[status]?.[2] ?? status}</span></button>
      ${shown === path && html`<${FileDiff} conversation=${conversation} path=${path} list=${all} onComment=${onComment} />`}`} />
  `;
}

/** With more changed files than this, folders are closed at first. */
const MAX_OPEN = 60;

/** Return files with a `path` as a tree of {name, files, folders, count}; a folder with nothing but a folder is merged with it. */
function toTree(files) {
  const root = { name: "", files: [], folders: new Map() };
  for (const file of files) {
    const parts = file.path.split("/");
    const name = parts.pop();
    let at = root;
    for (const part of parts) {
      if (!at.folders.has(part)) at.folders.set(part, { name: part, files: [], folders: new Map() });
      at = at.folders.get(part);
    }
    at.files.push({ file, name });
  }
  return merged(root);
}

function merged({ name, files, folders }) {
  const inside = [...folders.values()].map(merged).sort((a, b) => a.name.localeCompare(b.name));
  const [only] = inside;
  if (name && inside.length === 1 && !files.length) return { ...only, name: `${name}/${only.name}` };
  return { name, files: files.sort((a, b) => a.name.localeCompare(b.name)), folders: inside, count: files.length + inside.reduce((sum, one) => sum + one.count, 0) };
}

const Tree = ({ tree, isOpen, show }) => html`
  <ul class="files">
    ${tree.folders.map((folder) => html`<li key=${`${folder.name}/`}><${Folder} folder=${folder} isOpen=${isOpen} show=${show} /></li>`)}
    ${tree.files.map(({ file, name }) => html`<li key=${file.path}>${show(file, name)}</li>`)}
  </ul>
`;

function Folder({ folder, isOpen, show }) {
  const [open, setOpen] = useState(isOpen);
  return html`
    <button type="button" class="folder" aria-expanded=${String(open)} onClick=${() => setOpen(!open)}>
      <span class="chevron"><${Icon} name="right" /></span>${folder.name}<span class="hint">${folder.count}</span></button>
    ${open && html`<${Tree} tree=${folder} isOpen=${isOpen} show=${show} />`}
  `;
}

function FileDiff({ conversation, path, list, onComment }) {
  const diff = useLoaded(() => get(`${conversationPath(conversation.id)}/git/diff`, { path }), [path, list]);
  // Binary and large files are rejected, or come without text on both sides.
  if (diff.error && ![400, 422, 502].includes(diff.error.status)) return html`<${Problem} error=${diff.error} />`;
  if (diff.isLoading) return html`<${Spinner} />`;
  if (diff.error || (diff.value.original ?? "") === (diff.value.modified ?? "")) {
    return html`<p class="hint binary"><${Icon} name="file" /> ${t("This file is binary, empty or too large, so its lines are not compared.")}</p>`;
  }
  return html`<${Diff} before=${diff.value.original} after=${diff.value.modified} path=${path}
    onComment=${(row) => onComment(`\`${path}\`, line ${row.after ?? row.before} (\`${row.text.trim().slice(0, 120)}\`):`)} />`;
}

export function Files({ conversation }) {
  const isAwake = conversation.sandbox_status === "RUNNING";
  const [folder, setFolder] = useState("");
  const [file, setFile] = useState(null);
  const list = useLoaded(async () => [folder, isAwake ? await get(`${conversationPath(conversation.id)}/files`, { path: folder || "." }) : []], [isAwake, folder]);
  if (!isAwake) return html`<${Asleep} />`;
  if (file !== null) return html`<${FileView} conversation=${conversation} path=${file} onBack=${() => setFile(null)} />`;
  // Ignore the entries of the previous folder while this one is loaded.
  const entries = list.value?.[0] === folder && toEntries(list.value[1]);
  return html`
    <div class="bar">
      <h2 class="crumbs">
        <button type="button" onClick=${() => setFolder("")}>${t("workspace")}</button>
        ${folder.split("/").filter(Boolean).map((name, i, all) => html` / <button type="button" onClick=${() => setFolder(all.slice(0, i + 1).join("/"))}>${name}</button>`)}
      </h2>
      <${Button} icon="refresh" isIcon kind="bare" label=${t("Look again")} onPress=${list.again} />
    </div>
    <${Problem} error=${list.error} onAgain=${list.again} />
    ${list.isLoading && html`<${Spinner} />`}
    ${entries.length === 0 && !list.isLoading && html`<${Empty} icon="folder" title=${t("Nothing here")}>${t("The agent has made no files so far.")}<//>`}
    <ul class="files">
      ${entries && entries.map(({ name, isFolder }) => html`
        <li key=${name}><button type="button" onClick=${() => (isFolder ? setFolder : setFile)(folder ? `${folder}/${name}` : name)}>
          <${Icon} name=${isFolder ? "folder" : "file"} />${name}${isFolder && html`<span class="hidden">${t(", folder")}</span>`}</button></li>
      `)}
    </ul>
  `;
}

/** Return the direct entries of a folder, folders first; the server may also list files in its subfolders. */
function toEntries(paths) {
  const entries = new Map();
  for (const path of paths) {
    const [name, ...rest] = path.split("/");
    if (name) entries.set(name, { name, isFolder: rest.length > 0 || (entries.get(name)?.isFolder ?? false) });
  }
  return [...entries.values()].sort((a, b) => b.isFolder - a.isFolder || a.name.localeCompare(b.name));
}

function FileView({ conversation, path, onBack }) {
  const text = useLoaded(() => get(`${conversationPath(conversation.id)}/file`, { file_path: path }), [path]);
  return html`
    <div class="bar"><${Button} icon="back" isIcon kind="bare" label=${t("Back to the files")} onPress=${onBack} /><h2>${path}</h2>
      <${Button} icon="refresh" isIcon kind="bare" label=${t("Look again")} onPress=${text.again} /></div>
    <${Problem} error=${text.error} />
    ${text.value === undefined ? text.isLoading && html`<${Spinner} />` : text.value === "" ? html`<p class="hint">${t("The file is empty, or no text.")}</p>` : html`<pre class="output whole" tabindex="0">${text.value}</pre>`}
  `;
}

export function Ports({ conversation, sandbox }) {
  const urls = sandbox?.exposed_urls ?? [];
  if (conversation.sandbox_status !== "RUNNING") return html`<${Asleep} />`;
  if (refusal("run")) return html`<${Empty} icon="lock" title=${t("Ports")}>${refusal("run")}<//>`;
  const shown = urls.filter((one) => one.name !== "AGENT_SERVER");
  return html`
    <h2>${t("What the sandbox serves")}</h2>
    <p class="hint">${t("Programs that the agent starts on these ports open in a new tab. Their pages come from the sandbox: do not enter passwords there.")}</p>
    ${!shown.length && html`<${Empty} icon="link" title=${t("No ports")}>${t("The spec of this sandbox has no ports.")}<//>`}
    <ul class="files">
      ${shown.map(({ name, url, port }) => html`
        <li key=${name}><a href=${opened(url, sandbox)} target="_blank" rel="noopener noreferrer"><${Icon} name="link" />${label(name)} <span class="hint">${t("port {0}", port)}</span></a></li>
      `)}
    </ul>
  `;
}

const label = (name) => (name === "VSCODE" ? t("Editor") : name.replace(/_/g, " ").toLowerCase().replace(/^./, (c) => c.toUpperCase()));

/** Return a URL with the sandbox's session key: a link does not send the page token. */
function opened(target, sandbox) {
  const found = new URL(target, location.href);
  if (sandbox?.session_api_key) found.searchParams.set("session_api_key", sandbox.session_api_key);
  return found.href;
}
