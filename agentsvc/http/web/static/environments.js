// Environments: set-ups that run once, and whose files are copied into new sandboxes.
import { get, patch, post, remove } from "./api.js";
import { ago, bytes } from "./format.js";
import { html, useEffect, useState } from "./html.js";
import { changesOf, useForm, useList, useLoaded } from "./store.js";
import { Button, Empty, Field, Head, Pill, Problem, Question, SelectField, Spinner, TextField, tell } from "./ui.js";
import { t } from "./words.js";

const PATH = "api/v1/environments";
const LOOK_MS = 2000;
const STATES = {
  waiting: [t("Waiting"), "quiet"],
  preparing: [t("Preparing"), "busy"],
  ready: [t("Ready"), "good"],
  failed: [t("Failed"), "bad"],
};
const PROVIDERS = [["", t("Where it is found")], ["github", "GitHub"], ["gitlab", "GitLab"], ["forgejo", "Forgejo"], ["bitbucket", "Bitbucket"]];
const EMPTY = { name: "", repository: "", provider: "", image: "", devcontainer: "auto", setup_script: "", maintenance_script: "" };

/** Whether this server has environments; false until it has answered. */
export const useHasEnvironments = () => Boolean(useLoaded(() => get(PATH)).value);

const toForm = (one) => Object.fromEntries(Object.keys(EMPTY).map((name) => [name, one[name] ?? ""]));

const toOrder = (form) => ({ ...form, name: form.name.trim(), repository: form.repository.trim() || null, provider: form.provider || null, image: form.image.trim() || null, devcontainer: form.devcontainer.trim() || "auto" });

function Script({ label, hint, value, onValue }) {
  return html`<${Field} label=${label} hint=${hint}>${(ids) => html`<textarea ...${ids} rows="3" class="mono" spellcheck="false" value=${value} onInput=${(event) => onValue(event.target.value)}></textarea>`}<//>`;
}

function Fields({ field }) {
  return html`
    <${TextField} label=${t("Name")} ...${field("name")} />
    <${TextField} label=${t("Repository")} hint=${t("owner/name, or a URL; empty: none")} spellcheck="false" ...${field("repository")} />
    <${SelectField} label=${t("Git host")} options=${PROVIDERS} ...${field("provider")} />
    <${TextField} label=${t("Image")} hint=${t("For sandboxes in containers; empty: that of devcontainer.json, else the usual one")} spellcheck="false" ...${field("image")} />
    <${TextField} label=${t("Dev container file")} hint=${t("auto: where it usually is; none: not used; or its path in the repository")} spellcheck="false" ...${field("devcontainer")} />
    <${Script} label=${t("Set-up script")} hint=${t("Empty: that of the repository")} ...${field("setup_script")} />
    <${Script} label=${t("At each start")} hint=${t("A script for each conversation that begins with it; empty: nothing")} ...${field("maintenance_script")} />
  `;
}

export function EnvironmentsPage() {
  const all = useList(async () => (await get(PATH)).items, tell);
  const [form, field, clear] = useForm(EMPTY);
  const [doomed, setDoomed] = useState(null);
  const isBusy = all.value?.some((one) => ["waiting", "preparing"].includes(one.status));
  useEffect(() => {
    const timer = isBusy && setInterval(all.look, LOOK_MS);
    return () => clearInterval(timer);
  }, [isBusy]);
  const add = all.act(async () => {
    await post(PATH, toOrder(form));
    clear();
  });
  return html`
    <${Head} title=${t("Environments")}><${Button} icon="refresh" isIcon kind="bare" label=${t("Look again")} onPress=${all.again} /><//>
    <div class="page wide-page">
      <${Problem} error=${all.error} />
      ${all.isLoading && !all.value && html`<${Spinner} />`}
      ${all.value?.length === 0 && html`<${Empty} icon="box" title=${t("No environments")}>${t("The set-up of a repository is done once, and conversations begin with a copy of its files.")}<//>`}
      <ul class="cards">${(all.value ?? []).map((one) => html`<${Environment} key=${one.id} one=${one} act=${all.act} onDelete=${() => setDoomed(one)} />`)}</ul>
      <details class="card"><summary>${t("Add one")}</summary>
        <${Fields} field=${field} />
        <div class="actions"><${Button} kind="primary" needs="run" onPress=${add} label=${t("Add")} /></div>
      </details>
    </div>
    ${doomed && html`
      <${Question} title=${t("Delete {0}?", doomed.name)} action=${t("Delete")} onClose=${() => setDoomed(null)}
        text=${t("Its files are deleted; conversations that started with it keep their copies.")}
        onYes=${async () => {
          await remove(`${PATH}/${doomed.id}`);
          all.again();
        }} />
    `}
  `;
}

function Environment({ one, act, onDelete }) {
  const path = `${PATH}/${one.id}`;
  const [form, field, clear] = useForm(toForm(one));
  const [isOpen, setOpen] = useState(false);
  return html`
    <li class="card">
      <h3>${one.name} <${Pill} state=${STATES[one.status]} /></h3>
      ${one.repository && html`<p class="hint">${one.repository}</p>`}
      ${one.detail && html`<p class=${one.status === "failed" ? "bad-text" : "hint"}>${one.detail}</p>`}
      <dl class="facts">
        ${one.prepared_at && html`<div><dt>${t("Prepared")}</dt><dd>${ago(one.prepared_at)}</dd></div>`}
        ${one.is_prepared && html`<div><dt>${t("Files")}</dt><dd>${bytes(one.size_bytes)}</dd></div>`}
      </dl>
      ${isOpen && html`<${Log} key=${one.updated_at} path=${path} />`}
      <details><summary>${t("Change")}</summary>
        <${Fields} field=${field} />
        <div class="actions"><${Button} kind="primary" needs="run" onPress=${act(() => patch(path, changesOf(toOrder(form), toOrder(toForm(one)))), clear)} label=${t("Save")} /></div>
      </details>
      <div class="actions">
        <${Button} icon="play" needs="run" onPress=${act(() => post(`${path}/prepare`))} label=${t("Prepare again")} />
        <${Button} icon="book" onPress=${() => setOpen(!isOpen)} label=${t("Log")} aria-expanded=${String(isOpen)} />
        <${Button} kind="danger" icon="trash" needs="run" onPress=${onDelete} label=${t("Delete")} />
      </div>
    </li>
  `;
}

function Log({ path }) {
  const { value, error } = useLoaded(() => get(path));
  return html`<${Problem} error=${error} /><pre class="output" tabindex="0">${value?.log || t("Nothing was written.")}</pre>`;
}
