// The model of an agent, and its confirmation mode.
import { agentPath, conversationPath, get, post, V1 } from "./api.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { refusal } from "./me.js";
import { useLoaded } from "./store.js";
import { t } from "./words.js";

/** Confirmation policies of the agent server, with labels. */
const MODES = [
  ["NeverConfirm", t("Works on its own")],
  ["ConfirmRisky", t("Asks about risky steps")],
  ["AlwaysConfirm", t("Asks before each step")],
];

export const modelName = (model) => (model ?? "").split("/").at(-1);

/** Return the saved models, and the name of the active one. */
export function useProfiles() {
  const { value } = useLoaded(() => get(`${V1}/settings/profiles`));
  return { profiles: value?.profiles ?? [], active: value?.active_profile ?? "" };
}

/** Return a value, a setter for its actual state, and `choose`: the choice is shown while its work runs, reverted on failure. */
function useChoice(first, attempt) {
  const [value, setValue] = useState(first);
  const known = useRef(first);
  const running = useRef(0);
  const know = (next) => {
    known.current = next;
    if (!running.current) setValue(next);
  };
  const choose = async (next, work) => {
    setValue(next);
    running.current += 1;
    const isDone = await attempt(work);
    running.current -= 1;
    know(isDone ? next : known.current);
  };
  return [value, know, choose];
}

/** Menus for the model and the confirmation mode of a conversation whose sandbox runs. */
export function RunWith({ conversation, run, attempt }) {
  const { profiles } = useProfiles();
  const [chosen, , chooseModel] = useChoice("", attempt);
  const [mode, knowMode, chooseMode] = useChoice(null, attempt);
  const isUp = conversation.sandbox_status === "RUNNING" && !refusal("run");
  useEffect(() => {
    if (isUp) get(agentPath(conversation)).then((info) => knowMode(info.confirmation_policy?.kind ?? null), () => {});
  }, [conversation.id, isUp]);
  if (!isUp) return null;
  const toModel = (name) => chooseModel(name, () => post(`${conversationPath(conversation.id)}/switch_profile`, { profile_name: name }));
  const toMode = (kind) => chooseMode(kind, async () => {
    if (kind === "ConfirmRisky") await post(`${agentPath(conversation)}/security_analyzer`, { security_analyzer: { kind: "LLMSecurityAnalyzer" } });
    await post(`${agentPath(conversation)}/confirmation_policy`, { policy: { kind } });
  });
  return html`
    <select class="quiet-select" aria-label=${t("Model")} value=${chosen} disabled=${!profiles.length} title=${profiles.length ? t("From the next step on") : t("Save models by name in the settings to change between them here")}
      onChange=${(event) => event.target.value && toModel(event.target.value)}>
      ${!chosen && html`<option value="">${modelName(conversation.llm_model) || t("Model")}</option>`}
      ${profiles.map(({ name, model }) => html`<option value=${name}>${name}${model ? ` (${modelName(model)})` : ""}</option>`)}
    </select>
    ${mode && html`<select class="quiet-select" aria-label=${t("Mode")} value=${mode} disabled=${run === "waiting_for_confirmation"} onChange=${(event) => toMode(event.target.value)}>
      ${MODES.map(([kind, label]) => html`<option value=${kind}>${label}</option>`)}
    </select>`}
  `;
}
