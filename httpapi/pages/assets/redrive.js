// Dead tasks brought back slowly, as lapse dead redrive does: so many a second, topic by topic. Of each
// topic the first ones come back first. Where all of them fail again, the others stay dead.

import {get, post, topicPath} from "./api.js";
import {plural} from "./format.js";

// firstOnes come back first, and have triedWithin, in ms, to be delivered.
const firstOnes = 10, triedWithin = 60_000;
const second = 1000;

const pause = ms => new Promise(done => setTimeout(done, ms));

// failure says why the first ones failed: "" if one was delivered, null as long as it is not known.
async function failure(ids) {
  let failed = 0, why = "";
  for (const id of ids) {
    const [t] = (await get("v1/tasks", {id})).tasks;
    if (!t || t.state === "finished") return "";
    if (t.state === "dead" || t.attempt > 0 && t.state !== "delivering") [failed, why] = [failed + 1, t.last_error];
  }
  return failed === ids.length ? "the first " + failed + " failed again: " + why : null;
}

// topicsOf are the topics that have tasks of a filter, those with most first.
const topicsOf = async filter => (filter.topic ? [filter.topic]
  : (await get("v1/counts", {...filter, state: "dead", limit: 100, within: "5s"})).topics.map(t => t.topic));

// redrive yields what each step has done: {done, failed}, or {trying} or {stopped} in words. It is
// stopped between two steps, and begins anew with what is still dead.
export async function* redrive(filter, rate) {
  for (const topic of await topicsOf(filter)) {
    const {topic: _, ...others} = filter, of = {...filter, topic}, first = [];
    let cursor;
    do {
      const page = await get(topicPath(topic) + "/dead", {...others, details: false, limit: firstOnes, cursor});
      first.push(...page.tasks.map(t => t.id));
      cursor = page.next_cursor;
    } while (cursor && !first.length);
    if (!first.length) continue;
    yield {...await post("v1/tasks/actions", {action: "requeue", ids: first}), trying: "The first " + first.length + " of " + topic + " are being tried."};
    let why = await failure(first);
    for (const until = Date.now() + triedWithin; why === null && Date.now() < until; why = await failure(first)) {
      await pause(second);
      yield {};
    }
    if (why !== "") {
      yield {stopped: topic + ": " + (why ?? "none of the " + plural(first.length, "task") + " tried first was delivered within a minute")};
      continue;
    }
    cursor = undefined;
    do {
      const next = pause(second), page = await post("v1/tasks/actions", {action: "requeue", filter: of, limit: rate, cursor});
      yield {done: page.done, failed: page.failed};
      if (page.done) await next;
      cursor = page.next_cursor;
    } while (cursor);
  }
}
