// What models have used, as charts, each with its table: by day, by model and, for administrators, by user.
import { get, V1 } from "./api.js";
import { count, money } from "./format.js";
import { html, useMemo, useState } from "./html.js";
import { isAdmin } from "./me.js";
import { useLoaded } from "./store.js";
import { Problem, SelectField, Spinner } from "./ui.js";

const DAY_MS = 86_400_000;
const HEIGHT = 140;
const BAR = 10;
const GAP = 3;
const DAYS = [["7", "7 days"], ["30", "30 days"], ["90", "90 days"]];
const UNITS = {
  dollars: { label: "Cost in US dollars", value: (one) => one.dollars, show: money },
  tokens: { label: "Tokens", value: (one) => one.prompt_tokens + one.completion_tokens, show: count },
};

/** Return the sums of rows by what a function returns for each: [name, sum], the largest first. */
function sums(rows, nameOf, valueOf) {
  const totals = new Map();
  for (const row of rows) totals.set(nameOf(row), (totals.get(nameOf(row)) ?? 0) + valueOf(row));
  return [...totals].sort((a, b) => b[1] - a[1]);
}

function lastDays(number) {
  const today = Date.now();
  return Array.from({ length: number }, (_, i) => new Date(today - (number - 1 - i) * DAY_MS).toISOString().slice(0, 10));
}

export function UsageCharts() {
  const [days, setDays] = useState("30");
  const [unit, setUnit] = useState("dollars");
  const [whose, setWhose] = useState("mine");
  const isOfAll = whose === "all";
  const loaded = useLoaded(() => get(isOfAll ? `${V1}/usage/days` : `${V1}/users/me/usage/days`, { days }), [days, isOfAll]);
  const rows = loaded.value ?? [];
  const { label, value, show } = UNITS[unit];
  const byDay = useMemo(() => {
    const totals = new Map(sums(rows, (one) => one.day, value));
    return lastDays(Number(days)).map((day) => [day, totals.get(day) ?? 0]);
  }, [rows, unit, days]);
  return html`
    <section class="card group"><h2>Use of models</h2>
      <div class="filters">
        ${isAdmin() && html`<${SelectField} label="Of" value=${whose} onValue=${setWhose} options=${[["mine", "You"], ["all", "All users"]]} />`}
        <${SelectField} label="What" value=${unit} onValue=${setUnit} options=${Object.entries(UNITS).map(([name, one]) => [name, one.label])} />
        <${SelectField} label="Time" value=${days} onValue=${setDays} options=${DAYS} />
      </div>
      <${Problem} error=${loaded.error} onAgain=${loaded.again} />
      ${loaded.isLoading && !loaded.value && html`<${Spinner} />`}
      ${loaded.value && !rows.length && html`<p class="none">Nothing was used in this time.</p>`}
      ${rows.length > 0 && html`
        <${Columns} title="${label} by day" entries=${byDay} show=${show} />
        <${Bars} title="${label} by model" entries=${sums(rows, (one) => one.model || "not known", value)} show=${show} />
        ${isOfAll && html`<${Bars} title="${label} by user" entries=${sums(rows, (one) => one.user_name, value)} show=${show} />`}
      `}
    </section>
  `;
}

/** Columns over time; what they are is in the table, too. Days are those of UTC. */
function Columns({ title, entries, show }) {
  const most = Math.max(...entries.map(([, value]) => value)) || 1;
  const total = entries.reduce((sum, [, value]) => sum + value, 0);
  const width = entries.length * (BAR + GAP);
  return html`
    <figure class="chart"><figcaption><h3>${title}</h3><span class="hint">${show(total)} in all, ${show(most)} at most</span></figcaption>
      <svg viewBox="0 0 ${width} ${HEIGHT}" preserveAspectRatio="none" role="img" aria-label="${title}: ${show(total)} in all">
        <path class="chart-grid" d="M0 .5H${width}M0 ${HEIGHT / 2}H${width}M0 ${HEIGHT - 0.5}H${width}" />
        ${entries.map(([day, value], i) => html`<rect key=${day} class="chart-bar" x=${i * (BAR + GAP)} width=${BAR} y=${HEIGHT - (value / most) * HEIGHT} height=${(value / most) * HEIGHT}>
          <title>${day}: ${show(value)}</title></rect>`)}
      </svg>
      <p class="chart-ends hint"><span>${entries[0][0]}</span><span>${entries.at(-1)[0]}</span></p>
      <${Table} title=${title} entries=${entries.filter(([, value]) => value).reverse()} show=${show} />
    </figure>
  `;
}

/** A bar for each entry, beside its name and value: that is the table already. */
function Bars({ title, entries, show }) {
  const most = entries[0]?.[1] || 1;
  return html`
    <figure class="chart"><figcaption><h3>${title}</h3></figcaption>
      <table class="bars"><tbody>${entries.map(([name, value]) => html`<tr key=${name}><th scope="row">${name}</th>
        <td><progress max=${most} value=${value} aria-label="${name}: ${show(value)}" /></td><td class="number">${show(value)}</td></tr>`)}</tbody></table>
    </figure>
  `;
}

const Table = ({ title, entries, show }) => html`
  <details><summary>Table</summary>
    <table class="numbers"><caption class="hidden">${title}</caption><thead><tr><th scope="col">Day</th><th scope="col" class="number">Value</th></tr></thead>
      <tbody>${entries.map(([name, value]) => html`<tr key=${name}><th scope="row">${name}</th><td class="number">${show(value)}</td></tr>`)}</tbody></table>
  </details>
`;
