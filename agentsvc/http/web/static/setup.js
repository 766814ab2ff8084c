// The first-run page: choice of the model, and a test call that shows whether it responds.
import { get, post, V1 } from "./api.js";
import { html, useState } from "./html.js";
import { isAdmin } from "./me.js";
import { useLoaded } from "./store.js";
import { Button, Head, Icon, Problem, Spinner, TextField } from "./ui.js";
import { t } from "./words.js";

export function SetupPage({ settings, onSettings }) {
  const [form, setForm] = useState({ model: settings?.llm_model ?? "", key: "", url: settings?.llm_base_url ?? "" });
  const [state, setState] = useState({});
  const models = useLoaded(() => get(`${V1}/config/models/search`, { verified__eq: true, limit: 100 }));
  const change = (name) => (value) => setForm((old) => ({ ...old, [name]: value }));
  const save = async () => {
    const body = { llm_model: form.model.trim(), llm_base_url: form.url.trim() };
    if (form.key.trim()) body.llm_api_key = form.key.trim();
    await post(`${V1}/settings`, body);
    await onSettings();
  };
  const test = async () => {
    if (!form.model.trim()) return setState({ error: new Error(t("Name a model.")) });
    setState({ isAsked: true });
    try {
      await save();
      setState({ found: await post(`${V1}/settings/test-model`) });
    } catch (error) {
      setState({ error });
    }
  };
  const isFirst = !settings?.llm_model;
  return html`
    <${Head} title=${isFirst ? t("Welcome") : t("Model")} back=${isFirst ? "#/" : "#/settings"} />
    <div class="page narrow">
      <p class="lead">${t("Which language model should the agents use?")}</p>
      <form class="card" onSubmit=${(event) => event.preventDefault()}>
        <${TextField} label=${t("Model")} hint=${t("Provider and name, as LiteLLM writes them.")} value=${form.model} onValue=${change("model")}
          placeholder="anthropic/claude-sonnet-4-5" list="models" autocomplete="off" spellcheck="false" />
        <datalist id="models">${(models.value?.items ?? []).map((one) => html`<option value=${one.provider ? `${one.provider}/${one.name}` : one.name} />`)}</datalist>
        <${TextField} label=${t("API key")} type="password" value=${form.key} onValue=${change("key")} autocomplete="off"
          placeholder=${settings?.llm_api_key_set ? t("Stored; leave it empty to keep it") : ""}
          hint=${t("Stored encrypted on this server and never shown again. A model on your own server may need no key.")} />
        <${TextField} label=${t("Base URL")} type="url" value=${form.url} onValue=${change("url")} placeholder="https://"
          hint=${t("Only for your own server or a proxy; empty: the provider's URL.")} />
        <div class="actions">
          <${Button} kind="primary" icon="check" needs="run" onPress=${test} label=${t("Save and test")} />
        </div>
      </form>
      ${state.isAsked && html`<${Spinner} label=${t("The model is asked")} />`}
      <${Problem} error=${state.error} />
      ${state.found && html`<${Found} found=${state.found} onAgain=${test} />`}
    </div>
  `;
}

/** The result of the test call. A model that this server cannot test may work nevertheless. */
function Found({ found: { outcome, message, said, host }, onAgain }) {
  const [error, setError] = useState(null);
  const allow = () => post(`${V1}/model-hosts`, { host }).then(onAgain, setError);
  const begin = html`<a class="button primary" href="#/new">${t("Start a conversation")}</a>`;
  if (outcome === "answers") {
    return html`<div class="success" role="status"><${Icon} name="check" /><div><strong>${message}</strong>${begin}</div></div>`;
  }
  if (host && isAdmin()) {
    return html`<div class="card" role="status"><p><strong>${t("The model is on your own network.")}</strong> ${t("Once you allow it, this server and the agents of all users can connect to it.")}</p>
      <${Problem} error=${error} /><div class="actions"><${Button} kind="primary" icon="check" needs="admin" onPress=${allow} label=${t("Allow {0}", host)} /></div></div>`;
  }
  if (outcome === "untested") {
    return html`<div class="card" role="status"><p><strong>${t("The settings are saved, and the model was not tested.")}</strong></p><p>${message}</p><div class="actions">${begin}</div></div>`;
  }
  return html`
    <${Problem} title=${t("The test failed")} error=${{ message }} />
    ${said && html`<details class="card"><summary>${t("What was said")}</summary><pre>${said}</pre></details>`}
  `;
}
