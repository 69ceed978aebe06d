// Calls of the API. All URLs are relative, so that the page works below any prefix.

// patience bounds every request, in ms. A server that hangs must not look healthy.
const patience = 10_000;

// A Problem is a request that has failed: an answer that is a problem, or none at all.
export class Problem extends Error {
  constructor(status, body) {
    const fields = (body.errors || []).map(e => e.field + " " + e.problem).join("; ");
    super(fields || body.detail || body.title || "The server answered " + status + ".");
    Object.assign(this, {status, type: body.type || "", title: body.title || "", errors: body.errors || [], done: body.done || 0});
  }
  // unanswered reports whether there was no answer: the outcome of a change is then not known.
  get unanswered() { return this.status === 0; }
  is(name) { return this.type.endsWith("/problems/" + name); }
}

// What the page knows of the server beside its answers.
let skew = 0; // the server's clock minus that of this machine, in ms
let csrf = ""; // what each change must carry where a cookie says who asks
let tokens = false; // the server asks for tokens

// When the server last answered, by the clock of this machine, and why a call since then had no answer.
let answeredAt = Date.now(), unanswered = "";

// silence is for how long the server has not answered, in ms, and how that shows; 0 if it answers.
export const silence = () => ({ms: unanswered ? Date.now() - answeredAt : 0, why: unanswered});

export const setSession = session => { csrf = session?.csrf || ""; tokens = !!session && !session.open; };
export const needsToken = () => tokens;

// While nothing was changed here for a while, figures that another page was just told will do: the server
// collects them once for all. seen is their greatest age, in s, and settle how long a while is, in ms.
const seen = 1, settle = 5000;
let changed = 0; // when this page last changed something

// renew asks the server anew who is here, and calls setSession. The frame of the page sets it.
let renew = async () => {};
export const onDenied = ask => { renew = ask; };

// now is the time by the clock of the server. That of this machine may be wrong.
export const now = () => Date.now() + skew;

function heardDate(text) {
  const ahead = Date.parse(text) - Date.now();
  // The header has whole seconds. What is less is no difference.
  if (!Number.isNaN(ahead)) skew = Math.abs(ahead) < 2000 ? 0 : ahead;
}

function withQuery(path, query) {
  const q = new URLSearchParams();
  for (const [key, value] of Object.entries(query || {}))
    if (value !== undefined && value !== null && value !== "") q.set(key, value);
  return q.size ? path + "?" + q : path;
}

// exactly keeps whole numbers as they are written that JavaScript would round, such as ids in
// payloads. A browser that cannot do so rounds them.
const exactly = (_, value, context) =>
  (typeof value === "number" && !Number.isSafeInteger(value) && JSON.rawJSON && /^-?\d+$/.test(context?.source) ? JSON.rawJSON(context.source) : value);

// parse reads an answer. Few have a number that long.
export const parse = text => JSON.parse(text, /\d{16}/.test(text) ? exactly : undefined);

// call makes one request. It returns the answer's body with its ETag, or throws a Problem. The token
// of the session may have been taken away, and another tab may have begun another session: then it
// asks who is here. What was refused for the text of the session before is tried once more.
export async function call(method, path, options = {}) {
  const sent = csrf;
  try {
    return await request(method, path, options);
  } catch (fault) {
    if (fault.status === 401 && path !== sessionPath) renew();
    if (fault.status !== 403 || !fault.is("csrf")) throw fault;
    await renew();
    if (csrf === sent) throw fault;
    return request(method, path, options);
  }
}

async function request(method, path, {query, body, headers, signal, accept = []}) {
  const more = {Accept: "application/json", ...headers};
  if (body !== undefined && !more["Content-Type"]) more["Content-Type"] = "application/json";
  if (csrf && method !== "GET") more["X-Lapse-CSRF"] = csrf;
  if (method !== "GET") changed = Date.now();
  else if (Date.now() - changed > settle) more["Cache-Control"] = "max-age=" + seen;
  const bound = AbortSignal.timeout(patience), address = withQuery(path, query);
  if (signal) asked.set(signal, address);
  let answer, text;
  try {
    answer = await fetch(address, {
      method, headers: more, body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store", signal: signal ? AbortSignal.any([signal, bound]) : bound,
    });
    text = await answer.text();
  } catch (fault) {
    if (signal?.aborted) throw fault;
    unanswered = bound.aborted ? "The server does not answer: nothing came within " + patience / 1000 + " s." : "The server does not answer.";
    throw new Problem(0, {detail: unanswered});
  }
  [answeredAt, unanswered] = [Date.now(), ""];
  if (method !== "GET") changed = answeredAt;
  heardDate(answer.headers.get("Date"));
  let value = null;
  try { value = text ? parse(text) : null; } catch { value = null; }
  if (!answer.ok && !accept.includes(answer.status)) throw new Problem(answer.status, value || {});
  return {value, etag: answer.headers.get("ETag")};
}

// asked is the address of the last question of a signal: what a view asks for, by which polls tell theirs apart.
export const asked = new WeakMap();

export const get = async (path, query, signal) => (await call("GET", path, {query, signal})).value;
export const post = async (path, body) => (await call("POST", path, {body})).value;

// The path of something, by its name where it has one.
export const sessionPath = "v1/session";
export const topicPath = name => "v1/topics/" + encodeURIComponent(name);
export const taskPath = id => "v1/tasks/" + encodeURIComponent(id);
export const nodePath = name => "v1/nodes/" + encodeURIComponent(name);
