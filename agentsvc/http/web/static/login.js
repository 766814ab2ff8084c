// The login page: with an API key, with a link, or through a provider, which redirects the browser back here. It shows the
// user of the link, and the user who is logged in.
import { BASE, call, goBack, logIn, logOut, post, storedLogin, V1 } from "./api.js";
import { html, useState } from "./html.js";
import { useLoaded } from "./store.js";
import { Button, Problem, Spinner, TextField } from "./ui.js";
import { t } from "./words.js";

const given = new URLSearchParams(location.search);
const token = given.get("token") ?? "";
const invitation = given.get("invitation") ?? undefined;

/** Key of the binding of a started sign-in in sessionStorage: a sign-in started elsewhere cannot be completed in this tab. */
const BEGUN = `agentsvc-sign-in ${BASE.pathname}`;

/** Redirect to a provider, which redirects the browser back to this page. */
async function goTo(provider) {
  const { url, binding } = await post(`${V1}/sign-in/attempts`, { provider, invitation });
  sessionStorage.setItem(BEGUN, binding);
  location.assign(url);
}

/** Complete a sign-in if a provider has redirected the browser back here. */
async function comeBack(current) {
  const state = given.get("state");
  if (!state) return;
  const binding = sessionStorage.getItem(BEGUN) ?? "";
  sessionStorage.removeItem(BEGUN);
  history.replaceState(null, "", "login");
  const refused = given.get("error");
  if (refused) throw new Error(t("The provider has not signed you in: {0}", given.get("error_description") ?? refused));
  if (!binding) throw new Error(t("This sign-in was not begun in this tab; begin it anew"));
  await begin({ state, code: given.get("code") ?? "", binding, iss: given.get("iss") }, current, `${V1}/sign-in`);
}

/** Return the name of the user who is logged in, or "". */
async function findCurrent() {
  if (!storedLogin()) return "";
  try {
    return (await call("GET", "api/keys/current")).user_name;
  } catch (error) {
    if (error.status === 401) return "";
    throw error;
  }
}

/** Log in, after logging out the current user if there is one, and return to the page that required the login. */
async function begin(order, current, path) {
  if (current) await logOut();
  await logIn(order, path);
  goBack();
}

export function LoginPage() {
  const known = useLoaded(async () => {
    const current = await findCurrent();
    await comeBack(current);
    const linked = token && (await post(`${V1}/logins/link`, { token })).user_name;
    return { current, linked };
  });
  const [error, setError] = useState(null);
  const providers = useLoaded(() => call("GET", `${V1}/logins/providers`));
  const { current, linked } = known.value ?? {};
  const act = (order, path) => async () => {
    setError(null);
    try {
      await begin(order, current, path);
    } catch (problem) {
      setError(problem);
    }
  };
  const signIn = ({ name }) => (name ? () => goTo(name).catch(setError) : act({ invitation }, `${V1}/sign-in/proxy`));
  return html`
    <main class="alone">
      <h1>${t("Log in")}</h1>
      <${Problem} error=${error ?? known.error} />
      ${known.isLoading && html`<${Spinner} />`}
      ${current && storedLogin() && html`<p role="note">${t("This browser is logged in as")} <strong>${current}</strong>. <a href=${BASE.href}>${t("Stay logged in")}</a></p>`}
      ${known.value && (linked ? html`<${ByLink} name=${linked} current=${current} onLogin=${act({ token })} />` : html`<${ByKey} current=${current} act=${act} />`)}
      ${!linked && providers.value?.map((one) => html`<div class="actions"><${Button} kind="primary" onPress=${signIn(one)} label=${t("Sign in with {0}", one.title)} /></div>`)}
      ${known.error && html`<p><a href="login">${t("Log in with an API key")}</a></p>`}
    </main>
  `;
}

const ByLink = ({ name, current, onLogin }) => html`
  <p>${t("The link logs this browser in as")} <strong>${name}</strong>${t(", once. After that you act as {0}, who owns everything you enter.", name)}</p>
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
    <p class="hint">${t("The server printed the first key at its first start, or the file that contains it;")} <code>agentsvc keys create</code> ${t("creates more keys.")}</p>
  `;
}
