// Display settings of this browser, stored in it and not on the server.
import { keep, kept } from "./api.js";
import { html, useState } from "./html.js";
import { SelectField, Toggle } from "./ui.js";
import { LANGUAGES, chosenLanguage, setLanguage, t } from "./words.js";

/** Apply the chosen colour scheme, or that of the system. */
export function applyTheme() {
  document.documentElement.style.colorScheme = kept("theme") ?? "";
}

export function setTheme(theme) {
  keep("theme", theme || null);
  applyTheme();
}

export function BrowserSection() {
  const [, redraw] = useState(0);
  const change = (work) => async (value) => {
    await work(value);
    redraw((turn) => turn + 1);
  };
  const notify = async (isOn) => {
    const may = isOn && globalThis.Notification && (await Notification.requestPermission()) === "granted";
    keep("notify", may || null);
  };
  return html`
    <section class="card group"><h2>${t("This browser")}</h2><p class="hint">${t("Stored in this browser until you log out; the language is kept after that.")}</p>
      <${SelectField} label=${t("Colours")} value=${kept("theme") ?? ""} onValue=${change(setTheme)} options=${[["", t("As the system")], ["light", t("Light")], ["dark", t("Dark")]]} />
      <${SelectField} label=${t("Language")} value=${chosenLanguage()} onValue=${setLanguage} options=${[["", t("As the browser")], ...Object.entries(LANGUAGES)]} />
      <${Toggle} label=${t("Notifications")} hint=${t("When an agent asks for your confirmation while you look elsewhere. They make no sound.")} value=${kept("notify") === true} onValue=${change(notify)} />
    </section>
  `;
}
