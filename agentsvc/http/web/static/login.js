// The page on which a browser logs in, with an API key or with a link. It says whose the link is, and who is logged in.
import { BASE, call, logIn, logOut, post, storedLogin, V1 } from "./api.js";
import { html, useState } from "./html.js";
import { useLoaded } from "./store.js";
import { Button, Problem, Spinner, TextField } from "./ui.js";
import { t } from "./words.js";

const token = new URLSearchParams(location.search).get("token") ?? "";

/** Return the name of who is logged in here, or an empty text. */
async function findCurrent() {
  if (!storedLogin()) return "";
  try {
    return (await call("GET", "api/keys/current")).user_name;
  } catch (error) {
    if (error.status === 401) return "";
    throw error;
  }
}

/** Begin a login instead of the one that there may be. */
async function begin(order, current) {
  if (current) await logOut();
  await logIn(order);
  location.replace(BASE.href);
}

export function LoginPage() {
  const known = useLoaded(async () => {
    const current = await findCurrent();
    const linked = token && (await post(`${V1}/logins/link`, { token })).user_name;
    return { current, linked };
  });
  const [error, setError] = useState(null);
  const { current, linked } = known.value ?? {};
  const act = (order) => async () => {
    setError(null);
    try {
      await begin(order, current);
    } catch (problem) {
      setError(problem);
    }
  };
  return html`
    <main class="alone">
      <h1>${t("Log in")}</h1>
      <${Problem} error=${error ?? known.error} />
      ${known.isLoading && html`<${Spinner} />`}
      ${current && html`<p role="note">${t("This browser is logged in as")} <strong>${current}</strong>. <a href=${BASE.href}>${t("Stay logged in")}</a></p>`}
      ${known.value && (linked ? html`<${ByLink} name=${linked} current=${current} onLogin=${act({ token })} />` : html`<${ByKey} current=${current} act=${act} />`)}
      ${known.error && token && html`<p><a href="login">${t("Log in with an API key")}</a></p>`}
    </main>
  `;
}

const ByLink = ({ name, current, onLogin }) => html`
  <p>${t("The link logs this browser in as")} <strong>${name}</strong>${t(", once. What you do here then is done as {0}, and what you enter is theirs.", name)}</p>
  <div class="actions"><${Button} kind="primary" onPress=${onLogin} label=${current ? t("Log {0} out and log in as {1}", current, name) : t("Log in as {0}", name)} /></div>
`;

function ByKey({ current, act }) {
  const [key, setKey] = useState("");
  const submit = (event) => {
    event.preventDefault();
    act({ api_key: key.trim() })();
  };
  return html`
    <form onSubmit=${submit}>
      <${TextField} label=${t("Your API key")} type="password" required autocomplete="off" value=${key} onValue=${setKey} />
      <div class="actions"><${Button} kind="primary" label=${current ? t("Log in as somebody else") : t("Log in")} /></div>
    </form>
    <p class="hint">${t("The first start of the server showed the first key, or says in which file it is;")} <code>agentsvc keys create</code> ${t("makes more.")}</p>
  `;
}
