// What the user has chosen for this browser: the theme, and the clock that times are told by.

const choices = {theme: ["auto", "light", "dark"], clock: ["local", "utc"]}; // the first is the default
const heard = new Set();

function read(name) {
  let value = "";
  try { value = localStorage.getItem("lapse-" + name) || ""; } catch { /* it keeps nothing */ }
  return choices[name].includes(value) ? value : choices[name][0];
}

const chosen = {theme: read("theme"), clock: read("clock")};

// apply has the style sheet follow the theme.
const apply = () => { document.documentElement.dataset.theme = chosen.theme; };
apply();

export const theme = () => chosen.theme;
export const inUTC = () => chosen.clock === "utc";

// choose takes the next choice, and keeps it where the browser lets it.
export function choose(name, value = choices[name][(choices[name].indexOf(chosen[name]) + 1) % choices[name].length]) {
  chosen[name] = value;
  try { localStorage.setItem("lapse-" + name, value); } catch { /* it holds until the page is left */ }
  apply();
  for (const tell of heard) tell();
}

// onChoice calls tell after each change of a choice, until the function that it returns is called.
export function onChoice(tell) {
  heard.add(tell);
  return () => heard.delete(tell);
}
