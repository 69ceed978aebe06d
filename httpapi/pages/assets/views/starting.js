// The page of a server that has not reached its ledger yet.

import {html, useEffect} from "../vendor/preact.js";
import {age, span} from "../format.js";
import {Fresh} from "../parts.js";

export function Starting({state, poll}) {
  useEffect(() => { document.title = "Starting · Lapse"; }, []);
  const {ledger, waiting} = state;
  return html`<main><div class="lone">
    <h1>Lapse is starting</h1>
    <p>It waits for its ledger${ledger.where ? html` <code>${ledger.where}</code>` : null}. Nothing is scheduled or delivered until then.</p>
    ${ledger.condition ? html`<p class="fault">${ledger.condition}</p>` : null}
    ${waiting.length ? html`<ul>${waiting.map(w => html`
      <li key=${w.what}>${w.what}${w.detail ? " " + w.detail : ""} <span class="soft">since ${span(age(w.since))}</span></li>`)}</ul>` : null}
    <${Fresh} poll=${poll} />
  </div></main>`;
}
