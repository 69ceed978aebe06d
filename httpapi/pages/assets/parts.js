// The parts of which views are made.

import {html, useEffect, useLayoutEffect, useRef, useState} from "./vendor/preact.js";
import {now} from "./api.js";
import {span, zone} from "./format.js";
import {isStale, useClock} from "./poll.js";
import {choose} from "./remembered.js";

// Pill is a short mark. Only what is wrong has a colour.
export const Pill = ({bad, warn, children}) => html`<span class=${"pill" + (bad ? " bad" : warn ? " warn" : "")}>${children}</span>`;

// Table shows rows. A column is {head, num, class, cell(row), note, sort}; where sort is set, its head is a
// button. On a narrow screen each row becomes a block in which each cell has its head before it.
export function Table({label, columns, rows, keyOf, empty, sorted, onSort, rowClass}) {
  const first = columns.find(c => c.class !== "tick"); // it names the row
  if (!rows?.length) return html`<p class="empty">${empty}</p>`;
  return html`<div class="sheet"><table aria-label=${label}>
    <thead><tr>${columns.map(c => c.class === "tick" ? html`<td class="tick">${c.head}</td>` : html`<th scope="col" class=${(c.num ? "num " : "") + (c.class || "")} title=${c.note}
      aria-sort=${c.sort && sorted === c.sort ? (c.down ? "descending" : "ascending") : undefined}>
      ${c.sort && onSort ? html`<button type="button" class="sort" onClick=${() => onSort(c.sort)}>${c.head}</button>` : c.head}</th>`)}</tr></thead>
    <tbody>${rows.map(row => html`<tr key=${keyOf(row)} class=${rowClass ? rowClass(row) : undefined}>
      ${columns.map(c => html`<td class=${(c.num ? "num " : "") + (c.class || "") + (c === first ? " first" : "")}
        data-head=${typeof c.head === "string" ? c.head : undefined}>${c.cell(row)}</td>`)}</tr>`)}</tbody>
  </table></div>`;
}

// useChosen keeps which rows of a list are chosen, and makes the column of boxes that chooses them. all
// chooses all of them where the head of the column is not shown.
export function useChosen(rows) {
  const [ids, set] = useState(new Set()), here = rows.filter(r => ids.has(r.id));
  const choose = (id, on) => set(old => {
    const next = new Set(old);
    if (on) next.add(id);
    else next.delete(id);
    return next;
  });
  const box = more => html`<input type="checkbox" ...${more} checked=${rows.length > 0 && here.length === rows.length}
      onChange=${e => set(new Set(e.target.checked ? rows.map(r => r.id) : []))} />`;
  const all = rows.length ? html`<label class="all">${box()} Choose all on this page</label>` : null;
  const column = {class: "tick",
    head: box({"aria-label": "Choose all on this page"}),
    cell: r => html`<input type="checkbox" aria-label=${"Choose " + r.id} checked=${ids.has(r.id)} onChange=${e => choose(r.id, e.target.checked)} />`};
  return {here, column, all, none: () => set(new Set())};
}

// Figures is a row of numbers, each with what it counts.
export const Figures = ({label, list}) => html`<dl class="figures" aria-label=${label}>${list.map(f => html`
  <div key=${f.label} class=${f.bad ? "bad" : ""} data-figure=${f.name}><dt>${f.label}</dt>
  <dd>${f.href ? html`<a href=${f.href}>${f.value}</a>` : f.value}</dd>${f.note ? html`<dd class="note">${f.note}</dd>` : null}</div>`)}</dl>`;

// Section is a part of a view under a heading. Where it has a poll of its own it looks old while that
// poll's figures are, and says of when they are. Why, the heading of the view says.
export function Section({title, side, poll, children, id}) {
  useClock();
  const old = poll && isStale(poll);
  return html`<section id=${id} aria-label=${title}>
    <div class="section"><h2>${title}</h2>${old ? html`<${Fresh} poll=${poll} />` : null}${side ? html`<div class="side">${side}</div>` : null}</div>
    <div class=${old ? "stale" : ""}>${children}</div></section>`;
}

// Fresh says of when the figures are, and of which part of the fleet. It is quiet while they are as
// they should be. That the server does not answer, the frame says.
export function Fresh({poll, part}) {
  useClock();
  if (poll.data === undefined) return poll.fault ? html`<${Fault} fault=${poll.fault} again=${poll.again} />` : html`<p class="fresh bad"></p>`;
  const old = isStale(poll);
  return html`<p class=${"fresh" + (old || part ? " bad" : "")} role="status">${old
    ? html`As of ${span(Date.now() - poll.at)} ago. ${poll.fault && !poll.fault.unanswered ? html`${poll.fault.message} <button type="button" class="plain" onClick=${poll.again}>Try again</button>` : null}`
    : part || "Live"}</p>`;
}

// partly says of how many nodes the figures of an answer are, "" if of all.
export function partly(answer) {
  if (!answer?.missing?.length) return "";
  const known = answer.missing.filter(m => m.node).length;
  return known ? "Of " + answer.covers.length + " of " + (answer.covers.length + known) + " nodes" : "Not of all nodes";
}

// settled reports whether a poll has come to anything. What stands below its part of a view waits for
// that, so that it appears in its place.
export const settled = poll => poll.data !== undefined || poll.fault !== null;

// View is a view with its heading. While the poll's figures are old, all of them look old. The heading
// may tell of another poll, leadPoll, and then looks old with that one too. beside stands right of it.
export function View({title, poll, lead, leadPoll, beside, part, actions, back, children}) {
  useClock();
  useEffect(() => { document.title = title + " · Lapse"; }, [title]);
  const old = poll && isStale(poll), leadOld = old || leadPoll && isStale(leadPoll);
  return html`<div class="head">
      ${back ? html`<a class="back" href=${back.href}>${back.text}</a>` : null}
      <h1 tabindex="-1" class=${leadOld ? "stale" : ""}>${lead ?? title}</h1>${beside ? html`<span class="beside">${beside}</span>` : null}
      ${poll ? html`<${Fresh} poll=${poll} part=${part || partly(poll.data) || partly(leadPoll?.data)} /><${Zone} />` : null}
      ${actions ? html`<div class="actions">${actions}</div>` : null}
    </div>
    <div class=${old ? "stale" : ""}>${children}</div>
    ${poll && poll.data === undefined && !poll.fault ? html`<p class="empty" role="status">Loading…</p>` : null}`;
}

// Zone names the clock that times are told by, and changes it.
const Zone = () => html`<button type="button" class="plain zone" title="Times are told by this clock" aria-label=${"Times are in " + zone() + ". Change the clock"} onClick=${() => choose("clock")}>${zone()}</button>`;

// Fault shows why something has failed, with a link to what can be done. What the fields of a form
// say, it does not say again: then told is true.
export const Fault = ({fault, again, told}) => (fault ? html`<p class="fault" role="alert"><strong>${fault.title || "That did not work"}.</strong> ${told ? "See the marked fields." : fault.message}
  ${fault.type ? html` <a href=${"./problems/" + fault.type.split("/").pop()} target="_blank" rel="noopener">What to do</a>` : null}
  ${fault.done ? html` ${fault.done} were done before that.` : null}
  ${fault.unanswered ? " What became of it is not known." : null}
  ${again ? html` <button type="button" class="plain" onClick=${again}>Try again</button>` : null}</p>` : null);

// useAction runs one thing at a time, and keeps why it failed.
export function useAction() {
  const [state, set] = useState({busy: false, fault: null});
  const run = async act => {
    set({busy: true, fault: null});
    try {
      await act();
      set({busy: false, fault: null});
      return true;
    } catch (fault) {
      set({busy: false, fault});
      return false;
    }
  };
  return {...state, run};
}

// Dialog asks for something. It has the focus until it is closed, which Escape does too.
export function Dialog({title, onClose, children}) {
  const ref = useRef(null);
  useLayoutEffect(() => {
    const dialog = ref.current;
    dialog.showModal();
    return () => dialog.close(); // which gives the focus back
  }, []);
  return html`<dialog ref=${ref} aria-label=${title} onCancel=${e => { e.preventDefault(); onClose(); }}><h2>${title}</h2>${children}</dialog>`;
}

// Ask is a dialog with a form that does something. act throws what prevents it; then the dialog stays
// and shows it. keep is on the button that changes nothing. inFields reports whether the form shows
// all of these errors beside its fields.
export function Ask({title, label, keep = "Leave it", danger, act, done, onClose, children, disabled, inFields}) {
  const action = useAction();
  const submit = async e => {
    e.preventDefault();
    if (action.busy) return;
    if (await action.run(act)) {
      if (done) announce(typeof done === "function" ? done() : done);
      onClose();
    }
  };
  return html`<${Dialog} title=${title} onClose=${onClose}><form onSubmit=${submit}>
    ${children}
    <${Fault} fault=${action.fault} told=${action.fault?.errors?.length && inFields?.(action.fault.errors)} />
    <div class="actions">
      <button type="button" onClick=${onClose}>${keep}</button>
      <button type="submit" class=${danger ? "danger" : "main"} disabled=${disabled} aria-disabled=${action.busy}>${action.busy ? "Working…" : label}</button>
    </div></form></${Dialog}>`;
}

// Field is an input with its label, and what the server says is wrong with it.
export function Field({label, name, value, onInput, type = "text", hint, error, options, area, ...more}) {
  const id = "field-" + name;
  const common = {
    id, name, "aria-invalid": error ? "true" : undefined, "aria-describedby": error || hint ? id + "-about" : undefined,
    onInput: e => onInput(e.target.type === "checkbox" ? e.target.checked : e.target.value), ...more,
  };
  const input = options ? html`<select ...${common} value=${value}>${options.map(o => html`
      <option value=${o.value ?? o} selected=${(o.value ?? o) === value}>${o.text ?? o}</option>`)}</select>`
    : area ? html`<textarea ...${common} rows="4" spellcheck="false" value=${value}></textarea>`
    : type === "checkbox" ? html`<input ...${common} type="checkbox" checked=${value} />`
    : html`<input ...${common} type=${type} value=${value} autocomplete="off" spellcheck="false" />`;
  return html`<div class=${"field" + (type === "checkbox" ? " check" : "")}><label for=${id}>${label}</label>${input}
    ${error || hint ? html`<p id=${id + "-about"} class=${error ? "wrong" : "hint"}>${error || hint}</p>` : null}</div>`;
}

// noneYet is for a page that is empty although there are more: one call looks at a bounded number.
export const noneYet = "None among those that were looked at; there are more: go on with Next.";

// Pages leads through a list by cursors. cursors holds those of the pages before the present one.
export const Pages = ({cursors, next, go}) => (cursors.length || next ? html`<div class="pages">
  <button type="button" disabled=${!cursors.length} onClick=${() => go(cursors.slice(0, -1))}>Back</button>
  <span class="soft">Page ${cursors.length + 1}</span>
  <button type="button" disabled=${!next} onClick=${() => go([...cursors, next])}>Next</button></div>` : null);

// announce shows a sentence for a while, and has screen readers speak it.
let tell = () => {};
export const announce = text => tell(text);
export function Notices() {
  const [notice, set] = useState(null);
  useEffect(() => {
    tell = text => set({text, at: now()});
    return () => { tell = () => {}; };
  }, []);
  useEffect(() => {
    if (!notice) return undefined;
    const timer = setTimeout(() => set(null), 8000);
    return () => clearTimeout(timer);
  }, [notice]);
  return html`<div class="notices" role="status" aria-live="polite">${notice ? html`<p>${notice.text}</p>` : null}</div>`;
}
