// Checkpoints of a conversation's files, one before each message to an idle agent, and restoring them.
import { conversationPath, get, post } from "./api.js";
import { moment } from "./format.js";
import { useMemo, html } from "./html.js";
import { useLoaded } from "./store.js";
import { Question } from "./ui.js";
import { t } from "./words.js";

const MAX_WORDS = 80;

/** Return a map from the keys of messages to the checkpoints that were created before them. */
export function useCheckpoints({ id, sandbox_id }, timeline, run) {
  const said = timeline.items.filter(({ type }) => type === "user");
  const kept = useLoaded(async () => (sandbox_id ? (await get(`${conversationPath(id)}/checkpoints`)).items : []), [id, sandbox_id, said.length, run]);
  return useMemo(() => byMessage(said, kept.value ?? []), [kept.value, said.length]);
}

/** Map each message to the newest checkpoint since the previous message; a message to a working agent has none. */
function byMessage(said, newestFirst) {
  const found = new Map();
  let from = -Infinity;
  for (const { key, at } of said) {
    const until = Date.parse(at);
    const one = newestFirst.find(({ created_at }) => Date.parse(created_at) > from && Date.parse(created_at) <= until);
    if (one) found.set(key, one);
    from = until;
  }
  return found;
}

/** Ask for confirmation, and restore the files of a checkpoint. */
export const PutBack = ({ conversation, item, checkpoint, onClose }) => html`
  <${Question} title=${t("Put the files back?")} action=${t("Put files back")} doing=${t("Putting the files back")} onClose=${onClose}
    text=${t("Restores workspace and home to their state of {0}, before “{1}”. Later changes are lost, including commits, and processes in the sandbox end. The conversation stays, and the agent is told.", moment(checkpoint.created_at), cut(item.text))}
    onYes=${() => post(`${conversationPath(conversation.id)}/rollback`, { checkpoint_id: checkpoint.id })} />
`;

const cut = (text) => (text.length > MAX_WORDS ? `${text.slice(0, MAX_WORDS)}…` : text);
