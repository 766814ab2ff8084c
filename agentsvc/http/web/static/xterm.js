// xterm.js on a page whose content security policy forbids inline styles: styles are set through objects instead.

let loaded = null;

/** Load the library and its style sheet, once. */
export function loadTerminal() {
  loaded ??= (async () => {
    const sheet = document.createElement("link");
    sheet.rel = "stylesheet";
    sheet.href = new URL("vendor/xterm.css", import.meta.url).href;
    document.head.append(sheet);
    return import("./vendor/xterm.js");
  })().catch((error) => {
    loaded = null;
    throw error;
  });
  return loaded;
}

/** Return a substitute for a style element: its text becomes a style sheet that the document adopts. */
function makeStyle() {
  const element = document.createElement("span");
  const sheet = new CSSStyleSheet();
  document.adoptedStyleSheets.push(sheet);
  element.hidden = true;
  Object.defineProperty(element, "textContent", { set: (text) => sheet.replaceSync(text) });
  element.remove = () => {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((one) => one !== sheet);
    Element.prototype.remove.call(element);
  };
  return element;
}

function makeElement(name) {
  if (name === "style") return makeStyle();
  const element = document.createElement(name);
  element.setAttribute = (key, value) => {
    if (key === "style") element.style.cssText = value;
    else Element.prototype.setAttribute.call(element, key, value);
  };
  return element;
}

/** The document, except that the elements it creates accept styles under the policy. */
const documentOverride = new Proxy(document, {
  get(target, name) {
    if (name === "createElement") return makeElement;
    const value = Reflect.get(target, name, target);
    return typeof value === "function" ? value.bind(target) : value;
  },
});

const COLOURS = {
  dark: {
    background: "#101319", foreground: "#e7eaf0", cursor: "#93a4ff", selectionBackground: "#3a4470", black: "#3a4150", brightBlack: "#9aa4b5",
    red: "#ff8f8f", green: "#62d296", yellow: "#f0b763", blue: "#8fa2ff", magenta: "#dd9bff", cyan: "#6fd3dd", white: "#dfe3ea",
  },
  light: {
    background: "#ffffff", foreground: "#191d24", cursor: "#3148d6", selectionBackground: "#c9d0fa", black: "#191d24", brightBlack: "#5a6372",
    red: "#b3202c", green: "#106a3a", yellow: "#8a4b00", blue: "#2338b8", magenta: "#8a1f8f", cyan: "#0b6170", white: "#5a6372",
    brightWhite: "#39414e", brightYellow: "#8a4b00", brightGreen: "#106a3a", brightCyan: "#0b6170",
  },
};

/** Open a terminal that fills an element; return it with a function that closes it. */
export async function openTerminal(element, options, onResize = () => {}) {
  const { Terminal, FitAddon } = await loadTerminal();
  const scheme = getComputedStyle(element).colorScheme;
  const isDark = scheme === "dark" || (scheme !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
  const terminal = new Terminal({
    documentOverride, convertEol: true, fontSize: 13, scrollback: 20_000, screenReaderMode: true,
    fontFamily: getComputedStyle(document.documentElement).getPropertyValue("--mono"), theme: COLOURS[isDark ? "dark" : "light"], ...options,
  });
  const fit = new FitAddon();
  terminal.loadAddon(fit);
  terminal.open(element);
  fit.fit();
  let frame = 0;
  // In a separate frame, because fitting may resize the observed element.
  const observer = new ResizeObserver(() => {
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(() => {
      fit.fit();
      onResize(terminal.cols, terminal.rows);
    });
  });
  observer.observe(element);
  const close = () => {
    observer.disconnect();
    cancelAnimationFrame(frame);
    terminal.dispose();
  };
  return { terminal, close };
}

