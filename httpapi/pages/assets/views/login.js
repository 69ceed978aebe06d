// The form for a token. The server keeps it in a cookie that no script can read.

import {html, useEffect, useState} from "../vendor/preact.js";
import {post, sessionPath} from "../api.js";
import {Fault, Field, useAction} from "../parts.js";

export function Login({entered}) {
  const [token, set] = useState(""), action = useAction();
  useEffect(() => {
    document.title = "Log in · Lapse";
    document.querySelector('[name="token"]').focus();
  }, []);
  const submit = e => {
    e.preventDefault();
    action.run(async () => {
      await post(sessionPath, {token: token.trim()});
      await entered();
    });
  };
  return html`<main><form class="lone" onSubmit=${submit}>
    <h1>Lapse</h1>
    <p class="soft">This server asks for a token. What you may do here is what the token opens.</p>
    <${Field} label="Token" name="token" type="password" value=${token} onInput=${set} autocomplete="current-password" required />
    <${Fault} fault=${action.fault} />
    <button type="submit" class="main" disabled=${action.busy || !token.trim()}>${action.busy ? "Asking…" : "Log in"}</button>
  </form></main>`;
}
