// One thing done with many tasks. They are counted first; then the user is asked, with the number and
// the filter in the question. It goes in pieces, can be stopped between two of them, and goes on
// where a piece has failed.

import {html, useEffect, useRef, useState} from "../vendor/preact.js";
import {get, now, post} from "../api.js";
import {byClock, count, fromInput, localInput, plural} from "../format.js";
import {Dialog, Fault, Field, announce} from "../parts.js";
import {redrive} from "../redrive.js";
import {allOf, notCounted} from "./filter.js";

// piece is how many tasks one call changes. countWithin bounds the time that counting takes; what is
// not counted until then is told as more.
const piece = 500;
const countWithin = "5s";
const failuresShown = 5;
// The user types the number of tasks, where there are more than typedAbove.
const typedAbove = 1000;

const isOfDead = action => action === "requeue" || action === "delete";

const words = {
  cancel: {title: "Cancel", done: "cancelled", text: "They will not be delivered. This cannot be taken back.", danger: true},
  move: {title: "Move", done: "moved", text: "Their deadlines change. What is being delivered is left as it is."},
  fire: {title: "Fire", done: "made due", text: "They are due at once, and delivered as soon as their topics let them."},
  hold: {title: "Hold", done: "held", text: "Their countdowns stop, and they are not delivered until they are resumed. What is being delivered is left as it is."},
  resume: {title: "Resume", done: "resumed", text: "Their countdowns go on with the time that they had left."},
  requeue: {title: "Requeue", done: "came back",
    text: "They come back with all their attempts before them, and are due at once. If their receiver still fails, they die again."},
  delete: {title: "Delete", done: "deleted", text: "They and their payloads are lost. This cannot be taken back.", danger: true},
};

// useCount counts the tasks of a filter: {n, over, more, not, fault, again}. not says what was not looked at.
function useCount(action, filter, ids) {
  const [state, set] = useState({n: ids ? ids.length : 0, over: !!ids, fault: null}), [round, setRound] = useState(0);
  useEffect(() => {
    if (ids) return undefined;
    const gone = new AbortController(), state = action === "resume" ? "held" : isOfDead(action) ? "dead" : filter.state;
    get("v1/counts", {...filter, state, limit: 0, within: countWithin}, gone.signal).then(
      c => set({n: allOf(c), over: true, more: !c.complete, not: notCounted(c), fault: null}),
      fault => { if (!gone.signal.aborted) set({n: 0, over: true, more: true, fault}); });
    return () => gone.abort();
  }, [round]);
  return {...state, again: () => { set({n: 0, over: false, fault: null}); setRound(r => r + 1); }};
}

// When asks for the deadline of tasks that are moved. It hands on what the call needs, or null.
function When({change}) {
  const [how, setHow] = useState("later"), [by, setBy] = useState("1d"), [to, setTo] = useState(localInput(now() + 3_600_000));
  useEffect(() => {
    if (how === "to") change(to ? {due_at: fromInput(to)} : null);
    else change(by.trim() ? {shift: (how === "earlier" ? "-" : "") + by.trim()} : null);
  }, [how, by, to]);
  return html`<div class="fields">
    <${Field} label="Move them" name="how" value=${how} onInput=${setHow}
      options=${[{value: "later", text: "later by"}, {value: "earlier", text: "earlier by"}, {value: "to", text: "to a time"}]} />
    ${how === "to" ? html`<${Field} label=${"New deadline, " + byClock()} name="to" type="datetime-local" step="1" value=${to} onInput=${setTo} required />`
      : html`<${Field} label="By" name="by" value=${by} onInput=${setBy} hint="Such as 30m, 12h, 1d" required />`}
  </div>`;
}

// rates are how many dead tasks a second may come back; 0: all at once.
const rates = [0, 1, 10, 100, 1000].map(n => ({value: String(n), text: n ? count(n) + " a second" : "all at once"}));

// Many does action with the tasks of ids, or of filter. of says in words which these are; dead: they are dead;
// slowly: dead ones of all topics, which come back slowly alone.
export function Many({action, of = "", dead, filter, ids, slowly, onClose}) {
  const w = words[action], counted = useCount(action, filter, ids);
  const [more, setMore] = useState(action === "move" ? null : {}), [typed, setTyped] = useState("");
  const [run, setRun] = useState(null), stop = useRef(false), where = useRef({cursor: undefined, done: 0, failed: [], stopped: []});
  const [rate, setRate] = useState(slowly ? "100" : "0"), slow = action === "requeue" && !ids && rate !== "0";
  const begun = run !== null, working = run?.working;
  useEffect(() => () => { stop.current = true; }, []);
  // What could not be counted is changed only by a user who asks for all of it.
  const known = counted.over && !counted.fault && (counted.n > 0 || counted.more), types = known && (counted.n > typedAbove || counted.more) && !begun;
  const right = counted.more ? typed.trim().toLowerCase() === "all" : typed.replace(/\D/g, "") === String(counted.n);
  const ready = known && more && (!types || right);
  const go = async e => {
    e.preventDefault();
    if (working) return;
    const at = where.current;
    stop.current = false;
    try {
      if (slow) {
        at.stopped = [];
        let over = true;
        setRun({working: true});
        for await (const step of redrive(filter, Number(rate))) {
          at.done += step.done ?? 0;
          at.failed.push(...step.failed ?? []);
          if (step.stopped) at.stopped.push(step.stopped);
          if (stop.current) { over = false; break; }
          if (step.trying || step.done !== undefined || step.stopped) at.trying = step.trying ?? "";
          setRun({working: true, trying: at.trying});
        }
        setRun({working: false, over});
        if (over && !at.failed.length && !at.stopped.length) { announce(plural(at.done, "task") + " " + w.done + "."); onClose(); }
        return;
      }
      do {
        setRun({working: true});
        const piecewise = ids ? {ids} : {filter, limit: piece, cursor: at.cursor};
        const page = await post("v1/tasks/actions", {action, ...more, ...piecewise});
        at.done += page.done;
        at.failed.push(...page.failed);
        at.cursor = page.next_cursor;
      } while (at.cursor && !stop.current);
      setRun({working: false, over: !at.cursor});
      if (!at.cursor) announce(plural(at.done, "task") + " " + w.done + ".");
      if (!at.cursor && !at.failed.length) onClose();
    } catch (fault) {
      at.done += fault.done || 0;
      setRun({working: false, fault});
    }
  };
  // A redrive may run for long: its first press stops it and leaves the sum on the screen.
  const close = () => { stop.current = true; if (!(slow && working)) onClose(); };
  const {done, failed, stopped} = where.current, dealt = done + failed.length;
  const many = plural(counted.n, ids ? "chosen task" : dead ? "dead task" : "task"), atLeast = counted.more ? "at least " : "";
  const question = [w.title, known ? atLeast + many : dead ? "dead tasks" : "tasks", of].filter(Boolean).join(" ") + "?";
  const sum = counted.over ? (counted.more ? "At least " : "") + plural(counted.n, "task") + "." + (counted.not || "") : "Counting…";
  return html`<${Dialog} title=${question} onClose=${close}><form onSubmit=${go}>
    <p id="counted" role="status">${sum} ${w.text}</p>
    <${Fault} fault=${counted.fault} again=${counted.again} />
    ${action === "move" ? html`<${When} change=${setMore} />` : null}
    ${action === "requeue" && !ids && !begun ? html`<${Field} label="How fast" name="rate" value=${rate} onInput=${setRate} options=${slowly ? rates.slice(1) : rates}
      hint=${slow ? "The first 10 of each topic come back first. Where all of them fail again, the others stay dead." : undefined} />` : null}
    ${types ? html`<${Field} label=${counted.more ? "There are more than could be counted. To go on with all of them, type all" : "To go on, type how many tasks: " + count(counted.n)} name="typed" value=${typed} onInput=${setTyped} inputmode=${counted.more ? "text" : "numeric"} />` : null}
    ${begun ? html`<p role="status"><progress max=${Math.max(counted.n, dealt, 1)} value=${dealt} aria-label="Progress"></progress>
      ${" " + plural(done, "task")} ${w.done}${failed.length ? ", " + count(failed.length) + " not" : ""}. ${run.trying ?? ""}</p>` : null}
    ${stopped.length ? html`<ul>${stopped.slice(0, failuresShown).map(why => html`<li key=${why}>Stopped: ${why}</li>`)}
      ${stopped.length > failuresShown ? html`<li>and ${count(stopped.length - failuresShown)} more</li>` : null}</ul>` : null}
    ${failed.length ? html`<ul>${failed.slice(0, failuresShown).map(f => html`<li key=${f.id}><code>${f.id}</code>: ${f.problem.detail || f.problem.title}</li>`)}
      ${failed.length > failuresShown ? html`<li>and ${count(failed.length - failuresShown)} more</li>` : null}</ul>` : null}
    <${Fault} fault=${run?.fault} />
    ${/* No label changes when the count arrives: another button would slide under the pointer. */ null}
    <div class="actions">
      <button type="button" onClick=${close}>${run?.over ? "Close" : working ? "Stop" : w.danger ? "Keep" : "Leave it"}</button>
      ${run?.over ? null : html`<button type="submit" class=${w.danger ? "danger" : "main"} aria-disabled=${working} disabled=${!ready}>
        ${working ? "Working…" : begun ? "Go on" : w.title}</button>`}
    </div></form></${Dialog}>`;
}
