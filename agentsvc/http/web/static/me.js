// Who is logged in, and what the role and the key they logged in with allow.
import { get, keepFor } from "./api.js";
import { t } from "./words.js";

let me = { role: "viewer", scope: "read", name: "", id: "" };

/** Ask the server who this is; everything else counts on it. */
export async function findMe() {
  const { role, scope, user_name, user_id } = await get("api/keys/current");
  me = { role, scope, name: user_name, id: user_id.replace(/-/g, "") };
  keepFor(me.id);
  return me;
}

export const myId = () => me.id;
export const myName = () => me.name;
export const isAdmin = () => me.role === "admin";

/** Return why something is refused that needs `run`, `manage` or `admin`, or an empty text if it is not. */
export function refusal(needs) {
  if (!needs) return "";
  if (needs === "admin" && !isAdmin()) return t("This is for administrators.");
  if (me.role === "viewer") return t("You can read everything that is yours but cannot change it: your role is viewer.");
  if (me.scope === "read") return t("You can read but not change anything: you logged in with a read-only key.");
  if (needs !== "run" && me.scope === "run") return t("You logged in with a key that cannot manage keys, logins and users.");
  return "";
}
