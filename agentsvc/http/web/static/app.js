// The application shell: redirect to the login, list of conversations, and the view for the current route.
import { findSettings, get, goToLogin, isAtLogin, logOut, storedLogin, V1 } from "./api.js";
import { AuditPage } from "./audit.js";
import { AttemptsPage, useHasAttempts } from "./attempts.js";
import { useAttention } from "./attention.js";
import { AutomationsPage, useHasAutomations } from "./automations.js";
import { applyTheme } from "./browser.js";
import { ConversationView } from "./conversation.js";
import { ConversationList } from "./conversations.js";
import { EnvironmentsPage, useHasEnvironments } from "./environments.js";
import { html, render, useEffect, useRef, useState } from "./html.js";
import { LoginPage } from "./login.js";
import { findMe, isAdmin, myName, refusal } from "./me.js";
import { Palette } from "./palette.js";
import { UsersPage } from "./people.js";
import { NewConversation, StartProgress } from "./start.js";
import { SandboxesPage } from "./sandboxes.js";
import { SettingsPage } from "./settings.js";
import { SetupPage } from "./setup.js";
import { store, useStore } from "./store.js";
import { Guarded, Icon, Spinner, Problem, Told, go, tell, useRoute } from "./ui.js";
import { t } from "./words.js";

const AGAIN_MS = 3000;

function View({ route, settings, onSettings }) {
  const [path, query] = route.split("?");
  const [, page, id, part] = path.split("/");
  switch (page) {
    case "setup":
      return html`<${SetupPage} settings=${settings} onSettings=${onSettings} />`;
    case "c":
      return html`<${ConversationView} key=${id} id=${id} part=${part ?? ""} words=${new URLSearchParams(query).get("find")} settings=${settings} />`;
    case "start":
      return html`<${StartProgress} key=${id} id=${id} />`;
    case "attempts":
      return html`<${AttemptsPage} key=${route} conversation=${new URLSearchParams(query).get("conversation")} />`;
    case "automations":
      return html`<${AutomationsPage} />`;
    case "environments":
      return html`<${EnvironmentsPage} />`;
    case "sandboxes":
      return html`<${SandboxesPage} />`;
    case "users":
      return html`<${UsersPage} />`;
    case "audit":
      return html`<${AuditPage} />`;
    case "settings":
      return html`<${SettingsPage} section=${id ?? ""} settings=${settings} onSettings=${onSettings} />`;
    default:
      return html`<${NewConversation} settings=${settings} onSettings=${onSettings} />`;
  }
}

/** Return the part of a route that identifies its page; all groups of the settings are one page. */
const placeOf = (route) => route.split(/[/?]/).slice(1, route.startsWith("/settings") ? 2 : 3).join("/");

function Nav({ route }) {
  const current = (name) => (route.startsWith(name) ? "page" : null);
  const hasAttempts = useHasAttempts();
  const hasAutomations = useHasAutomations();
  const hasEnvironments = useHasEnvironments();
  const [error, setError] = useState(null);
  const leave = () => logOut().then(goToLogin, setError);
  return html`
    <${Problem} error=${error} title=${t("Not done")} />
    <nav class="nav" aria-label=${t("Pages")}>
      ${hasAttempts && html`<a href="#/attempts" aria-current=${current("/attempts")}><${Icon} name="fork" />${t("Attempts")}</a>`}
      ${hasAutomations && html`<a href="#/automations" aria-current=${current("/automations")}><${Icon} name="refresh" />${t("Automations")}</a>`}
      ${hasEnvironments && html`<a href="#/environments" aria-current=${current("/environments")}><${Icon} name="box" />${t("Environments")}</a>`}
      <a href="#/sandboxes" aria-current=${current("/sandboxes")}><${Icon} name="box" />${t("Sandboxes")}</a>
      ${isAdmin() && html`<a href="#/users" aria-current=${current("/users")}><${Icon} name="people" />${t("Users")}</a>
        <a href="#/audit" aria-current=${current("/audit")}><${Icon} name="book" />${t("Audit log")}</a>`}
      <a href="#/settings" aria-current=${current("/settings")}><${Icon} name="gear" />${t("Settings")}</a>
      <button type="button" data-key="leave" onClick=${leave} title=${myName() && t("You are {0}", myName())}><${Icon} name="out" />${t("Log out")}</button>
    </nav>
  `;
}

/** Warnings for backends whose sandboxes are less isolated than the default of the backend. */
function IsolationWarning({ protection }) {
  return protection.filter((one) => one.is_below_default).map((one) => html`
    <p class="looking" role="alert" key=${one.backend}><${Icon} name="lock" /><span>
      ${t("Sandboxes of the backend")} <code>${one.backend}</code> ${t("are isolated by")} <code>${one.isolation}</code> ${t("only, not by")} <code>${one.default_isolation}</code>${t(": what agents run there may reach more of the server's machine. {0}{1}", one.reason && t(" Cause: {0}.", one.reason), one.remedy && t(" Remedy: {0}.", one.remedy))}
    </span></p>
  `);
}

function Shell() {
  const route = useRoute();
  const { isConnected } = useStore();
  const [state, setState] = useState({});
  const { isLoaded, settings, protection, error } = state;
  const retry = useRef(null);
  const isTold = useRef(false);
  /** Load what all pages need, and return whether it succeeded; retry automatically if the server is unreachable or fails. */
  const load = async (isRetry = false) => {
    clearTimeout(retry.current);
    try {
      const [settings, protection] = await Promise.all([findSettings(), get(`${V1}/protection`), findMe()]);
      setState({ isLoaded: true, settings, protection });
      store.begin();
      if (isTold.current) tell(null);
      isTold.current = false;
      return true;
    } catch (error) {
      // If the page is loaded already, it stays as it is, with the text typed into it.
      setState((old) => (old.isLoaded ? old : { error }));
      if (isLoaded && !isRetry) {
        isTold.current = true;
        error.title = t("The settings could not be read anew");
        tell(error);
      }
      // The server may be restarting.
      if (error.status === 0 || error.status >= 500) retry.current = setTimeout(load, AGAIN_MS, true);
      return false;
    }
  };
  useEffect(() => {
    load();
  }, []);
  const isSetUp = settings?.llm_model && (settings.llm_api_key_set || settings.llm_base_url);
  useEffect(() => {
    if (isLoaded && !isSetUp && !refusal("run") && ["/", "/new"].includes(route)) go("/setup");
  }, [isLoaded, isSetUp, route]);
  if (error) return html`<main class="alone"><${Problem} error=${error} onAgain=${load} /></main>`;
  if (!isLoaded) return html`<${Spinner} />`;
  const isHome = route === "/";
  return html`
    <a class="skip" href="#main" onClick=${skip}>${t("Skip to the content")}</a>
    <div class="shell ${isHome ? "at-home" : ""}">
      <aside class="side" aria-label=${t("Conversations")}>
        <div class="brand"><span class="logo"><${Icon} name="terminal" /></span>agentsvc</div>
        <${ConversationList} route=${route} />
        <${Nav} route=${route} />
      </aside>
      <${Palette} route=${route} />
      <${Told} />
      ${!route.startsWith("/c/") && html`<${PageTitle} route=${route} />`}
      <main class="main" id="main" tabindex="-1">
        ${!isConnected && html`<p class="offline" role="status">${t("The connection is lost. Trying again")}</p>`}
        <${IsolationWarning} protection=${protection} />
        ${refusal("run") && html`<p class="looking" role="note"><${Icon} name="lock" />${refusal("run")}</p>`}
        <${Guarded} key=${placeOf(route)}><${View} route=${route} settings=${settings} onSettings=${load} /><//>
      </main>
    </div>
  `;
}

const TITLES = { attempts: t("Attempts"), audit: t("Audit log"), automations: t("Automations"), environments: t("Environments"), sandboxes: t("Sandboxes"), settings: t("Settings"), setup: t("Model"), users: t("Users") };

/** Sets the title of all pages except conversations, which set their own. */
function PageTitle({ route }) {
  const name = route.split(/[/?]/)[1] ?? "";
  useAttention(TITLES[name] ?? "");
  return null;
}

function skip(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}

applyTheme();
const root = document.getElementById("app");
if (isAtLogin() || storedLogin()) {
  root.replaceChildren();
  render(isAtLogin() ? html`<${LoginPage} />` : html`<${Shell} />`, root);
} else {
  goToLogin();
}
