// A text field with suggestions, chosen by mouse or keyboard; any other text is allowed, too.
import { html, useEffect, useRef, useState } from "./html.js";
import { Field } from "./ui.js";
import { t } from "./words.js";

const WAIT_MS = 300;

/**
 * A text field with suggestions. `find` gets the typed text, once it has not changed for a moment, and resolves to suggestions
 * {name, detail}. It is called when the field gets the focus, and again when one of `keys` changes.
 */
export function Picker({ label, hint, value, onValue, find, keys = [], placeholder }) {
  const [isOpen, setOpen] = useState(false);
  const [at, setAt] = useState(-1);
  const [state, setState] = useState({ found: [] });
  const box = useRef(null);
  const isTyped = useRef(false);
  const query = isTyped.current ? value.trim() : "";
  useEffect(() => {
    if (!isOpen || !find) return undefined;
    let isCurrent = true;
    setState((old) => ({ ...old, isLoading: true }));
    const timer = setTimeout(async () => {
      // Suggestions are optional: the field still works if they cannot be loaded.
      const next = await find(query).then((found) => ({ found }), (error) => ({ found: [], error }));
      if (isCurrent) setState(next);
    }, query ? WAIT_MS : 0);
    return () => {
      isCurrent = false;
      clearTimeout(timer);
    };
  }, [isOpen, query, ...keys]);
  useEffect(() => {
    if (at >= 0) box.current.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" });
  }, [at]);
  const { found } = state;
  const open = () => {
    isTyped.current = false;
    setAt(-1);
    setOpen(true);
  };
  const choose = (one) => {
    onValue(one.name);
    setOpen(false);
  };
  const onInput = (event) => {
    isTyped.current = true;
    setAt(-1);
    setOpen(true);
    onValue(event.target.value);
  };
  const onKey = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && !isOpen) open();
    else if (step) setAt((old) => (old + step + found.length + (old < 0 && step < 0 ? 1 : 0)) % Math.max(found.length, 1));
    else if (event.key === "Enter" && isOpen && found[at]) choose(found[at]);
    else if (event.key === "Escape" && isOpen) setOpen(false);
    else return;
    event.preventDefault();
  };
  return html`
    <${Field} label=${label} hint=${hint}>${({ id, ...ids }) => html`
      <div class="picker" ref=${box} onFocusOut=${(event) => !box.current.contains(event.relatedTarget) && setOpen(false)}>
        <input id=${id} ...${ids} value=${value} placeholder=${placeholder} autocomplete="off" spellcheck="false" role="combobox" aria-expanded=${String(isOpen && Boolean(find))}
          aria-controls="${id}-list" aria-activedescendant=${isOpen && found[at] ? `${id}-${at}` : null} onFocus=${open} onClick=${() => isOpen || open()} onInput=${onInput} onKeyDown=${onKey} />
        ${isOpen && find && html`<ul class="picker-list" id="${id}-list" role="listbox" aria-label=${label}>
          ${found.map((one, i) => html`<li key=${one.name} id="${id}-${i}" role="option" aria-selected=${String(i === at)} onMouseDown=${(event) => event.preventDefault()} onClick=${() => choose(one)}>
            <span class="cut">${one.name}</span>${one.detail && html`<span class="hint">${one.detail}</span>`}</li>`)}
          ${!found.length && html`<li class="hint" role="option" aria-selected="false" aria-disabled="true">${state.isLoading ? t("Loading") : (state.error?.message ?? t("No match; your text is used as it is"))}</li>`}
        </ul>`}
      </div>`}<//>
  `;
}
