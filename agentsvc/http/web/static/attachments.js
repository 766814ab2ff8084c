// Files for an agent: uploaded into the workspace; small images are also sent to the model.
import { agentPath, get, newId, send } from "./api.js";
import { bytes } from "./format.js";
import { html } from "./html.js";
import { Button, Icon } from "./ui.js";
import { t } from "./words.js";

const FOLDER = "uploads";
const LARGEST_BYTES = 50 * 1024 * 1024;
const LARGEST_IMAGE_BYTES = 700 * 1024;

/** Return a file's name without the characters that are unsafe in a path. */
const nameOf = (file) => (file.name || "pasted").replace(/[^\p{L}\p{N}._-]+/gu, "-").replace(/^[.-]+/, "") || "file";

const toDataUrl = (file) => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.onload = () => resolve(reader.result);
  reader.onerror = () => reject(reader.error);
  reader.readAsDataURL(file);
});

/** Upload files into the workspace of a conversation; return the path, name, size and image (data URL or null) of each. */
export async function attach(conversation, files) {
  if (conversation.sandbox_status !== "RUNNING") throw new Error(t("Files can be attached while the sandbox runs."));
  const { workspace } = await get(agentPath(conversation));
  return Promise.all(files.map(async (file) => {
    if (file.size > LARGEST_BYTES) throw new Error(t("{0} is larger than {1}.", file.name, bytes(LARGEST_BYTES)));
    const name = nameOf(file);
    const path = `${FOLDER}/${newId().slice(0, 8)}-${name}`;
    const form = new FormData();
    form.append("file", file, name);
    const target = encodeURIComponent(`${workspace.working_dir}/${path}`);
    const response = await send(`sandboxes/${encodeURIComponent(conversation.sandbox_id)}/agent/api/file/upload?path=${target}`, { method: "POST", body: form });
    if (!response.ok) throw new Error(t("{0} could not be put into the workspace ({1}).", file.name, response.status));
    const isImage = /^image\/(?:png|jpeg|gif|webp)$/.test(file.type) && file.size <= LARGEST_IMAGE_BYTES;
    return { path, name, size: file.size, image: isImage ? await toDataUrl(file) : null };
  }));
}

/** Return the text of a message with the paths of its attached files appended. */
export function withFiles(text, files) {
  if (!files.length) return text;
  return [text, `Attached ${files.length === 1 ? "file" : "files"}: ${files.map(({ path }) => `\`${path}\``).join(", ")}`].filter(Boolean).join("\n\n");
}

export const Attachments = ({ files, onRemove }) => files.length > 0 && html`
  <ul class="attachments" aria-label=${t("Attached files")}>
    ${files.map((file) => html`<li key=${file.path}>
      ${file.image ? html`<img src=${file.image} alt="" />` : html`<${Icon} name="file" />`}<span class="cut">${file.name}</span> <span class="hint">${bytes(file.size)}</span>
      <${Button} kind="bare" icon="cross" isIcon label=${t("Remove {0}", file.name)} onPress=${() => onRemove(file)} /></li>`)}
  </ul>
`;
