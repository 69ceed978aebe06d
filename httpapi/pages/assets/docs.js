// The page at /docs: buttons that copy its examples, and forms that send them to this server. The
// page itself comes from the server; without this module it can be read all the same.

import {get, post, sessionPath} from "./api.js";

const mostShown = 64 * 1024; // characters of an answer; a stream has no end
const base = new URL("./", location.href);
let csrf = "";

function element(name, fields = {}, ...children) {
  const e = Object.assign(document.createElement(name), fields);
  e.append(...children);
  return e;
}

// examples have the address of this server, and say where a token goes if it has any.
function examples(open) {
  for (const pre of document.querySelectorAll("pre.copy")) {
    let text = pre.textContent.replace("http://127.0.0.1:7480/", base.href);
    if (!open) text = text.replace(/^curl /, 'curl -H "Authorization: Bearer $TOKEN" ');
    pre.textContent = text;
    const button = element("button", {type: "button", className: "copies", textContent: "Copy"});
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(text);
        button.textContent = "Copied";
      } catch { // not over plain HTTP: it is selected, and the user copies it
        getSelection().selectAllChildren(pre);
        button.textContent = "Selected";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
    pre.after(button);
  }
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
    const destroys = form.dataset.method === "DELETE" || /\/(drain|actions)$/.test(form.dataset.path);
    let sure = false;
    form.hidden = false;
    form.addEventListener("submit", async e => {
      e.preventDefault();
      if (destroys && !sure) { // the second time counts
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

forms();
openLinked();
addEventListener("hashchange", openLinked);
examples(await session(document.getElementById("session")));
document.documentElement.dataset.ready = "true";
