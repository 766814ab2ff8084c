// Share links, which show a conversation to anyone who has them: create, copy, revoke; and the conversation as a file.
import { conversationPath, download, get, post, remove, V1 } from "./api.js";
import { html, useState } from "./html.js";
import { useLoaded } from "./store.js";
import { Button, Copyable, Dialog, Problem, SelectField, Spinner, Toggle } from "./ui.js";
import { locale, t } from "./words.js";

const SHARES = `${V1}/shares`;
const DAY_MS = 86_400_000;
const ENDS = [["", t("When it is revoked")], ["1", t("In a day")], ["7", t("In a week")], ["30", t("In 30 days")]];
const REDACTIONS = [["tool_output", t("What tools print")], ["files", t("Contents of files")], ["paths", t("Paths")]];

export function Share({ conversation, onClose }) {
  const links = useLoaded(() => get(SHARES, { conversation_id: conversation.id }), []);
  const [days, setDays] = useState("");
  const [hidden, setHidden] = useState([]);
  const [error, setError] = useState(null);
  const attempt = async (work) => {
    try {
      await work();
      setError(null);
    } catch (problem) {
      setError(problem);
    }
  };
  const change = (work) => attempt(async () => {
    await work();
    await links.again();
  });
  const expires = () => (days ? new Date(Date.now() + days * DAY_MS).toISOString() : null);
  const add = () => change(() => post(SHARES, { conversation_id: conversation.id, expires_at: expires(), redact: hidden }));
  const query = hidden.map((one) => `redact=${one}`).join("&");
  if (links.error?.status === 404) {
    return html`<${Dialog} title=${t("Share")} onClose=${onClose}><p>${t("This server does not share conversations; its operator can set")} <code>sharing.enabled</code>.</p>
      <div class="actions"><${Button} onPress=${onClose} label=${t("Close")} /></div><//>`;
  }
  return html`
    <${Dialog} title=${t("Share")} onClose=${onClose}>
      <p>${t("Anyone with a link can read this conversation without a key, including later messages. Your secrets are not shown.")}</p>
      ${links.isLoading && !links.value && html`<${Spinner} />`}
      ${(links.value ?? []).map((link) => html`
        <div key=${link.id}>
          <${Copyable} text=${link.url} />
          <p class="hint">${link.expires_at ? t("Ends {0}", new Date(link.expires_at).toLocaleString(locale)) : t("Does not end")}${link.redact.length ? t(" · without {0}", link.redact.join(", ").replaceAll("_", " ")) : ""}</p>
          <${Button} kind="danger" icon="trash" needs="run" label=${t("Revoke")} onPress=${() => change(() => remove(`${SHARES}/${link.id}`))} />
        </div>
      `)}
      <${SelectField} label=${t("A link expires")} value=${days} onValue=${setDays} options=${ENDS} />
      ${REDACTIONS.map(([name, label]) => html`
        <${Toggle} label=${t("Hide: {0}", label)} value=${hidden.includes(name)} onValue=${(is) => setHidden((old) => (is ? [...old, name] : old.filter((one) => one !== name)))} />
      `)}
      <${Problem} error=${error ?? links.error} />
      <div class="actions">
        <${Button} onPress=${onClose} label=${t("Close")} />
        <${Button} icon="down" onPress=${() => attempt(() => download(`${conversationPath(conversation.id)}/page?${query}`))} label=${t("Save as a page")} />
        <${Button} kind="primary" icon="link" needs="run" onPress=${add} label=${t("Create a link")} />
      </div>
    <//>
  `;
}
