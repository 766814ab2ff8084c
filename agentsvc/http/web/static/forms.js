// Forms generated from a list of fields; only changed values are saved.
import { html, useState } from "./html.js";
import { changesOf } from "./store.js";
import { Button, Field, Problem, SelectField, TextField, Toggle } from "./ui.js";
import { t } from "./words.js";

/**
 * A form for fields `{key, label, hint, kind, options}`, which passes the changed values to `onSave`. Kinds are text, long,
 * number, switch, select, secret and json; a secret shows only whether it is set. `onSave` resolves to false if the values
 * were saved but could not be loaded again.
 */
export function Form({ fields, values, onSave, label = t("Save"), needs = "run" }) {
  const [changes, setChanges] = useState({});
  const [state, setState] = useState({});
  const change = (key) => (value) => {
    setState({});
    setChanges((old) => ({ ...old, [key]: value }));
  };
  const save = async () => {
    try {
      const parsed = Object.fromEntries(
        fields.filter(({ key }) => key in changes).map((field) => [field.key, parse(field, changes[field.key])]),
      );
      // Keep edits made during the save; keep all of them if the stored values could not be loaded again.
      if ((await onSave(parsed)) !== false) setChanges((now) => changesOf(now, changes));
      setState({ isSaved: true });
    } catch (error) {
      setState({ error });
    }
  };
  const isChanged = Object.keys(changes).length > 0;
  return html`
    <form onSubmit=${(event) => event.preventDefault()}>
      ${fields.map((field) => html`
        <${Input} key=${field.key} field=${field} onValue=${change(field.key)}
          value=${field.key in changes ? changes[field.key] : shown(field, values[field.key])} />
      `)}
      <${Problem} error=${state.error} title=${t("Not saved")} />
      <div class="actions">
        ${state.isSaved && html`<span class="saved" role="status">${t("Saved")}</span>`}
        <${Button} kind="primary" onPress=${save} label=${label} needs=${needs} aria-disabled=${String(!isChanged)} />
      </div>
    </form>
  `;
}

function shown({ kind }, value) {
  if (kind === "json") return value == null || isEmpty(value) ? "" : JSON.stringify(value, null, 2);
  if (kind === "switch") return value;
  return value == null ? "" : String(value);
}

const isEmpty = (value) => typeof value === "object" && Object.keys(value).length === 0;

/** Parse a number; return null for an empty text, throw for a text that is not a number. */
export function toNumber(label, text) {
  if (!text.trim()) return null;
  const number = Number(text);
  if (Number.isNaN(number)) throw new Error(t("{0} is not a number.", label));
  return number;
}

function parse({ kind, label }, value) {
  if (kind === "switch") return value;
  if (value === "") return null;
  if (kind === "number") return toNumber(label, value);
  if (kind !== "json") return value;
  try {
    return JSON.parse(value);
  } catch {
    throw new Error(t("{0} is not JSON.", label));
  }
}

function Input({ field: { label, hint, kind, options, isSet }, value, onValue }) {
  const props = { label, hint, value, onValue };
  switch (kind) {
    case "switch":
      return html`<${Toggle} ...${props} />`;
    case "select":
      return html`<${SelectField} ...${props} options=${options} />`;
    case "number":
      return html`<${TextField} ...${props} inputmode="decimal" />`;
    case "secret":
      return html`<${TextField} ...${props} type="password" autocomplete="off" placeholder=${isSet ? t("Stored; leave it empty to keep it") : ""} />`;
    case "json":
    case "long":
      return html`<${Field} label=${label} hint=${hint}>${(ids) => html`
        <textarea ...${ids} rows="3" spellcheck="false" class=${kind === "json" ? "mono" : ""} value=${value}
          onInput=${(event) => onValue(event.target.value)}></textarea>`}<//>`;
    default:
      return html`<${TextField} ...${props} spellcheck="false" />`;
  }
}

const KINDS = { boolean: "switch", integer: "number", number: "number", array: "json", object: "json" };

/** Return form fields for a section of the API's settings schema. */
export function fromSchema(section) {
  return section.fields.map((field) => ({
    key: field.key,
    label: field.label,
    hint: field.description,
    kind: field.secret ? "secret" : field.choices.length ? "select" : (KINDS[field.value_type] ?? "text"),
    options: [["", t("Not set")], ...field.choices.map(({ value, label }) => [String(value), label])],
  }));
}

/** Return nested values as an object with the dotted keys of the fields. */
export function flatten(fields, nested) {
  return Object.fromEntries(fields.map(({ key }) => [key, key.split(".").reduce((value, name) => value?.[name], nested)]));
}

/** Return values with dotted keys as a nested object. */
export function nest(values) {
  const nested = {};
  for (const [key, value] of Object.entries(values)) {
    const names = key.split(".");
    const last = names.pop();
    const place = names.reduce((inner, name) => (inner[name] ??= {}), nested);
    place[last] = value;
  }
  return nested;
}
