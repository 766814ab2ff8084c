// The words of the page: as they are written where they are shown, in English, or those of another language, which are
// all in one file of `words`. What the server says stays English. The page names this script before the others, so
// that the words are fetched while those come.

const STORED = "agentsvc-language";
export const LANGUAGES = { en: "English", de: "Deutsch" };

/** Return the language that was chosen in this browser; empty for that of the browser itself. */
export const chosenLanguage = () => localStorage.getItem(STORED) ?? "";

const wanted = [chosenLanguage(), ...navigator.languages.map((tag) => tag.split("-")[0])];
export const language = wanted.find((one) => one in LANGUAGES) ?? "en";
/** How the browser writes this language. */
export const locale = navigator.languages.find((tag) => tag.split("-")[0] === language) ?? language;
document.documentElement.lang = language;

const words = language === "en" ? {} : (await import(`./words/${language}.js`)).default;

/** Choose a language for this browser, and show the page in it. */
export function setLanguage(name) {
  if (name) localStorage.setItem(STORED, name);
  else localStorage.removeItem(STORED);
  location.reload();
}

/** Return a text in the language of the page; values stand for {0}, {1} and so on in it. */
export const t = (text, ...values) => (words[text] ?? text).replace(/\{(\d)\}/g, (_, i) => (values[i] === false ? "" : values[i] ?? ""));
