// The audit log: all entries for administrators, and for every user the actions of their own keys.
import { get, V1 } from "./api.js";
import { moment } from "./format.js";
import { html, useEffect, useState } from "./html.js";
import { isAdmin } from "./me.js";
import { useForm, useLoaded } from "./store.js";
import { Button, Empty, Head, Problem, SelectField, Spinner, TextField, TimeField } from "./ui.js";
import { t } from "./words.js";

const PAGE = 50;
const WAIT_MS = 300;
const NOTHING = { user_id: "", text: "", is_refused: "", at__gte: "", at__lt: "" };
const OUTCOMES = [["", t("Any")], ["false", t("Done")], ["true", t("Refused or failed")]];

const toTime = (text) => (text ? new Date(text).toISOString() : "");
const toQuery = ({ at__gte, at__lt, ...rest }) => ({ ...rest, at__gte: toTime(at__gte), at__lt: toTime(at__lt), limit: PAGE });

/** Return the loaded entries of a query, and `more`, which loads the next page. A changed query is sent after a short delay. */
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
  const more = async () => {
    const found = await ask(state.next, state.items);
    // The query may have changed meanwhile.
    setState((now) => (now === state ? found : now));
  };
  return { ...state, more };
}

export function AuditPage() {
  if (!isAdmin()) {
    return html`<${Head} title=${t("Audit log")} /><div class="page"><${Empty} icon="book" title=${t("Audit log")}>
      ${t("All of it is for administrators.")} <a href="#/settings/activity">${t("What was done with your keys")}</a><//></div>`;
  }
  return html`
    <${Head} title=${t("Audit log")} />
    <div class="page wide-page">
      <p class="hint">${t("Every request that may change something, including refused ones, and commands on the server's machine. Read requests are not listed.")}</p>
      <${Entries} path=${`${V1}/audit-log`} isOfAll />
    </div>
  `;
}

export function ActivitySection() {
  return html`
    <section class="card group"><h2>${t("What was done with your keys")}</h2>
      <p class="hint">${t("By you, and by programs with your keys. Administrators can see it, too.")}</p>
      <${Entries} path=${`${V1}/users/me/audit-log`} />
    </section>
  `;
}

function Entries({ path, isOfAll }) {
  const [form, field] = useForm(NOTHING);
  const found = useEntries(path, form);
  const users = useLoaded(() => (isOfAll ? get(`${V1}/users`) : Promise.resolve([])));
  return html`
    <fieldset class=${isOfAll ? "filters of-all" : "filters"}><legend class="hidden">${t("Which entries")}</legend>
      ${isOfAll && html`<${SelectField} label=${t("User")} options=${[["", t("All")], ...(users.value ?? []).map(({ id, name }) => [id, name])]} ...${field("user_id")} />`}
      <${TextField} label=${t("Text")} type="search" placeholder=${t("In action or subject")} ...${field("text")} />
      <${SelectField} label=${t("Outcome")} options=${OUTCOMES} ...${field("is_refused")} />
      <${TimeField} label=${t("From")} ...${field("at__gte")} />
      <${TimeField} label=${t("Until")} ...${field("at__lt")} />
    </fieldset>
    <${Problem} error=${found.error} />
    ${found.isLoading && html`<${Spinner} />`}
    ${found.items?.length === 0 && !found.error && html`<p class="none">${t("There are no such entries.")}</p>`}
    <ol class="entries audit" aria-label=${t("Entries")}>
      ${(found.items ?? []).map((one) => html`<${Entry} key=${one.number} one=${one} isOfAll=${isOfAll} />`)}
    </ol>
    ${found.next && html`<div class="actions"><${Button} onPress=${found.more} label=${t("Show earlier ones")} /></div>`}
  `;
}

function Entry({ one, isOfAll }) {
  const facts = [
    moment(one.at),
    isOfAll && (one.user_name ?? t("command line")),
    one.key_id != null && t("key {0}", one.key_id),
    one.user_id && t("from {0}", one.address),
    one.request_id && t("request {0}", one.request_id),
  ].filter(Boolean);
  return html`
    <li><div><code class="action">${one.action}</code>
        ${one.subject && html`<p class="subject">${one.subject}</p>`}
        <p class="hint">${facts.join(" · ")}</p></div>
      <span class="pill ${one.status >= 400 ? "bad" : one.status ? "good" : "quiet"}">${one.status || (one.user_id ? t("broken off") : t("done"))}</span></li>
  `;
}
