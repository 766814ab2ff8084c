// Conversations that need the user: first in the list, in the title and icon of the page, and, if allowed, as notifications.
import { kept } from "./api.js";
import { useEffect, useRef } from "./html.js";
import { useStore } from "./store.js";
import { t } from "./words.js";

/** Whether a conversation waits for its user's confirmation. */
export const needsYou = ({ execution_status, sandbox_status }) => sandbox_status === "RUNNING" && execution_status === "waiting_for_confirmation";

const ICON = document.querySelector("link[rel=icon]");
const QUIET = ICON?.href;
const LOUD = QUIET?.replace("icon.svg", "icon-attention.svg");

function notify({ id, title }) {
  try {
    const shown = new Notification(t("The agent asks for your confirmation"), { body: title ?? "", tag: id, silent: true });
    shown.onclick = () => {
      window.focus();
      location.hash = `/c/${id}`;
    };
  } catch {
    // Mobile browsers grant the permission, but do not let a page create a notification.
  }
}

/** Update title and icon of the page, and notify the user of conversations that start to wait while the page is hidden. */
export function useAttention(title) {
  const { conversations, isLoaded } = useStore();
  const told = useRef(null);
  const waiting = [...conversations.values()].filter(needsYou);
  const ids = waiting.map(({ id }) => id).join();
  useEffect(() => {
    document.title = `${waiting.length ? `(${waiting.length}) ` : ""}${title ? `${title} · ` : ""}agentsvc`;
    const href = waiting.length ? LOUD : QUIET;
    if (ICON && ICON.href !== href) ICON.href = href;
  }, [ids, title]);
  useEffect(() => {
    if (!isLoaded) return;
    const known = told.current ?? new Set(ids.split(","));
    told.current = new Set(ids.split(","));
    const isWanted = kept("notify") && document.hidden && globalThis.Notification?.permission === "granted";
    for (const one of isWanted ? waiting : []) {
      if (known.has(one.id)) continue;
      notify(one);
    }
  }, [ids, isLoaded]);
  return waiting;
}
