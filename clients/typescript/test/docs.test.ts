import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { promisify } from "node:util";
import { Client } from "../src/index.js";
import { Server, secret, until } from "./server.js";

const run = promisify(execFile);
const root = new URL("../../", import.meta.url).pathname; // of the package
const page = new URL("../../../../docs/clients.md", import.meta.url);

let server: Server;
let client: Client;
let dir: string;
let programs: Map<string, string>;

// The programs are run as a user would: with the package that npm makes, in a directory of their own.
before(async () => {
  dir = await mkdtemp(join(tmpdir(), "lapse-docs-"));
  programs = new Map();
  for (const [, code] of (await readFile(page, "utf8")).matchAll(/^```js\n([\s\S]*?)^```/gm)) {
    const name = /^\/\/ (\S+\.mjs)\n/.exec(code!)?.[1];
    assert.ok(name, `a program without a name: ${code}`);
    programs.set(name, code!);
    await writeFile(join(dir, name), code!);
  }
  await run("npm", ["pack", "--pack-destination", dir], { cwd: root });
  await writeFile(join(dir, "package.json"), '{"name":"shop","private":true}');
  await run("npm", ["install", "--offline", "--no-audit", "--no-fund", "./lapsehq-lapse-0.0.0.tgz"], { cwd: dir });
  server = await Server.start();
  client = new Client(server.url);
});
after(async () => {
  await server.stop();
  await rm(dir, { recursive: true, force: true });
});

/** Runs a program until it has said all of `lines`, then stops it, and returns its output. */
async function program(name: string, lines: RegExp[], env: object = {}, meanwhile = async (): Promise<void> => {}): Promise<string> {
  assert.ok(programs.delete(name), `the page has no ${name}`);
  const child = spawn(process.execPath, [name], { cwd: dir, env: { ...process.env, LAPSE_URL: server.url, ...env } });
  let out = "";
  for (const stream of [child.stdout, child.stderr]) stream.on("data", (text: Buffer) => (out += text.toString()));
  const ended = once(child, "exit");
  await meanwhile();
  await until(() => child.exitCode !== null || lines.every((line) => line.test(out)));
  child.kill("SIGTERM");
  const [code] = (await ended) as [number | null];
  for (const line of lines) assert.match(out, line);
  assert.equal(code, 0, out);
  return out;
}

test("every program of docs/clients.md", async (t) => {
  const ends = async (name: string, wanted: RegExp): Promise<void> => {
    assert.ok(programs.delete(name), `the page has no ${name}`);
    const { stdout } = await run(process.execPath, [name], { cwd: dir, env: { ...process.env, LAPSE_URL: server.url } });
    assert.match(stdout, wanted);
  };
  await t.test("send", () => ends("send.mjs", /^order-42 is due at 20/));
  await t.test("worker", async () => void (await program("worker.mjs", [/^cancel \{ order: 42 \} attempt 1$/m])));
  await t.test("calls", () => ends("calls.mjs", /^2 tasks\ncoupon-7.day pending\ncoupon-7.close pending\n\{ cancelled: 2, delivering: \[\] \}\n$/));
  await t.test("events", () => ends("events.mjs", /^scheduled\n$/));
  await t.test("failures", () => ends("failures.mjs", /^too late: unknown or finished: order-unknown\n$/));
  await t.test("mail", async () => {
    const out = await program("mail.mjs", [/^sent to zoe@shop.example false$/m, /^mail-2 Kill: no address$/m, /^mail-3 RetryAfter: the mailbox is full$/m]);
    assert.match(out, /acked: 1,\s+released: 1,\s+buried: 1,/);
  });
  await t.test("hook", async () => {
    const port = await freePort();
    await client.setTopic("order.expired", { delivery: { kind: "webhook", url: `http://127.0.0.1:${port}/`, secret: "shop" }, retry: { min_backoff: "50ms" } });
    await client.schedule({ id: "order.44", topic: "order.expired", payload: { order: 44 } });
    await program("hook.mjs", [/^cancel order.44 \{ order: 44 \}$/m], { PORT: String(port), LAPSE_SECRETS: `whsec_${Buffer.alloc(24).toString("base64")} ${secret}` });
  });
  assert.deepEqual([...programs.keys()], []);
});

test("the programs are valid TypeScript", async () => {
  const tsc = join(root, "node_modules/.bin/tsc");
  const text = await readFile(page, "utf8"), names = [...text.matchAll(/^\/\/ (\S+\.mjs)$/gm)].map((m) => m[1]!);
  const typed = (text + (await readFile(join(root, "README.md"), "utf8"))).matchAll(/^```ts\n([\s\S]*?)^```/gm);
  for (const [i, [, code]] of [...typed].entries()) {
    names.push(`typed${i}.mts`);
    await writeFile(join(dir, `typed${i}.mts`), code!);
  }
  assert.ok(names.includes("typed1.mts"));
  await run(tsc, ["--noEmit", "--allowJs", "--checkJs", "--strict", "--noImplicitAny", "false", "--target", "es2022", "--module", "nodenext", "--types", "node", "--typeRoots", join(root, "node_modules/@types"), ...names], { cwd: dir }).catch((e: { stdout: string }) => assert.fail(e.stdout));
});

async function freePort(): Promise<number> {
  const s = createServer().listen(0, "127.0.0.1");
  await once(s, "listening");
  const { port } = s.address() as AddressInfo;
  s.close();
  await once(s, "close");
  return port;
}
