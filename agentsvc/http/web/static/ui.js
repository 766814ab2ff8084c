// Shared components: buttons, fields, icons, messages, dialogs.
import { onAnswer } from "./api.js";
import { html, useEffect, useErrorBoundary, useLayoutEffect, useRef, useState } from "./html.js";
import { refusal } from "./me.js";
import { t } from "./words.js";

const PATHS = {
  plus: "M12 5v14M5 12h14",
  search: "M11 4a7 7 0 1 0 0 14 7 7 0 0 0 0-14zM20 20l-4-4",
  back: "M15 5l-7 7 7 7",
  right: "M9 5l7 7-7 7",
  box: "M4 8l8-4 8 4v8l-8 4-8-4zM4 8l8 4 8-4M12 12v8",
  gear: "M4 7h9M19 7h1M4 17h1M11 17h9M16 4.500v5M8 14.500v5",
  out: "M10 5H5v14h5M14 8l4 4-4 4M18 12H9",
  send: "M12 19V5M6 11l6-6 6 6",
  pause: "M9 6v12M15 6v12",
  stop: "M7 7h10v10H7z",
  play: "M8 5.500v13l10-6.500z",
  file: "M7 3h7l4 4v14H7zM14 3v4h4",
  folder: "M3 6h6l2 2h10v11H3z",
  diff: "M12 4v8M8 8h8M8 18h8",
  link: "M13 5h6v6M19 5l-8 8M10 6H5v13h13v-5",
  up: "M6 15l6-6 6 6",
  downward: "M6 9l6 6 6-6",
  clip: "M8 12l6-6a3 3 0 0 1 4 4l-8 8a5 5 0 0 1-7-7l7-7",
  pin: "M9 4h6l-1 6 3 3H7l3-3zM12 13v7",
  down: "M12 4v11M7 11l5 5 5-5M5 20h14",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  pen: "M5 19l1-4L16 5l3 3L9 18z",
  chart: "M4 20h16M7 20v-6M12 20V9M17 20V4",
  check: "M5 12.500l4.500 4.500L19 7",
  cross: "M6 6l12 12M18 6L6 18",
  warn: "M12 4l9 16H3zM12 10v4M12 17v.5",
  terminal: "M5 7l5 5-5 5M12 17h7",
  thought: "M12 4a7 6 0 0 1 0 12l-4 4v-4.500A7 6 0 0 1 12 4z",
  chat: "M4 5h16v11H10l-4 4v-4H4z",
  tool: "M14 6a4 4 0 0 0 5 5l-8 8a2 2 0 0 1-3-3l8-8",
  more: "M6 12h.01M12 12h.01M18 12h.01",
  copy: "M9 9h10v11H9zM5 15V4h10",
  lock: "M6 11h12v9H6zM9 11V8a3 3 0 0 1 6 0v3",
  people: "M9 5a3.500 3.500 0 1 0 0 7 3.500 3.500 0 0 0 0-7zM3 20c0-4 3-6 6-6s6 2 6 6M16 5.500a3 3 0 0 1 0 6M18 14c2 .5 3 2.500 3 6",
  book: "M6 4h13v16H6zM6 4v16M10 9h5M10 13h5",
  fork: "M7 5v14M7 13c6 0 10-2 10-6M5 5h4M15 5h4",
  undo: "M9 5L4 10l5 5M4 10h10a5 5 0 0 1 0 10h-3",
  refresh: "M19 8a8 8 0 1 0 1 6M19 3v5h-5",
};

export const Icon = ({ name }) => html`
  <svg class="icon" viewBox="0 0 24 24" aria-hidden="true" focusable="false"><path d=${PATHS[name]} /></svg>
`;

/** Return a ref that is true while the component is mounted. */
export function useIsThere() {
  const isThere = useRef(true);
  useEffect(() => () => {
    isThere.current = false;
  }, []);
  return isThere;
}

/**
 * A button. While the promise of its `onPress` is pending, it ignores clicks but keeps the focus. If the role or key does not
 * permit what it `needs`, it is disabled, with the reason as its title.
 */
export function Button({ icon, label, onPress, kind = "", isIcon, needs, title, children, ...rest }) {
  const [isBusy, setBusy] = useState(false);
  const isAtWork = useRef(false);
  const isThere = useIsThere();
  const refused = refusal(needs);
  const press = async (event) => {
    if (!onPress) return;
    event.preventDefault();
    if (isAtWork.current) return;
    isAtWork.current = true;
    setBusy(true);
    try {
      await onPress();
    } finally {
      isAtWork.current = false;
      if (isThere.current) setBusy(false);
    }
  };
  return html`
    <button
      type=${onPress ? "button" : "submit"}
      class="button ${kind} ${isIcon ? "only-icon" : ""}"
      aria-label=${isIcon ? label : null}
      title=${refused || (title ?? (isIcon ? label : null))}
      disabled=${refused !== ""}
      data-refused=${refused ? "" : null}
      onClick=${press}
      ...${rest}
      aria-busy=${isBusy ? "true" : null}
      aria-disabled=${isBusy ? "true" : rest["aria-disabled"]}
    >
      ${icon && html`<${Icon} name=${icon} />`}${isIcon ? null : html`<span>${children ?? label}</span>`}
    </button>
  `;
}

export const Pill = ({ state: [word, tone] }) => html`<span class="pill status ${tone}">${word}</span>`;

export const Spinner = ({ label = t("Loading") }) => html`<p class="spinner" role="status">${label}</p>`;

/** An error message, with a retry button if there is `onAgain`. An `unreachable` error disappears when the server responds. */
export function Problem({ error, title, onAgain }) {
  const [over, setOver] = useState(null);
  const isUnreachable = error?.status === 0;
  useEffect(() => (isUnreachable ? onAnswer(() => setOver(error)) : undefined), [error]);
  if (!error || over === error) return null;
  return html`
    <div class="problem" role="alert">
      <${Icon} name="warn" />
      <div>
        ${title && html`<strong>${title}</strong>`}
        <p class="pre">${error.message ?? String(error)}</p>
        ${onAgain && html`<${Button} icon="refresh" onPress=${onAgain} label=${t("Try again")} />`}
      </div>
    </div>
  `;
}

const TOLD = "agentsvc-problem";

/** Show an error in a notice over the page, if its component is gone or has no space for it; null closes the notice. */
export const tell = (error) => dispatchEvent(new CustomEvent(TOLD, { detail: error }));

/** The notice with the last error, until it is closed or the route changes. */
export function Told() {
  const [error, setError] = useState(null);
  const route = useRoute();
  // The notice covers the top of the page, and concerns the previous page.
  useEffect(() => setError(null), [route]);
  useEffect(() => {
    const heed = ({ detail }) => setError(detail);
    addEventListener(TOLD, heed);
    return () => removeEventListener(TOLD, heed);
  }, []);
  return error && html`<div class="told"><${Problem} error=${error} title=${error.title ?? t("Not done")} />
    <${Button} kind="bare" icon="cross" isIcon label=${t("Close")} onPress=${() => setError(null)} /></div>`;
}

/** The children, or a note if they cannot be rendered: data from a sandbox may have any form. */
export function Guarded({ children }) {
  const [error] = useErrorBoundary();
  return error ? html`<p class="note"><span>${t("This cannot be shown")}</span></p>` : children;
}

let nextId = 0;

/** A labelled field with an explanation; `children` gets the ids that connect the input to them. */
export function Field({ label, hint, children }) {
  const id = useRef(`field-${(nextId += 1)}`).current;
  return html`
    <div class="field">
      <label for=${id}>${label}</label>
      ${children({ id, "aria-describedby": hint ? `${id}-hint` : null })}
      ${hint && html`<p class="hint" id=${`${id}-hint`}>${hint}</p>`}
    </div>
  `;
}

export const TextField = ({ label, hint, value, onValue, ...rest }) => html`
  <${Field} label=${label} hint=${hint}>
    ${(ids) => html`<input ...${ids} value=${value ?? ""} onInput=${(e) => onValue(e.target.value)} ...${rest} />`}
  <//>
`;

/** A field for a date and time, with a four-digit year: browsers allow six digits by default. */
export const TimeField = (props) => html`<${TextField} type="datetime-local" max="9999-12-31T23:59" ...${props} />`;

export const SelectField = ({ label, hint, value, onValue, options, ...rest }) => html`
  <${Field} label=${label} hint=${hint}>
    ${(ids) => html`
      <select ...${ids} value=${value ?? ""} onChange=${(e) => onValue(e.target.value)} ...${rest}>
        ${options.map(([name, text]) => html`<option value=${name} selected=${name === (value ?? "")}>${text}</option>`)}
      </select>
    `}
  <//>
`;

/** A switch; it shows the new state until the work of `onValue` is done. */
export function Toggle({ label, hint, value, onValue, needs }) {
  const [chosen, setChosen] = useState(null);
  const running = useRef(0);
  const choose = async (event) => {
    setChosen(event.target.checked);
    running.current += 1;
    try {
      await onValue(event.target.checked);
    } finally {
      running.current -= 1;
      if (!running.current) setChosen(null);
    }
  };
  return html`
    <${Field} label=${label} hint=${hint}>
      ${(ids) => html`
        <input ...${ids} type="checkbox" role="switch" class="switch" checked=${chosen ?? !!value} disabled=${refusal(needs) !== ""} onChange=${choose} />
      `}
    <//>
  `;
}

/** A modal dialog; Escape closes it, and the focus returns to the previous element. */
export function Dialog({ title, onClose, children }) {
  const ref = useRef(null);
  const isThere = useRef(true);
  useLayoutEffect(() => {
    const dialog = ref.current;
    dialog.showModal();
    return () => {
      // The close event is dispatched later, when the dialog may have been opened again: ignore it.
      isThere.current = false;
      dialog.close();
    };
  }, []);
  return html`
    <dialog ref=${ref} aria-labelledby="dialog-title" onClose=${() => isThere.current && onClose()}>
      <h2 id="dialog-title">${title}</h2>
      ${children}
    </dialog>
  `;
}

/** A confirmation of an action that cannot be undone; `doing`, for slow actions, is shown while it runs. */
export function Question({ title, text, action, doing, onYes, onClose }) {
  const [error, setError] = useState(null);
  const [isBusy, setBusy] = useState(false);
  const isThere = useIsThere();
  const yes = async () => {
    setError(null);
    setBusy(true);
    try {
      await onYes();
      if (isThere.current) onClose();
    } catch (problem) {
      (isThere.current ? setError : tell)(problem);
      setBusy(false);
    }
  };
  return html`
    <${Dialog} title=${title} onClose=${onClose}>
      <p>${text}</p>
      <${Problem} error=${error} />
      ${doing && isBusy && html`<${Spinner} label=${doing} />`}
      <div class="actions">
        <${Button} onPress=${onClose} label=${t("Cancel")} />
        <${Button} kind="danger" onPress=${yes} label=${action} />
      </div>
    <//>
  `;
}

const COPIED_MS = 1500;
const COPIES = {
  before: ["copy", t("Copy")],
  done: ["check", t("Copied")],
  failed: ["warn", t("Not copied: select the text")],
};

/** Copy a text; return whether that succeeded. Browsers have `navigator.clipboard` in secure contexts only. */
async function copyText(text) {
  const put = (event) => {
    event.clipboardData.setData("text/plain", text);
    event.preventDefault();
  };
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    document.addEventListener("copy", put);
    return document.execCommand("copy");
  } finally {
    document.removeEventListener("copy", put);
  }
}

/** A button that copies a text. */
export function Copy({ text }) {
  const [state, setState] = useState("before");
  const copy = async () => {
    setState((await copyText(text)) ? "done" : "failed");
    setTimeout(() => setState("before"), COPIED_MS);
  };
  const [icon, label] = COPIES[state];
  return html`<${Button} kind="bare" icon=${icon} isIcon label=${label} onPress=${copy} />`;
}

/** A text with a copy button, such as a key that is shown once. */
export const Copyable = ({ text }) => html`<div class="copyable"><code>${text}</code><${Copy} text=${text} /></div>`;

/** A value that is shown once, such as a new key: it is focused, scrolled into view, and read out by screen readers. */
export function Once({ title, text }) {
  const ref = useRef(null);
  useEffect(() => {
    ref.current.focus({ preventScroll: true });
    ref.current.scrollIntoView({ block: "center" });
  }, [text]);
  return html`<div class="success" role="status" tabindex="-1" ref=${ref}><div><strong>${title}</strong><${Copyable} text=${text} /></div></div>`;
}

export const Empty = ({ icon, title, children }) => html`
  <div class="empty"><${Icon} name=${icon} /><h2>${title}</h2><p>${children}</p></div>
`;

/** The header of a page: title, controls, and on phones a back link. */
export const Head = ({ title, back = "#/", children }) => html`
  <header class="head">
    <a class="button only-icon back" href=${back} aria-label=${t("Back")}><${Icon} name="back" /></a>
    <h1>${title}</h1>
    <div class="head-side">${children}</div>
  </header>
`;

/** Return the part of the URL after #, and render the view again when it changes. */
export function useRoute() {
  const [route, setRoute] = useState(location.hash.slice(1) || "/");
  useEffect(() => {
    const change = () => setRoute(location.hash.slice(1) || "/");
    addEventListener("hashchange", change);
    // The route may have changed since the first render.
    change();
    return () => removeEventListener("hashchange", change);
  }, []);
  return route;
}

export const go = (route) => {
  location.hash = route;
};
