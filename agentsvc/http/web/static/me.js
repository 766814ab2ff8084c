// The user who is logged in, and the permissions of the user's role and of the key used to log in.
import { get, keepFor } from "./api.js";
import { t } from "./words.js";

let me = { role: "viewer", scope: "read", name: "", id: "" };

/** Load the current user, on which all permission checks depend. */
export async function findMe() {
  const { role, scope, user_name, user_id } = await get("api/keys/current");
  me = { role, scope, name: user_name, id: user_id.replace(/-/g, "") };
  keepFor(me.id);
  return me;
}

export const myId = () => me.id;
export const myName = () => me.name;
export const isAdmin = () => me.role === "admin";

/** Return why an action that needs `run`, `manage` or `admin` is not permitted, or "" if it is. */
export function refusal(needs) {
  if (!needs) return "";
  if (needs === "admin" && !isAdmin()) return t("This is for administrators.");
  if (me.role === "viewer") return t("You can read everything that is yours but cannot change it: your role is viewer.");
  if (me.scope === "read") return t("You can read but not change anything: you logged in with a read-only key.");
  if (needs !== "run" && me.scope === "run") return t("You logged in with a key that cannot manage keys, logins and users.");
  return "";
}
