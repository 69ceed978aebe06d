// The page at /docs: buttons that copy its examples, and forms that send them to this server. The
// page itself comes from the server; without this module it can be read all the same.

import {get, post, sessionPath} from "./api.js";
import {copyText} from "./copy-text.js";
import {languages} from "./snippets.js";
import "./remembered.js"; // the theme

const mostShown = 64 * 1024; // characters of an answer; a stream has no end
const base = new URL("./", location.href);
let csrf = "";

function element(name, fields = {}, ...children) {
  const e = Object.assign(document.createElement(name), fields);
  e.append(...children);
  return e;
}

// renew gives the tasks of the examples ids that no task has: an example that is sent does not meet
// the task of another reader, or of yesterday.
function renew() {
  const id = "order-" + Date.now().toString(36) + Math.random().toString(36).slice(2, 5);
  const fresh = text => text.replace(/\border-(\d+)\b/g, (_, n) => id + "-" + n);
  for (const pre of document.querySelectorAll("details pre")) pre.textContent = fresh(pre.textContent);
  for (const input of document.querySelectorAll("details input")) Object.assign(input, {value: fresh(input.value), placeholder: fresh(input.placeholder)});
  for (const area of document.querySelectorAll("details textarea")) area.value = area.defaultValue = fresh(area.value);
}

// examples have the address of this server, and say where a token goes if it has any. Each is there in
// all languages. The one that is chosen is so for all of them.
function examples(open) {
  const shown = [];
  const choose = name => {
    for (const {pre, texts, buttons} of shown) {
      pre.textContent = texts[name];
      for (const b of buttons) b.setAttribute("aria-pressed", b.textContent === name);
    }
  };
  for (const pre of document.querySelectorAll("pre.copy")) {
    const operation = pre.closest("details"), {url, options} = requestOf(operation.querySelector("form"));
    let curl = pre.textContent.replace("http://127.0.0.1:7480/", base.href);
    if (!open) curl = curl.replace(/^curl /, 'curl -H "Authorization: Bearer $TOKEN" ');
    const call = {operation: operation.id, method: options.method, url: url.href, body: options.body, token: !open};
    const texts = {curl, ...Object.fromEntries(Object.entries(languages).map(([name, write]) => [name, write(call)]))};
    const buttons = Object.keys(texts).map(name => {
      const button = element("button", {type: "button", textContent: name});
      button.addEventListener("click", () => choose(name));
      return button;
    });
    const copy = element("button", {type: "button", className: "copies", textContent: "Copy"});
    copy.addEventListener("click", async () => {
      const done = await copyText(pre.textContent);
      if (!done) getSelection().selectAllChildren(pre);
      copy.textContent = done ? "Copied" : "Selected";
      setTimeout(() => { copy.textContent = "Copy"; }, 2000);
    });
    const choice = element("span", {className: "choice"}, ...buttons);
    choice.setAttribute("role", "group");
    choice.setAttribute("aria-label", "Language");
    pre.before(choice);
    pre.after(copy);
    shown.push({pre, texts, buttons});
  }
  choose("curl");
}

// search shows the operations that have all words of a text: in the list, and on the page. Enter leads
// to the first of them, the key / to the field.
function search(place) {
  const input = element("input", {type: "search", name: "search", placeholder: "Search  /", autocomplete: "off", spellcheck: false});
  input.setAttribute("aria-label", "Search operations");
  const said = element("p", {className: "soft"});
  said.setAttribute("role", "status");
  const all = [...document.querySelectorAll("main details")].map(details => ({details, text: details.textContent.toLowerCase(), item: document.querySelector(`.contents a[href="#${details.id}"]`)?.closest("li")}));
  const find = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let first = null, n = 0;
    for (const {details, text, item} of all) {
      const found = words.every(word => text.includes(word));
      details.hidden = item.hidden = !found;
      if (found && ++n === 1) first = details;
    }
    for (const part of document.querySelectorAll("main > section, .contents > ul > li")) part.hidden = ![...part.querySelectorAll("details, li")].some(e => !e.hidden);
    said.textContent = words.length ? `${n} of ${all.length} operations` : "";
    return first;
  };
  input.addEventListener("input", find);
  input.addEventListener("keydown", e => {
    if (e.key !== "Enter") return;
    const first = find();
    if (first) location.hash = first.id;
  });
  addEventListener("keydown", e => {
    if (e.key !== "/" || e.ctrlKey || e.metaKey || e.altKey || /^(input|select|textarea)$/i.test(e.target.tagName)) return;
    e.preventDefault();
    input.focus();
  });
  place.replaceChildren(input, said);
}

// session shows who asks, or the form for a token.
async function session(place) {
  let who;
  try {
    who = await get(sessionPath);
  } catch (fault) {
    place.replaceChildren(element("p", {className: "soft", textContent: fault.message}));
    return false;
  }
  csrf = who.csrf || "";
  if (who.open) return true;
  if (who.scopes.length) {
    place.replaceChildren(element("p", {className: "soft", textContent: `The forms send as ${who.name}, who may: ${who.scopes.join(", ")}.`}));
    return false;
  }
  const token = element("input", {id: "token", type: "password", name: "token", autocomplete: "current-password", required: true});
  const fault = element("p", {role: "alert"});
  const form = element("form", {className: "lone"}, element("p", {textContent: "This server asks for a token. The forms send with it."}),
    element("label", {htmlFor: "token", textContent: "Token"}), token, element("button", {type: "submit", textContent: "Log in"}), fault);
  form.addEventListener("submit", async e => {
    e.preventDefault();
    try {
      await post(sessionPath, {token: token.value.trim()});
      await session(place);
    } catch (problem) {
      fault.textContent = problem.message;
    }
  });
  place.replaceChildren(form);
  return false;
}

// requestOf is what a form asks for.
function requestOf(form) {
  let path = form.dataset.path.slice(1);
  const query = new URLSearchParams(), headers = {Accept: "application/json"};
  for (const input of form.querySelectorAll("input")) {
    const value = input.value.trim();
    if (input.dataset.in === "path") path = path.replace("{" + input.name + "}", encodeURIComponent(value));
    else if (value && input.dataset.in === "header") headers[input.name] = value;
    else if (value) query.set(input.name, value);
  }
  const options = {method: form.dataset.method, headers, cache: "no-store"};
  const body = form.querySelector("textarea");
  if (body) {
    options.body = body.value;
    headers["Content-Type"] = "application/json";
  }
  if (csrf && options.method !== "GET") headers["X-Lapse-CSRF"] = csrf;
  return {url: new URL(query.size ? path + "?" + query : path, base), options};
}

// pretty is JSON with a field a line, and other text as it is.
function pretty(text) {
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}

// send sends a form and shows the answer as it comes, until it ends, the user stops it or it is long.
async function send(form, stop) {
  const {url, options} = requestOf(form), place = form.querySelector(".answer");
  const status = element("p"), shown = element("pre", {tabIndex: 0});
  const began = performance.now(), ending = new AbortController();
  stop.onclick = () => ending.abort();
  status.textContent = `${options.method} ${url.pathname}${url.search} …`;
  place.replaceChildren(status);
  let text = "";
  try {
    const answer = await fetch(url, {...options, signal: ending.signal});
    status.textContent = `${answer.status} ${answer.statusText} after ${Math.round(performance.now() - began)} ms`;
    status.className = answer.ok ? "" : "bad";
    const reader = answer.body?.pipeThrough(new TextDecoderStream()).getReader();
    for (let piece; reader && text.length < mostShown && !(piece = await reader.read()).done;) {
      text += piece.value;
      shown.textContent = pretty(text).slice(0, mostShown);
      place.append(shown);
    }
    ending.abort(); // of a long answer
  } catch {
    status.textContent = ending.signal.aborted ? status.textContent + ", stopped" : "The server does not answer.";
    status.className = ending.signal.aborted ? "" : "bad";
  }
}

function forms() {
  for (const form of document.querySelectorAll("form[data-path]")) {
    const button = form.querySelector("[type=submit]"), stop = form.querySelector(".stop");
    const warning = form.closest("details").querySelector(".warning");
    let sure = false;
    if (warning) {
      button.className = "danger";
      button.before(element("p", {className: "warning", textContent: warning.textContent}));
    }
    form.hidden = false;
    form.addEventListener("submit", async e => {
      e.preventDefault();
      if (warning && !sure) { // the second time counts
        sure = true;
        button.textContent = "Really send it";
        return;
      }
      button.disabled = true;
      stop.hidden = false;
      await send(form, stop);
      stop.hidden = true;
      button.disabled = sure = false;
      button.textContent = "Send";
    });
  }
}

// A link to an operation opens it.
function openLinked() {
  const linked = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (linked?.tagName === "DETAILS") linked.open = true;
}

renew();
forms();
search(document.getElementById("search"));
openLinked();
addEventListener("hashchange", openLinked);
examples(await session(document.getElementById("session")));
document.documentElement.dataset.ready = "true";
