// What this browser shows, and how: kept here, not on the server.
import { keep, kept } from "./api.js";
import { html, useState } from "./html.js";
import { SelectField, Toggle } from "./ui.js";

/** Show the page in the light or dark that was chosen, or in that of the system. */
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
    <section class="card group"><h2>This browser</h2><p class="hint">Kept here until you log out.</p>
      <${SelectField} label="Colours" value=${kept("theme") ?? ""} onValue=${change(setTheme)} options=${[["", "As the system"], ["light", "Light"], ["dark", "Dark"]]} />
      <${Toggle} label="Notifications" hint="When an agent asks for your confirmation while you look elsewhere. They make no sound." value=${kept("notify") === true} onValue=${change(notify)} />
    </section>
  `;
}
