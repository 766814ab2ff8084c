// Administration of users, with their limits and keys; and the usage of the current user.
import { get, patch, post, put, remove, V1 } from "./api.js";
import { UsageCharts } from "./charts.js";
import { Keys } from "./credentials.js";
import { Form } from "./forms.js";
import { moment, money } from "./format.js";
import { html, useState } from "./html.js";
import { myId, refusal } from "./me.js";
import { useForm, useList, useLoaded } from "./store.js";
import { Button, Dialog, Empty, Head, Pill, Problem, SelectField, Spinner, TextField, Toggle, tell } from "./ui.js";
import { t } from "./words.js";

const USERS = `${V1}/users`;
const ROLES = [["admin", t("Administrator")], ["member", t("Member")], ["viewer", t("Viewer")]];
const NEW = { name: "", role: "member" };
const CHANGES = [
  { key: "name", label: t("Name") },
  { key: "role", label: t("Role"), kind: "select", options: ROLES, hint: t("An administrator also manages users and the server; a viewer cannot change anything.") },
];
const LIMITS = [
  { key: "running_sandboxes", label: t("Sandboxes that run"), kind: "number", hint: t("At the same time. Empty: any number.") },
  { key: "conversations_per_hour", label: t("Conversations an hour"), kind: "number", hint: t("Maximum number of starts. Empty: no limit.") },
  { key: "spend_per_day", label: t("US dollars a day"), kind: "number", hint: t("Maximum cost of models per day of UTC. Empty: no limit.") },
  { key: "spend_per_month", label: t("US dollars a month"), kind: "number", hint: t("The same per month of UTC.") },
];
const USED = [
  [t("Sandboxes that run"), "running_sandboxes", "running_sandboxes", String],
  [t("Conversations in the last hour"), "conversations_last_hour", "conversations_per_hour", String],
  [t("Spent today"), "spent_today", "spend_per_day", money],
  [t("Spent this month"), "spent_this_month", "spend_per_month", money],
];

const roleOf = ({ role }) => ROLES.find(([name]) => name === role)?.[1] ?? role;

/** A user's usage, with the limit of each value. */
export function Usage({ usage }) {
  return html`
    <dl class="usage">
      ${USED.map(([label, used, limit, show]) => {
        const most = usage.quotas[limit];
        return html`<div key=${used}><dt>${label}</dt>
          <dd>${show(usage[used])}${most == null ? html` <span class="hint">${t("no limit")}</span>` : t(" of {0}", show(most))}
            ${most > 0 && html`<progress max=${most} value=${Math.min(usage[used], most)} aria-label=${label} />`}</dd></div>`;
      })}
    </dl>
  `;
}

export function UsersPage() {
  const list = useList(() => get(USERS), tell);
  const [form, field, clear] = useForm(NEW);
  const [doomed, setDoomed] = useState(null);
  const add = list.act(async () => {
    await post(USERS, { ...form, name: form.name.trim() });
    clear();
  });
  if (refusal("admin") && list.error?.status === 403) {
    return html`<${Head} title=${t("Users")} /><div class="page"><${Empty} icon="people" title=${t("Users")}>${refusal("admin")}<//></div>`;
  }
  return html`
    <${Head} title=${t("Users")} />
    <div class="page wide-page">
      <p class="hint">${t("Settings, conversations and sandboxes belong to one user; no role can see those of other users.")}</p>
      <${Problem} error=${list.error} />
      ${list.isLoading && !list.value && html`<${Spinner} />`}
      <ul class="cards loose">
        ${(list.value ?? []).map((user) => html`<${UserCard} key=${user.id} user=${user} list=${list} onDelete=${() => setDoomed(user)} />`)}
      </ul>
      <section class="card group"><h2>${t("Add a user")}</h2>
        <${TextField} label=${t("Name")} autocomplete="off" spellcheck="false" ...${field("name")} />
        <${SelectField} label=${t("Role")} options=${ROLES} hint=${t("A viewer can read their own data, a member can also change it.")} ...${field("role")} />
        <p class="hint">${t("To log in, a user needs a key: create one in the card of the user, and pass it on.")}</p>
        <div class="actions"><${Button} kind="primary" icon="plus" needs="admin" onPress=${add} label=${t("Add")} /></div>
      </section>
    </div>
    ${doomed && html`<${Deletion} user=${doomed} onClose=${() => { setDoomed(null); list.again(); }} />`}
  `;
}

function stateOf({ leaving_at, blocked_at }) {
  if (leaving_at) return [t("Being deleted"), "warn"];
  return blocked_at ? [t("Blocked"), "bad"] : [t("Active"), "good"];
}

function UserCard({ user, list, onDelete }) {
  const path = `${USERS}/${user.id}`;
  const usage = useList(() => get(`${path}/usage`));
  const change = async (changes) => {
    await patch(path, changes);
    return list.again();
  };
  const limit = async (changes) => {
    const { quotas } = await get(`${path}/usage`);
    await put(`${path}/quotas`, { ...quotas, ...changes });
    return usage.again();
  };
  const isGoing = Boolean(user.leaving_at);
  return html`
    <li class="card">
      <h3>${user.name} <${Pill} state=${stateOf(user)} /></h3>
      <p class="hint">${t("{0}, since {1}{2} {3}", roleOf(user), moment(user.created_at), user.id === myId() ? t(". This is you.") : ".", isGoing && t(" What the user owns is being removed, and the user goes after it."))}</p>
      <${Problem} error=${usage.error} />
      ${usage.value && html`<${Usage} usage=${usage.value} />`}
      ${!isGoing && html`
        <details><summary>${t("Name and role")}</summary><${Form} fields=${CHANGES} values=${user} onSave=${change} needs="admin" /></details>
        ${usage.value && html`<details><summary>${t("Limits")}</summary><${Form} fields=${LIMITS} values=${usage.value.quotas} onSave=${limit} needs="admin" /></details>`}
        <${KeysOf} path=${path} name=${user.name} />
        <div class="actions">
          <${Button} needs="admin" onPress=${list.act(() => patch(path, { is_blocked: !user.blocked_at }))} label=${user.blocked_at ? t("Unblock") : t("Block")}
            title=${t("All keys of a blocked user are rejected; the data of the user is kept.")} />
          ${user.id !== myId() && html`<${Button} kind="danger" icon="trash" needs="admin" onPress=${onDelete} label=${t("Delete")} />`}
        </div>`}
    </li>
  `;
}

function KeysOf({ path, name }) {
  const [isOpen, setOpen] = useState(false);
  return html`
    <details onToggle=${(event) => setOpen(event.target.open)}><summary>${t("Keys")}</summary>
      ${isOpen && html`<${Keys} path=${`${path}/keys`} needs="admin" whose=${t("for {0}", name)} />`}
    </details>
  `;
}

function Deletion({ user, onClose }) {
  const [withOwned, setWithOwned] = useState(false);
  const [error, setError] = useState(null);
  const yes = async () => {
    setError(null);
    try {
      await remove(`${USERS}/${user.id}${withOwned ? "?with_owned=true" : ""}`);
      onClose();
    } catch (problem) {
      setError(problem);
    }
  };
  return html`
    <${Dialog} title=${t("Delete {0}?", user.name)} onClose=${onClose}>
      <p>${t("Keys, settings, secrets and webhooks of the user are gone for good. The audit log keeps what was done.")}</p>
      <${Toggle} label=${t("Conversations, sandboxes and archives, too")} value=${withOwned} onValue=${setWithOwned}
        hint=${t("The user is blocked at once, and deleted when the last sandbox is removed. Without this option a user who has any cannot be deleted.")} />
      <${Problem} error=${error} title=${t("Not deleted")} />
      <div class="actions"><${Button} onPress=${onClose} label=${t("Cancel")} /><${Button} kind="danger" onPress=${yes} label=${t("Delete")} /></div>
    <//>
  `;
}

export function UsageSection() {
  const usage = useLoaded(() => get(`${USERS}/me/usage`));
  return html`
    <section class="card group"><h2>${t("What you have used")}</h2>
      <p class="hint">${t("Administrators set the limits; days and months are those of UTC. Paused sandboxes do not count.")}</p>
      <${Problem} error=${usage.error} onAgain=${usage.again} />
      ${usage.value ? html`<${Usage} usage=${usage.value} />` : !usage.error && html`<${Spinner} />`}
    </section>
    <${UsageCharts} />
  `;
}
