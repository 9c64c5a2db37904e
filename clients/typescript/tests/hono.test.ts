// Apps of Hono: on Node over real HTTP, and by fetch alone, as elsewhere.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { serve as serveNode } from "@hono/node-server";
import type { ServerType } from "@hono/node-server";
import { getConnInfo } from "@hono/node-server/conninfo";
import { Hono } from "hono";
import type { Context } from "hono";
import { compress } from "hono/compress";
import { streamSSE } from "hono/streaming";
import { Client } from "tidegate";
import { permitOf, tidegate } from "tidegate/hono";

import { begin, send } from "./http.js";
import { Server, until } from "./server.js";

const POLICIES = `
version: 1
store: { kind: memory, keys: 10000 }
policies:
  - { name: per-ip, match: { path: /api/** }, by: [client.ip], limit: { rate: 2/h, burst: 3 } }
  - { name: per-user, match: { path: /me }, by: [user.id], absent: skip, limit: { rate: 1/h, burst: 1 } }
  - { name: reports, match: { path: /reports/** }, limit: { algorithm: concurrency, max: 1, ttl: 1min } }
  - name: tokens
    match: { path: /llm }
    by: [user.id]
    cost: { estimate: 800, settle: llm.output }
    limit: { rate: 1000/h }
`;

let server: Server;
let reports: string[];
const apps: ServerType[] = [];
before(async () => {
  server = await Server.start(POLICIES);
});
after(async () => {
  for (const app of apps) {
    app.close();
    if ("closeAllConnections" in app) app.closeAllConnections();
  }
  await server.stop();
});

function client(options: Partial<ConstructorParameters<typeof Client>[0]> = {}): Client {
  reports = [];
  return new Client({ url: server.url, deadlineMs: 10_000, report: (error) => void reports.push(error.message), ...options });
}

interface Env {
  Variables: { user: string };
}

/** Serves an app on Node; answers its address. */
async function serve(set: (app: Hono<Env>) => void): Promise<string> {
  const app = made(set);
  return new Promise((resolve) => {
    apps.push(serveNode({ fetch: app.fetch, port: 0, hostname: "127.0.0.1" }, ({ port }) => resolve(`http://127.0.0.1:${port}`)));
  });
}

function made(set: (app: Hono<Env>) => void): Hono<Env> {
  const app = new Hono<Env>();
  set(app);
  app.all("*", (c) => c.text(`seen ${c.req.path}`));
  return app;
}

const free = (): Promise<void> => until("the place is free", async () => (await server.placesTaken("reports")) === 0);

test("each address has its limit, told in headers and a problem document", async () => {
  const url = await serve((app) => app.use(tidegate(client())));
  const first = await send(url, "/api/a?page=1");
  assert.equal(first.text, "seen /api/a");
  assert.match(String(first.headers["ratelimit"]), /^"per-ip";r=2;t=\d+$/);
  await send(url, "/api/%62");
  await send(url, "/api/c", {}, "POST");
  const refused = await send(url, "/api/d", { "x-forwarded-for": "198.51.100.1" });
  assert.equal(refused.status, 429);
  assert.ok(Number(refused.headers["retry-after"]) > 1700);
  assert.equal(refused.headers["content-type"], "application/problem+json");
  assert.match(String(reports), /X-Forwarded-For, which is not read/);
  assert.equal((await send(url, "/other")).status, 200);
});

test("proxies are counted, and addresses read by hand", async () => {
  const behind = await serve((app) => app.use(tidegate(client(), { proxies: 1 })));
  for (let n = 0; n < 3; n += 1) await send(behind, "/api/x", { "x-forwarded-for": `10.0.0.${n}, 198.51.100.2` });
  assert.equal((await send(behind, "/api/x", { "x-forwarded-for": "10.0.0.9, 198.51.100.2" })).status, 429);
  assert.equal((await send(behind, "/api/x", { "x-forwarded-for": "198.51.100.3" })).status, 200);
  assert.equal((await send(behind, "/api/x")).status, 400);
  const byHand = await serve((app) => app.use(tidegate(client(), { clientIp: (c: Context) => getConnInfo(c).remote.address })));
  assert.equal((await send(byHand, "/other")).status, 200);
});

test("attributes of one's own, and their mistakes", async () => {
  const url = await serve((app) => {
    app.use(async (c, next) => {
      c.set("user", c.req.header("x-user") ?? "nobody");
      await next();
    });
    app.use(tidegate(client({ onError: "open" }), { attributes: (c: Context<Env>) => ({ "user.id": c.get("user") }) }));
  });
  assert.equal((await send(url, "/me", { "x-user": "ann" })).status, 200);
  assert.equal((await send(url, "/me", { "x-user": "ann" })).status, 429);
  assert.equal((await send(url, "/me", { "x-user": "x".repeat(9000) })).status, 400);
  const broken = await serve((app) => {
    app.use(tidegate(client({ onError: "open" }), { attributes: (c: Context<Env>) => ({ "user.id": c.get("user") }) }));
    app.onError((error, c) => c.text(String(error), 500));
  });
  const mistake = await send(broken, "/me");
  assert.equal(mistake.status, 500);
  assert.match(mistake.text, /attribute "user\.id" is undefined; leave it out/);
});

/** An event at once, and the others when told. */
function streaming(app: Hono<Env>, wait: Promise<void>): void {
  app.get("/reports/stream", (c) => streamSSE(c, async (stream) => {
    await stream.writeSSE({ data: "begun" });
    await wait;
    await stream.writeSSE({ data: "done" });
  }));
}

test("on Node a place is held until the response has ended, or the caller hung up", async () => {
  let finish = (): void => undefined;
  const wait = new Promise<void>((resolve) => (finish = resolve));
  const url = await serve((app) => {
    app.use(compress());
    app.use(tidegate(client()));
    streaming(app, wait);
  });
  for (let times = 0; times < 3; times += 1) {
    const endless = begin(url, "/reports/stream");
    await endless.response;
    assert.equal(await server.placesTaken("reports"), 1);
    endless.hangUp();
    await free();
  }
  const slow = begin(url, "/reports/stream");
  const response = await slow.response;
  assert.equal(await server.placesTaken("reports"), 1);
  assert.equal((await send(url, "/reports/x")).status, 503);
  finish();
  let text = "";
  for await (const piece of response) text += String(piece);
  assert.equal(text, "data: begun\n\ndata: done\n\n");
  await free();
  assert.equal((await send(url, "/reports/x")).text, "seen /reports/x");
  await free();
  assert.deepEqual(reports, []);
});

test("by fetch alone a place is held until the body has ended, or is given up", async () => {
  let finish = (): void => undefined;
  const wait = new Promise<void>((resolve) => (finish = resolve));
  const app = made((hono) => {
    hono.use(tidegate(client(), { clientIp: () => "203.0.113.5" }));
    streaming(hono, wait);
    hono.get("/reports/empty", (c) => c.body(null, 204));
    hono.get("/reports/throws", () => {
      throw new Error("a fault of the handler");
    });
    hono.get("/reports/breaks", () => new Response(new ReadableStream({ pull: (controller) => controller.error(new Error("broken off")) })));
    hono.onError((error, c) => c.text(error.message, 500));
  });
  // Given up by its reader.
  const given = await app.request("/reports/stream");
  assert.equal(given.headers.get("content-type"), "text/event-stream");
  assert.equal(await server.placesTaken("reports"), 1);
  await given.body?.cancel();
  await free();
  // Hung up, with nobody reading.
  const caller = new AbortController();
  await app.request(new Request("http://a/reports/stream", { signal: caller.signal }));
  assert.equal(await server.placesTaken("reports"), 1);
  caller.abort();
  await free();
  // Read to its end.
  const whole = await app.request("/reports/stream");
  finish();
  assert.equal(await whole.text(), "data: begun\n\ndata: done\n\n");
  await free();
  for (const [path, status] of [["/reports/empty", 204], ["/reports/throws", 500], ["/reports/x", 200]] as const) {
    const response = await app.request(path);
    assert.equal(response.status, status);
    await response.text();
    await free();
  }
  await assert.rejects((await app.request("/reports/breaks")).text(), /broken off/);
  await free();
  assert.deepEqual(reports, []);
});

test("without an address, what would work is told", async () => {
  const app = made((hono) => {
    hono.use(tidegate(client()));
    hono.onError((error, c) => c.text(error.message, 500));
  });
  assert.match(await (await app.request("/")).text(), /address of the connection is not known here; write `clientIp: \(c\) => getConnInfo\(c\)/);
});

test("who hangs up while the server thinks holds no place, and reaches no handler", async () => {
  let handled = 0;
  const own = client();
  const url = await serve((app) => {
    app.use(tidegate(own));
    app.get("/reports/x", (c) => {
      handled += 1;
      return c.text("seen");
    });
  });
  await send(url, "/");
  await server.pause();
  const hasty = begin(url, "/reports/x");
  await new Promise((wait) => setTimeout(wait, 100));
  hasty.hangUp();
  await new Promise((wait) => setTimeout(wait, 100));
  server.resume();
  await until("the late answer came", () => own.counts.late === 1);
  await free();
  assert.equal(handled, 0);
});

test("a handler tells what it used", async () => {
  const url = await serve((app) => {
    app.use(tidegate(client(), { attributes: (c: Context) => ({ "user.id": c.req.header("x-user") ?? "nobody" }) }));
    app.get("/llm", (c) => {
      permitOf(c).used({ "llm.output": 300 });
      return c.text("an answer");
    });
  });
  await send(url, "/llm", { "x-user": "ann" });
  await until("300 are settled", async () => (await client().peek({ "request.path": "/llm", "user.id": "ann" })).remaining === 700);
});

test("the server is killed, and comes back", async () => {
  const closed = client({ onError: "closed" });
  const open = client({ onError: "open" });
  const shut = await serve((app) => app.use(tidegate(closed)));
  const passes = await serve((app) => {
    app.use(tidegate(open));
    app.get("/marked", (c) => c.text(String(permitOf(c).decision.checked)));
  });
  await send(shut, "/");
  await server.kill();
  const refused = await send(shut, "/");
  assert.deepEqual([refused.status, refused.headers["retry-after"]], [503, "1"]);
  assert.equal((await send(passes, "/marked")).text, "false");
  assert.deepEqual([closed.counts.closed, open.counts.open], [1, 1]);
  await server.run();
  assert.equal((await send(shut, "/")).status, 200);
  assert.equal((await send(passes, "/marked")).text, "true");
});
