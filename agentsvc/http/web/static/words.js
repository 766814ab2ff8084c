// Translation. Texts are written in English where they are used; each other language has one file in `words`. Texts from
// the server stay English. The page loads this script first, so that the translation is fetched in parallel with the other
// scripts.

const STORED = "agentsvc-language";
export const LANGUAGES = { en: "English", de: "Deutsch" };

/** Return the language chosen in this browser, or "" for the browser's own. */
export const chosenLanguage = () => localStorage.getItem(STORED) ?? "";

const wanted = [chosenLanguage(), ...navigator.languages.map((tag) => tag.split("-")[0])];
export const language = wanted.find((one) => one in LANGUAGES) ?? "en";
/** The browser's locale for the language, such as en-GB. */
export const locale = navigator.languages.find((tag) => tag.split("-")[0] === language) ?? language;
document.documentElement.lang = language;

const words = language === "en" ? {} : (await import(`./words/${language}.js`)).default;

/** Store the language for this browser ("": the browser's own), and reload the page. */
export function setLanguage(name) {
  if (name) localStorage.setItem(STORED, name);
  else localStorage.removeItem(STORED);
  location.reload();
}

/** Return a text in the language of the page, with {0}, {1} and so on replaced by the values; false becomes "". */
export const t = (text, ...values) => (words[text] ?? text).replace(/\{(\d)\}/g, (_, i) => (values[i] === false ? "" : values[i] ?? ""));
