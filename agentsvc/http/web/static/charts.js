// Usage charts, each with a table of its values: model usage by day, by model and, for administrators, by user; sandbox
// usage over time.
import { get, V1 } from "./api.js";
import { bytes, clock, count, money } from "./format.js";
import { html, useEffect, useMemo, useState } from "./html.js";
import { isAdmin } from "./me.js";
import { useLoaded } from "./store.js";
import { Problem, SelectField, Spinner } from "./ui.js";
import { t } from "./words.js";

const DAY_MS = 86_400_000;
const HEIGHT = 140;
const LOOK_MS = 10_000;
const LEAST_LOOKS = 30;
const BAR = 10;
const GAP = 3;
const DAYS = [["7", t("7 days")], ["30", t("30 days")], ["90", t("90 days")]];
const UNITS = {
  dollars: { label: t("Cost in US dollars"), value: (one) => one.dollars, show: money },
  tokens: { label: t("Tokens"), value: (one) => one.prompt_tokens + one.completion_tokens, show: count },
};

/** Sum `valueOf` over the rows of each `nameOf`; return [name, sum], the largest first. */
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
    <section class="card group"><h2>${t("Use of models")}</h2>
      <div class="filters">
        ${isAdmin() && html`<${SelectField} label=${t("Of")} value=${whose} onValue=${setWhose} options=${[["mine", t("You")], ["all", t("All users")]]} />`}
        <${SelectField} label=${t("What")} value=${unit} onValue=${setUnit} options=${Object.entries(UNITS).map(([name, one]) => [name, one.label])} />
        <${SelectField} label=${t("Time")} value=${days} onValue=${setDays} options=${DAYS} />
      </div>
      <${Problem} error=${loaded.error} onAgain=${loaded.again} />
      ${loaded.isLoading && !loaded.value && html`<${Spinner} />`}
      ${loaded.value && !rows.length && html`<p class="none">${t("Nothing was used in this time.")}</p>`}
      ${rows.length > 0 && html`
        <${Columns} title=${t("{0} by day", label)} entries=${byDay} show=${show} note=${t("{0} in all", show(byDay.reduce((sum, [, one]) => sum + one, 0)))}>
          <${Table} title=${t("{0} by day", label)} head=${[t("Day"), t("Value")]} rows=${byDay.filter(([, one]) => one).reverse().map(([day, one]) => [day, show(one)])} />
        <//>
        <${Bars} title=${t("{0} by model", label)} entries=${sums(rows, (one) => one.model || t("not known"), value)} show=${show} />
        ${isOfAll && html`<${Bars} title=${t("{0} by user", label)} entries=${sums(rows, (one) => one.user_name, value)} show=${show} />`}
      `}
    </section>
  `;
}

/** A column chart over time, at least `least` columns wide, with `children`, such as its table, below. Days are in UTC. */
function Columns({ title, entries, show, note, least = 0, children }) {
  const top = Math.max(...entries.map(([, value]) => value));
  const most = top || 1;
  const width = Math.max(entries.length, least) * (BAR + GAP);
  return html`
    <figure class="chart"><figcaption><h3>${title}</h3><span class="hint">${t("{0}, {1} at most", note, show(top))}</span></figcaption>
      <svg viewBox="0 0 ${width} ${HEIGHT}" preserveAspectRatio="none" role="img" aria-label="${title}: ${note}">
        <path class="chart-grid" d="M0 .5H${width}M0 ${HEIGHT / 2}H${width}M0 ${HEIGHT - 0.5}H${width}" />
        ${entries.map(([name, value], i) => html`<rect key=${i} class="chart-bar" x=${i * (BAR + GAP)} width=${BAR} y=${HEIGHT - (value / most) * HEIGHT} height=${(value / most) * HEIGHT}>
          <title>${name}: ${show(value)}</title></rect>`)}
      </svg>
      <p class="chart-ends hint"><span>${entries[0][0]}${entries.length < least ? ` – ${entries.at(-1)[0]}` : ""}</span>${entries.length >= least && html`<span>${entries.at(-1)[0]}</span>`}</p>
      ${children}
    </figure>
  `;
}

/** A table with a bar in each row, so that the chart needs no second table. */
function Bars({ title, entries, show }) {
  const most = entries[0]?.[1] || 1;
  return html`
    <figure class="chart"><figcaption><h3>${title}</h3></figcaption>
      <table class="bars"><tbody>${entries.map(([name, value]) => html`<tr key=${name}><th scope="row">${name}</th>
        <td><progress max=${most} value=${value} aria-label="${name}: ${show(value)}" /></td><td class="number">${show(value)}</td></tr>`)}</tbody></table>
    </figure>
  `;
}

const Table = ({ title, head, rows }) => html`
  <details><summary>${t("Table")}</summary>
    <table class="numbers"><caption class="hidden">${title}</caption><thead><tr>${head.map((name, i) => html`<th scope="col" class=${i ? "number" : ""}>${name}</th>`)}</tr></thead>
      <tbody>${rows.map(([name, ...values]) => html`<tr key=${name}><th scope="row">${name}</th>${values.map((value) => html`<td class="number">${value}</td>`)}</tr>`)}</tbody></table>
  </details>
`;

/** Resources of a sandbox: label, function that returns the value from a measurement and the previous one, and formatter. */
const KINDS = [
  [t("Memory"), (now) => now.memory_bytes, bytes],
  [t("Processor"), (now, before) => perCent(now, before), (value) => `${value.toFixed(value < 10 ? 1 : 0)} %`],
  [t("Disk"), (now) => now.disk_bytes, bytes],
];

/** Return the CPU usage between two measurements in percent of one processor, or null if it is unknown. */
function perCent(now, before) {
  if (now.cpu_seconds === null || !(before?.cpu_seconds <= now.cpu_seconds)) return null;
  return (100 * (now.cpu_seconds - before.cpu_seconds)) / ((Date.parse(now.measured_at) - Date.parse(before.measured_at)) / 1000);
}

/** Charts of a sandbox's resource usage since the server started, from at most the last 240 measurements. */
export function SandboxCharts({ id }) {
  const { value, error, again, look } = useLoaded(() => get(`${V1}/sandboxes/${id}/usage`), [id]);
  useEffect(() => {
    const timer = setInterval(look, LOOK_MS);
    return () => clearInterval(timer);
  }, [id]);
  if (!value) return error ? html`<${Problem} error=${error} onAgain=${again} />` : html`<${Spinner} />`;
  const found = value.map((now, i) => [clock(now.measured_at), ...KINDS.map(([, valueOf]) => valueOf(now, value[i - 1]))]);
  const known = KINDS.map(([name, , show], i) => ({ name, show, entries: found.map((row) => [row[0], row[i + 1]]).filter(([, one]) => one !== null) }));
  if (known.every(({ entries }) => !entries.length)) return html`<p class="none">${t("Nothing has been measured so far.")}</p>`;
  return html`
    ${known.map(({ name, show, entries }) => entries.length > 0 && html`<${Columns} key=${name} title=${name} entries=${entries} show=${show} note=${t("{0} now", show(entries.at(-1)[1]))} least=${LEAST_LOOKS} />`)}
    <${Table} title=${t("What it uses")} head=${[t("Time"), ...KINDS.map(([name]) => name)]}
      rows=${found.map(([at, ...values]) => [at, ...values.map((one, i) => (one === null ? "–" : KINDS[i][2](one)))]).reverse()} />
  `;
}
