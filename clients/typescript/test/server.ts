import { type ChildProcess, spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { once } from "node:events";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import http from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import type { AddressInfo } from "node:net";

export const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

export const token = "lapse_XX7RCUWAECNJQHESSUBNYJYYNU";

/** A real server, with a ledger of its own. */
export class Server {
  url = "";
  private process?: ChildProcess;

  private flags: string[] = [];

  private constructor(private readonly dir: string) {}

  static async start(): Promise<Server> {
    const s = await Server.make();
    await s.serve("127.0.0.1:0");
    return s;
  }

  /** Starts one that asks for the token, which opens what schedulers and receivers do. */
  static async guarded(): Promise<Server> {
    const s = await Server.make();
    const file = join(s.dir, "tokens.yaml");
    const digest = createHash("sha256").update(token).digest("hex");
    await writeFile(file, `- {name: shop, scopes: [schedule, receive], sha256: "${digest}"}\n`, { mode: 0o600 });
    s.flags = ["--token-file", file];
    await s.serve("127.0.0.1:0");
    return s;
  }

  private static async make(): Promise<Server> {
    const s = new Server(await mkdtemp(join(tmpdir(), "lapse-ts-")));
    await writeFile(join(s.dir, "secrets.yaml"), `shop: [${secret}]\n`, { mode: 0o600 });
    return s;
  }

  async serve(listen: string): Promise<void> {
    const binary = process.env["LAPSE_BIN"];
    if (!binary) throw new Error("LAPSE_BIN must name the server's program");
    const args = ["serve", "--listen", listen, "--data", join(this.dir, "data"), "--webhook-secret-file", join(this.dir, "secrets.yaml"), ...this.flags];
    const child = spawn(binary, args, { stdio: ["ignore", "pipe", "pipe"] });
    this.process = child;
    process.once("exit", () => child.kill("SIGKILL")); // also when a test has hung
    const said: string[] = [];
    for (const stream of [child.stdout, child.stderr]) {
      const lines = createInterface({ input: stream! });
      const found = new Promise<void>((resolve) => {
        lines.on("line", (line) => {
          said.push(line);
          const url = /serves on (http:\S+)/.exec(line)?.[1];
          if (url) {
            this.url = url;
            resolve();
          }
        });
      });
      this.serving.push(found);
    }
    const died = once(child, "exit").then(() => Promise.reject(new Error(`the server ended:\n${said.join("\n")}`)));
    await Promise.race([...this.serving, died]);
    died.catch(() => {});
    this.serving = [];
  }

  private serving: Promise<void>[] = [];

  /** Kills the process, and starts another one on the same address. */
  async crash(): Promise<void> {
    const child = this.process!;
    child.kill("SIGKILL");
    await once(child, "exit");
    await this.serve(new URL(this.url).host);
  }

  async stop(): Promise<void> {
    if (this.process && this.process.exitCode === null && this.process.signalCode === null) {
      this.process.kill("SIGKILL");
      await once(this.process, "exit");
    }
    await rm(this.dir, { recursive: true, force: true });
  }
}

export interface Seen {
  method: string;
  path: string;
  body: string;
}

/** What a proxy does with a request: passes it on; passes it on and loses the answer; answers itself. */
export type Fate = "pass" | "lose" | "hang" | { status: number; headers?: Record<string, string>; body?: string };

/** A proxy in front of a server, which treats requests as it is told. */
export class Proxy {
  readonly seen: Seen[] = [];
  private readonly server: http.Server;
  url = "";

  private constructor(target: string, public fate: (seen: Seen, nth: number) => Fate) {
    this.server = http.createServer((req, res) => {
      const chunks: Buffer[] = [];
      req.on("data", (c: Buffer) => chunks.push(c));
      req.on("end", () => {
        const body = Buffer.concat(chunks);
        const seen = { method: req.method!, path: req.url!, body: body.toString() };
        this.seen.push(seen);
        const fate = this.fate(seen, this.seen.length);
        if (fate === "hang") return;
        if (typeof fate === "object") {
          res.writeHead(fate.status, fate.headers).end(fate.body);
          return;
        }
        const onward = http.request(target + req.url, { method: req.method, headers: req.headers }, (answer) => {
          if (fate === "lose") {
            answer.resume().on("end", () => res.destroy());
            return;
          }
          res.writeHead(answer.statusCode!, answer.headers);
          answer.pipe(res);
        });
        onward.on("error", () => res.destroy());
        res.on("close", () => onward.destroy());
        onward.end(body);
      });
    });
  }

  static async start(target: string, fate: (seen: Seen, nth: number) => Fate = () => "pass"): Promise<Proxy> {
    const p = new Proxy(target, fate);
    p.server.listen(0, "127.0.0.1");
    await once(p.server, "listening");
    p.url = `http://127.0.0.1:${(p.server.address() as AddressInfo).port}`;
    return p;
  }

  async stop(): Promise<void> {
    this.server.closeAllConnections();
    this.server.close();
    await once(this.server, "close");
  }
}

/** A promise and what fulfils it. */
export function gate<T = void>(): { opened: Promise<T>; open: (value: T) => void } {
  let open!: (value: T) => void;
  const opened = new Promise<T>((resolve) => (open = resolve));
  return { opened, open };
}

/** Looks again until a condition holds. The runner's time-out bounds it. */
export async function until(condition: () => boolean | Promise<boolean>): Promise<void> {
  while (!(await condition())) await new Promise((resolve) => setTimeout(resolve, 5));
}
