// Prints the key of each expired event, and when it came: subscriber.js HOST:PORT.
import { Redis } from "ioredis5";

const [host, port] = process.argv[2].split(":");
const events = new Redis({ host, port: Number(port), password: process.env.PASSWORD, retryStrategy: () => 50, maxRetriesPerRequest: null }).on("error", () => {});
events.on("message", (_channel, key) => process.stdout.write(`${key} ${Date.now()}\n`));
await events.subscribe("__keyevent@0__:expired");
process.stdout.write("subscribed 0\n");
