// What is on the screen, for the clipboard: texts, and calls as curl commands.

import {html, useEffect, useState} from "./vendor/preact.js";
import {needsToken} from "./api.js";
import {copyText} from "./copy-text.js";

const quoted = text => "'" + text.replaceAll("'", "'\\''") + "'";

// curlOf is a call of the API as a command for a shell.
export function curlOf(method, path, body) {
  const parts = ["curl"];
  if (needsToken()) parts.push('-H "Authorization: Bearer $TOKEN"');
  if (method !== (body === undefined ? "GET" : "POST")) parts.push("-X " + method);
  parts.push(quoted(new URL(path, new URL("./", location.href)).href));
  if (body !== undefined) parts.push("--json " + quoted(JSON.stringify(body)));
  return parts.join(" ");
}

// Copy is a button that copies a text, which may come from a function. what names it.
export function Copy({text, what, label = "Copy"}) {
  const [said, say] = useState("");
  useEffect(() => {
    if (!said) return undefined;
    const timer = setTimeout(() => say(""), 2000);
    return () => clearTimeout(timer);
  }, [said]);
  const copy = async () => say(await copyText(typeof text === "function" ? text() : text) ? "Copied" : "Not copied");
  return html`<button type="button" class="small copy" aria-label=${label + " " + what} onClick=${copy}>${said || label}</button>`;
}
