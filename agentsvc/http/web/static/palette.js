// The command palette, and the keyboard shortcuts.
import { setTheme } from "./browser.js";
import { html, useLayoutEffect, useMemo, useRef, useState } from "./html.js";
import { isAdmin } from "./me.js";
import { useStore } from "./store.js";
import { Dialog, go } from "./ui.js";
import { t } from "./words.js";

const MAX = 12;
const KEYS = [
  ["Ctrl+K", t("Find an action or a conversation")],
  ["N", t("New conversation")],
  ["/", t("Search the conversations")],
  ["F", t("Find in this conversation")],
  ["M", t("Write a message")],
  ["A", t("Confirm what the agent asks for")],
  ["R", t("Reject it, with a reason")],
  ["?", t("These keys")],
];

/** Labels of the buttons in the header of a conversation. */
const HEAD_ACTIONS = [t("Find"), t("Pin"), t("Archive"), t("Rename"), t("Fork"), t("Download"), t("Delete")];

const isTyping = ({ target }) => target.closest?.("input, textarea, select, [contenteditable], dialog, .xterm");

/** Click a button or link, or focus another element. Selectors name the tag, because events have a `data-key`, too. */
function press(selector) {
  const found = document.querySelector(selector);
  if (!found) return;
  if (found.matches("button, a")) found.click();
  else found.focus();
}

function actionsOf(route, conversations) {
  const [, page, id] = route.split("/");
  const parts = page === "c" ? [[t("Conversation"), ""], [t("Changes"), "/changes"], [t("Files"), "/files"], [t("Terminal"), "/terminal"], [t("Ports"), "/ports"]] : [];
  return [
    [t("New conversation"), () => go("/new")],
    ...(page === "c" ? HEAD_ACTIONS.map((name) => [t("This conversation: {0}", name.toLowerCase()), () => press(`.head-side [aria-label="${name}"]`)]) : []),
    ...parts.map(([name, part]) => [t("Show: {0}", name), () => go(`/c/${id}${part}`)]),
    // Optional features of a server: listed only if the navigation has them.
    ...[[t("Attempts"), "/attempts"], [t("Automations"), "/automations"], [t("Environments"), "/environments"]]
      .filter(([, path]) => document.querySelector(`.nav a[href="#${path}"]`)).map(([name, path]) => [name, () => go(path)]),
    [t("Sandboxes"), () => go("/sandboxes")],
    [t("Settings"), () => go("/settings")],
    [t("Settings: secrets"), () => go("/settings/secrets")],
    [t("Settings: API keys"), () => go("/settings/keys")],
    [t("Settings: usage"), () => go("/settings/usage")],
    [t("Settings: this browser"), () => go("/settings/browser")],
    ...(isAdmin() ? [[t("Users"), () => go("/users")], [t("Audit log"), () => go("/audit")]] : []),
    [t("Colours: light"), () => setTheme("light")],
    [t("Colours: dark"), () => setTheme("dark")],
    [t("Colours: as the system"), () => setTheme("")],
    [t("Log out"), () => press("button[data-key=leave]")],
    ...conversations.map((one) => [one.title || t("Untitled"), () => go(`/c/${one.id}`), t("Conversation")]),
  ].map(([name, act, kind = t("Action")]) => ({ name, act, kind }));
}

export function Palette({ route }) {
  const [open, setOpen] = useState("");
  // Not useEffect, which runs after the paint: shortcuts must work as soon as the page is visible.
  useLayoutEffect(() => {
    const onKey = (event) => {
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
        event.preventDefault();
        return setOpen((old) => (old ? "" : "actions"));
      }
      // Ignore a key that is held down: the user has not read the next confirmation yet.
      if (event.repeat || event.ctrlKey || event.metaKey || event.altKey || isTyping(event)) return;
      const what = { "?": () => setOpen("keys"), n: () => go("/new"), "/": () => press("input[data-key=search]"), f: () => press("button[data-key=find]"),
        m: () => press("textarea[data-key=message]"), a: () => press("button[data-key=confirm]"), r: () => press("input[data-key=reason]") }[event.key];
      if (!what) return;
      event.preventDefault();
      what();
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
  const close = () => setOpen("");
  if (open === "keys") {
    return html`<${Dialog} title=${t("Keyboard shortcuts")} onClose=${close}>
      <dl class="keys">${KEYS.map(([key, what]) => html`<div><dt><kbd>${key}</kbd></dt><dd>${what}</dd></div>`)}</dl><//>`;
  }
  return open && html`<${Actions} route=${route} onClose=${close} />`;
}

function Actions({ route, onClose }) {
  const { conversations } = useStore();
  const [words, setWords] = useState("");
  const [at, setAt] = useState(0);
  const field = useRef(null);
  useLayoutEffect(() => field.current.focus(), []);
  const all = useMemo(() => actionsOf(route, [...conversations.values()]), [route, conversations]);
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  const found = all.filter(({ name }) => wanted.every((word) => name.toLowerCase().includes(word))).slice(0, MAX);
  const choose = (one) => {
    if (!one) return;
    onClose();
    one.act();
  };
  const onKey = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) setAt((old) => (old + step + found.length) % Math.max(found.length, 1));
    else if (event.key === "Enter") choose(found[at]);
    else return;
    event.preventDefault();
  };
  return html`
    <${Dialog} title=${t("Find an action or a conversation")} onClose=${onClose}>
      <input ref=${field} role="combobox" aria-expanded="true" aria-controls="palette" aria-label=${t("What to do")} aria-activedescendant=${found[at] ? `palette-${at}` : null}
        value=${words} onInput=${(event) => { setWords(event.target.value); setAt(0); }} onKeyDown=${onKey} autocomplete="off" />
      <ul class="palette" id="palette" role="listbox" aria-label=${t("Found")}>
        ${found.map((one, i) => html`<li key=${i} id=${`palette-${i}`} role="option" aria-selected=${String(i === at)} onClick=${() => choose(one)}><span class="cut">${one.name}</span> <span class="hint">${one.kind}</span></li>`)}
      </ul>
      ${!found.length && html`<p class="none">${t("No action or conversation matches.")}</p>`}
    <//>
  `;
}
