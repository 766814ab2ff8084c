// The audit log: all of it for administrators, and for everybody what was done with their own keys.
import { get, V1 } from "./api.js";
import { moment } from "./format.js";
import { html, useEffect, useState } from "./html.js";
import { refusal } from "./me.js";
import { useForm, useLoaded } from "./store.js";
import { Button, Empty, Head, Problem, SelectField, Spinner, TextField } from "./ui.js";

const PAGE = 50;
const WAIT_MS = 300;
const NOTHING = { user_id: "", text: "", is_refused: "", at__gte: "", at__lt: "" };
const OUTCOMES = [["", "Any"], ["false", "Done"], ["true", "Refused or failed"]];

const toTime = (text) => (text ? new Date(text).toISOString() : "");
const toQuery = ({ at__gte, at__lt, ...rest }) => ({ ...rest, at__gte: toTime(at__gte), at__lt: toTime(at__lt), limit: PAGE });

/** Return pages of entries for a query, asked for once it has stayed the same for a moment. */
function useEntries(path, form) {
  const [state, setState] = useState({ isLoading: true });
  const key = JSON.stringify(toQuery(form));
  const ask = (page_id, before) =>
    get(path, { ...JSON.parse(key), page_id }).then(
      ({ items, next_page_id }) => ({ items: [...before, ...items], next: next_page_id }),
      (error) => ({ error, items: before, next: page_id }),
    );
  useEffect(() => {
    let isCurrent = true;
    const timer = setTimeout(() => ask(null, []).then((found) => isCurrent && setState(found)), state.isLoading ? 0 : WAIT_MS);
    return () => {
      isCurrent = false;
      clearTimeout(timer);
    };
  }, [path, key]);
  const more = async () => setState(await ask(state.next, state.items));
  return { ...state, more };
}

export function AuditPage() {
  if (refusal("admin") === "This is for administrators.") {
    return html`<${Head} title="Audit log" /><div class="page"><${Empty} icon="book" title="Audit log">
      All of it is for administrators. <a href="#/settings/activity">What was done with your keys</a><//></div>`;
  }
  return html`
    <${Head} title="Audit log" />
    <div class="page wide-page">
      <p class="hint">Every request that may change something, those that were refused, and commands on the server's machine. What was only looked at is not here.</p>
      <${Entries} path=${`${V1}/audit-log`} isOfAll />
    </div>
  `;
}

export function ActivitySection() {
  return html`
    <section class="card group"><h2>What was done with your keys</h2>
      <p class="hint">By you, and by programs that have a key of yours. An administrator sees it, too.</p>
      <${Entries} path=${`${V1}/users/me/audit-log`} />
    </section>
  `;
}

function Entries({ path, isOfAll }) {
  const [form, field] = useForm(NOTHING);
  const found = useEntries(path, form);
  const users = useLoaded(() => (isOfAll ? get(`${V1}/users`) : Promise.resolve([])));
  return html`
    <fieldset class=${isOfAll ? "filters of-all" : "filters"}><legend class="hidden">Which entries</legend>
      ${isOfAll && html`<${SelectField} label="User" options=${[["", "All"], ...(users.value ?? []).map(({ id, name }) => [id, name])]} ...${field("user_id")} />`}
      <${TextField} label="Text" type="search" placeholder="In action or subject" ...${field("text")} />
      <${SelectField} label="Outcome" options=${OUTCOMES} ...${field("is_refused")} />
      <${TextField} label="From" type="datetime-local" ...${field("at__gte")} />
      <${TextField} label="Until" type="datetime-local" ...${field("at__lt")} />
    </fieldset>
    <${Problem} error=${found.error} />
    ${found.isLoading && html`<${Spinner} />`}
    ${found.items?.length === 0 && !found.error && html`<p class="none">There are no such entries.</p>`}
    <ol class="entries audit" aria-label="Entries">
      ${(found.items ?? []).map((one) => html`<${Entry} key=${one.number} one=${one} isOfAll=${isOfAll} />`)}
    </ol>
    ${found.next && html`<div class="actions"><${Button} onPress=${found.more} label="Show earlier ones" /></div>`}
  `;
}

function Entry({ one, isOfAll }) {
  const facts = [
    moment(one.at),
    isOfAll && (one.user_name ?? "command line"),
    one.key_id != null && `key ${one.key_id}`,
    one.user_id && `from ${one.address}`,
    one.request_id && `request ${one.request_id}`,
  ].filter(Boolean);
  return html`
    <li><div><code class="action">${one.action}</code>
        ${one.subject && html`<p class="subject">${one.subject}</p>`}
        <p class="hint">${facts.join(" · ")}</p></div>
      <span class="pill ${one.status >= 400 ? "bad" : one.status ? "good" : "quiet"}">${one.status || (one.user_id ? "broken off" : "done")}</span></li>
  `;
}
