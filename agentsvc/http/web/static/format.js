// Formatting of times, money, sizes and states.
import { language, locale, t } from "./words.js";

const UNITS = [
  ["year", 31_557_600],
  ["month", 2_629_800],
  ["day", 86400],
  ["hour", 3600],
  ["minute", 60],
];
const relative = new Intl.RelativeTimeFormat(locale, { numeric: "always", style: language === "en" ? "narrow" : "short" });
const exact = new Intl.DateTimeFormat(locale, { dateStyle: "medium", timeStyle: "short" });

/** Return a time relative to now. */
export function ago(text, now = Date.now()) {
  if (!text) return "";
  const seconds = (now - Date.parse(text)) / 1000;
  for (const [unit, length] of UNITS) {
    if (Math.abs(seconds) >= length) return relative.format(-Math.round(seconds / length), unit);
  }
  return t("now");
}

const time = new Intl.DateTimeFormat(locale, { timeStyle: "medium" });

/** Format a time; return a text that the browser cannot parse unchanged. */
const written = (format, text) => (Number.isNaN(Date.parse(text)) ? text : format.format(new Date(text)));

/** Return the time of day, with seconds. */
export const clock = (text) => written(time, text);

export const moment = (text) => (text ? written(exact, text) : "");

export function money(amount) {
  if (amount == null) return "";
  return `$${amount.toFixed(amount > 0 && amount < 0.1 ? 4 : 2)}`;
}

export function count(number) {
  if (number < 1000) return String(number);
  return number < 1e6 ? `${(number / 1e3).toFixed(1)}k` : `${(number / 1e6).toFixed(1)}M`;
}

/** Return a size with a binary unit, such as "12 MiB". */
export function bytes(size) {
  const power = Math.min(Math.floor(Math.log2(Math.max(size, 1)) / 10), 4);
  return `${(size / 1024 ** power).toFixed(power > 2 ? 1 : 0)} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}

/** Return a duration in seconds, minutes or hours. */
export function span(seconds) {
  const whole = Math.round(seconds);
  if (whole < 120) return `${whole} s`;
  return whole < 7200 ? t("{0} min", Math.round(whole / 60)) : `${(whole / 3600).toFixed(1)} h`;
}

export const STAGES = [
  ["WORKING", t("Accepted")],
  ["WAITING_FOR_SANDBOX", t("Start the sandbox")],
  ["PREPARING_REPOSITORY", t("Prepare the repository")],
  ["RUNNING_SETUP_SCRIPT", t("Run its setup script")],
  ["SETTING_UP_GIT_HOOKS", t("Set up git hooks")],
  ["SETTING_UP_SKILLS", t("Load skills")],
  ["STARTING_CONVERSATION", t("Start the agent")],
];

const RUNS = {
  idle: [t("Idle"), "quiet"],
  running: [t("Working"), "busy"],
  paused: [t("Paused"), "quiet"],
  waiting_for_confirmation: [t("Needs you"), "warn"],
  finished: [t("Finished"), "good"],
  error: [t("Failed"), "bad"],
  stuck: [t("Stuck"), "bad"],
};
const SANDBOXES = {
  STARTING: [t("Starting"), "busy"],
  RUNNING: [t("Running"), "good"],
  PAUSED: [t("Paused"), "quiet"],
  ERROR: [t("Failed"), "bad"],
  MISSING: [t("Gone"), "quiet"],
};

/** Return the label and tone for a sandbox status. */
export const sandboxState = (status) => SANDBOXES[status] ?? [status, "quiet"];

/** Return the label and tone for the state of a conversation. */
export function conversationState({ execution_status, sandbox_status, queued_messages }, run = execution_status) {
  if (queued_messages && !["PAUSED", "ERROR", "MISSING"].includes(sandbox_status) && run !== "waiting_for_confirmation") return [t("Queued"), "busy"];
  if (sandbox_status === "RUNNING" && RUNS[run]) return RUNS[run];
  if (sandbox_status === "RUNNING") return [t("Ready"), "quiet"];
  if (sandbox_status === "PAUSED") return [t("Asleep"), "quiet"];
  return sandboxState(sandbox_status);
}

// Escape sequences for colours, titles and cursor movements, which have no meaning on a page.
const ESCAPES = /\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-~])/g;
const CONTROLS = /[\x00-\x08\x0b-\x1f\x7f]/g;

/** Return the text of a log without escape sequences and control characters, except tabs and line breaks. */
export const plain = (text) => (text ?? "").replace(ESCAPES, "").replace(CONTROLS, "");
