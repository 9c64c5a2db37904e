// What a client does, with a real server: deadlines, aborts, places, money, a crowd.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { connect, createServer } from "node:net";
import type { Socket } from "node:net";
import { join } from "node:path";
import { after, before, mock, test } from "node:test";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";

import { Client, Denied, TidegateError } from "tidegate";

import { HERE, Server, freePort, listening, until } from "./server.js";

const POLICIES = `
version: 1
store: { kind: memory, keys: 10000 }
policies:
  - { name: rate, match: { attributes: { app: rate } }, by: [user.id], limit: { rate: 1/h, burst: 100 } }
  - { name: paced, match: { attributes: { app: paced } }, limit: { rate: 1/h, burst: 1, max_wait: 1h }, cost: { estimate: 1 } }
  - { name: one, match: { attributes: { app: one } }, limit: { algorithm: concurrency, max: 1, ttl: 1min } }
  - { name: brief, match: { attributes: { app: brief } }, limit: { algorithm: concurrency, max: 1, ttl: 2s } }
  - name: tokens
    match: { attributes: { app: tokens } }
    by: [user.id]
    cost: { estimate: 800, settle: llm.input + llm.output }
    limit: { rate: 1000/h }
`;

let server: Server;
before(async () => {
  server = await Server.start(POLICIES);
});
const closing: (() => void)[] = [];
after(async () => {
  closing.forEach((close) => close());
  await server.stop();
});

/** Makes a client whose reports are kept. */
function client(options: Partial<ConstructorParameters<typeof Client>[0]> = {}): { client: Client; reports: string[] } {
  const reports: string[] = [];
  const report = (error: Error): void => void reports.push(error.message);
  return { client: new Client({ url: server.url, deadlineMs: 10_000, report, ...options }), reports };
}

async function left(user: string, app = "rate"): Promise<number | null> {
  return (await client().client.peek({ app, "user.id": user })).remaining;
}

const pause = (ms: number): Promise<void> => new Promise((wait) => setTimeout(wait, ms));

test("a thousand checks at once", async () => {
  const { client: many } = client({ deadlineMs: 30_000 });
  const decisions = await Promise.all(Array.from({ length: 1000 }, () => many.check({ app: "rate", "user.id": "crowd" })));
  assert.equal(decisions.filter((decision) => decision.allowed).length, 100);
  assert.ok(decisions.every((decision) => decision.checked));
  assert.deepEqual([many.counts.allowed, many.counts.denied], [100, 900]);
});

test("calls one after another share a connection", async () => {
  let connections = 0;
  const { url, close } = await relay((socket, to) => {
    connections += 1;
    socket.pipe(to).pipe(socket);
  });
  const { client: one } = client({ url });
  for (let n = 0; n < 20; n += 1) await one.check({ app: "rate", "user.id": "keep-alive" });
  // A call that begins while the answer before it is still being read opens a second.
  assert.ok(connections <= 2, `${connections} connections`);
  close();
});

test("a request that no policy is about is counted", async () => {
  const { client: one } = client();
  assert.equal((await one.check({ app: "rate", "user.id": "ann" })).limited, true);
  assert.equal((await one.check({ app: "rate", userId: "ann" })).limited, false);
  assert.deepEqual([one.counts.allowed, one.counts.unlimited], [2, 1]);
});

test("a deadline ends the call, and the late answer gives its place back", async () => {
  for (const onError of ["closed", "open"] as const) {
    const { client: hasty, reports } = client({ deadlineMs: 200, onError });
    await hasty.check({ app: "rate", "user.id": "warm" }, { deadlineMs: 10_000 });
    await server.pause();
    const began = performance.now();
    const decision = await hasty.check({ app: "one" });
    assert.deepEqual([decision.allowed, decision.checked, decision.status], [onError === "open", false, onError === "open" ? 200 : 503]);
    assert.match(decision.error?.message ?? "", /did not answer within 0.2 s; it may have charged/);
    assert.deepEqual([decision.error?.mayHaveCharged, hasty.counts[onError]], [true, 1]);
    assert.match(String(reports), /unchecked: .* did not answer/);
    assert.ok(performance.now() - began < 5000);
    server.resume();
    await until("the late answer came", () => hasty.counts.late === 1);
    await until("its place is free", async () => (await server.placesTaken("one")) === 0);
  }
});

test("late answers are awaited by a hundred calls at most, and not for long", async () => {
  let [open, asked] = [0, 0];
  const { url, close } = await relay((socket, to) => {
    // Node connects anew, without a request, where one was broken off.
    socket.once("data", () => {
      open += 1;
      asked += 1;
      socket.on("close", () => (open -= 1));
    });
    socket.pipe(to).pipe(socket);
  });
  const { client: hasty } = client({ url, deadlineMs: 5000, onError: "closed" });
  await server.pause();
  try {
    const checks = Array.from({ length: 130 }, () => hasty.check({ app: "rate", "user.id": "late" }));
    await until("all have asked", () => asked === 130);
    await Promise.all(checks);
    const began = performance.now();
    await until("the others are broken off", () => open <= 100);
    assert.ok(open > 0 && performance.now() - began < 2500);
    await until("all are broken off", () => open === 0);
  } finally {
    server.resume();
    close();
  }
  assert.deepEqual([hasty.counts.closed, hasty.counts.late, asked], [130, 0, 130]);
});

test("an abort ends the call with its reason, and never passes it unchecked", async () => {
  const { client: open } = client({ onError: "open" });
  await open.check({ app: "rate", "user.id": "warm" });
  await server.pause();
  const asked = open.check({ app: "one" }, { signal: AbortSignal.timeout(100) });
  await assert.rejects(asked, (error: Error) => error.name === "TimeoutError");
  server.resume();
  await until("its place is free", async () => open.counts.late === 1 && (await server.placesTaken("one")) === 0);
  assert.equal(open.counts.open, 0);
  await assert.rejects(open.check({ app: "rate" }, { signal: AbortSignal.abort(new Error("gone")) }), /gone/);
});

test("a paced request that is aborted while it waits gets its charge back", async () => {
  const { client: one } = client();
  assert.equal((await one.check({ app: "paced" })).delayMs, 0);
  const waiting = one.check({ app: "paced" }, { signal: AbortSignal.timeout(300) });
  await assert.rejects(waiting, (error: Error) => error.name === "TimeoutError");
  // Had it stayed charged, the next would wait for two hours, which is more than max_wait.
  await until("the charge is back", async () => (await one.peek({ app: "paced" })).allowed);
});

test("a check is sent once, also if its answer is lost; a settlement counts once", async () => {
  let cuts = 1;
  const { url, close } = await relay((socket, to) => {
    socket.pipe(to);
    to.on("data", (bytes: Buffer) => {
      if (socket.destroyed) return;
      if (cuts === 0) return void socket.write(bytes);
      cuts -= 1;
      socket.destroy();
    });
  });
  const { client: unlucky } = client({ url });
  assert.equal((await unlucky.check({ app: "rate", "user.id": "lost" }, { waitMs: 2000 })).error?.mayHaveCharged, true);
  assert.equal(await left("lost"), 99);

  const decision = await unlucky.check({ app: "tokens", "user.id": "lost" });
  cuts = 1;
  const settlement = await unlucky.settle(decision.ticket ?? "", { attributes: { "llm.input": 0, "llm.output": 900 } });
  assert.match(settlement.note ?? "", /an earlier try has settled/);
  assert.equal(await left("lost", "tokens"), 100);
  close();
});

test("places come back in all cases", async () => {
  const { client: one } = client();
  const works = new Error("the work fails");
  await assert.rejects(async () => {
    await using permit = await one.acquire({ app: "one" });
    assert.equal(permit.decision.remaining, 0);
    throw works;
  }, works);
  assert.equal(await server.placesTaken("one"), 0);

  await assert.rejects(one.spend({ app: "one" }, () => { throw works; }), works);
  assert.equal(await server.placesTaken("one"), 0);

  const permit = await one.acquire({ app: "one" });
  await assert.rejects(one.acquire({ app: "one" }), (error: Denied) => error.decision.status === 503);
  assert.equal((await permit.end(500))?.outcome, "failure");
  assert.equal(await permit.end("success"), await permit.end());
  assert.equal(await server.placesTaken("one"), 0);
});

test("a permit that nobody ends is told of", async () => {
  const { client: one, reports } = client();
  for (let n = 0; n < 5; n += 1) await (await one.acquire({ app: "rate", "user.id": "ends" })).end();
  await one.acquire({ app: "rate", "user.id": "forgets" });
  setFlagsFromString("--expose-gc");
  const collect = runInNewContext("gc") as () => void;
  await until("it is told", () => {
    collect();
    return reports.length > 0;
  });
  assert.match(String(reports), /^a permit was dropped and never ended/);
  assert.equal(one.counts.unsettled, 1);
});

test("who waits gets the place that comes free, and nobody waits longer than told", async () => {
  const { client: one } = client();
  const first = await one.acquire({ app: "one" });
  const began = performance.now();
  const refused = await one.check({ app: "one" }, { waitMs: 300 });
  assert.equal(refused.allowed, false);
  assert.ok(performance.now() - began < 2000);
  setTimeout(() => void first.end(), 300);
  const second = await one.acquire({ app: "one" }, { waitMs: 8000 });
  await second.end();
});

test("work that takes longer than the ttl keeps its place", async () => {
  const { client: one, reports } = client();
  let refused = 0;
  await one.spend({ app: "brief" }, async () => {
    for (const end = performance.now() + 3500; performance.now() < end; await pause(100)) {
      refused += Number(!(await one.check({ app: "brief" })).allowed);
    }
  });
  assert.ok(refused >= 5, `${refused} refused`);
  assert.deepEqual(reports, []);
  assert.equal(await server.placesTaken("brief"), 0);
});

test("a budget is settled by what the work returns, or tells", async () => {
  const { client: one, reports } = client();
  const asked = (user: string): Record<string, string> => ({ app: "tokens", "user.id": user });
  const usage = { input: 100, output: 200 };
  const result = await one.spend(asked("returns"), () => ({ text: "hello", usage }), {
    used: ({ usage: { input, output } }) => ({ "llm.input": input, "llm.output": output }),
  });
  assert.equal(result.text, "hello");
  assert.equal(await left("returns", "tokens"), 700);

  // A stream that breaks off has spent what it told.
  await assert.rejects(one.spend(asked("tells"), (permit) => {
    permit.used({ "llm.input": 100, "llm.output": 50 });
    throw new Error("broken off");
  }), /broken off/);
  assert.equal(await left("tells", "tokens"), 850);

  // Nothing told: the estimate stands.
  await one.spend(asked("silent"), () => "hello");
  assert.equal(await left("silent", "tokens"), 200);
  assert.deepEqual(reports, []);
});

test("what the work returned is not lost when the settlement fails", async () => {
  const own = await Server.start(POLICIES);
  const { client: one, reports } = client({ url: own.url, deadlineMs: 500 });
  const result = await one.spend({ app: "tokens", "user.id": "ann" }, async () => {
    await own.kill();
    return "an answer that cost money";
  }, { used: () => ({ "llm.input": 1, "llm.output": 1 }) });
  assert.equal(result, "an answer that cost money");
  assert.equal(one.counts.unsettled, 1);
  assert.match(String(reports), /cannot be reached \(ECONNREFUSED\)/);
  await own.stop();
});

test("a server that is gone refuses unless told otherwise, and nothing was charged", async () => {
  const own = await Server.start(POLICIES);
  const { client: one } = client({ url: own.url });
  await one.check({ app: "rate", "user.id": "ann" });
  await own.kill();
  const { allowed, status, error } = await one.check({ app: "rate", "user.id": "ann" });
  assert.deepEqual([allowed, status, error?.kind, error?.mayHaveCharged], [false, 503, "unavailable", false]);
  await assert.rejects(one.acquire({ app: "one" }), (denied: Denied) => !denied.decision.checked);
  await assert.rejects(one.peek({ app: "one" }), (gone: TidegateError) => gone.kind === "unavailable");
  await own.run();
  assert.equal((await one.check({ app: "rate", "user.id": "ann" })).remaining, 99);
  await own.stop();
});

test("a server whose store is gone decides itself, and that is counted", async () => {
  const own = await Server.start(`
version: 1
store: { kind: redis, url: "redis://127.0.0.1:${await freePort()}", nodes: 1 }
policies:
  - { name: passes, match: { attributes: { app: passes } }, limit: { rate: 1/h }, share: central, on_store_error: allow }
  - { name: denies, match: { attributes: { app: denies } }, limit: { rate: 1/h }, share: central, on_store_error: deny }
`);
  const { client: one, reports } = client({ url: own.url });
  const passed = await one.check({ app: "passes" });
  assert.deepEqual([passed.allowed, passed.checked, passed.limited], [true, true, false]);
  const denied = await one.check({ app: "denies" });
  assert.deepEqual([denied.allowed, denied.checked, denied.status], [false, true, 503]);
  assert.match(passed.storeError ?? "", /the store is unavailable/);
  assert.deepEqual([one.counts.storeErrors, one.counts.unlimited, reports.length], [2, 0, 2]);
  await own.stop();
});

test("a token that changes", async () => {
  const own = await Server.start(POLICIES, "0123456789abcdef");
  let token = "not-the-right-token";
  const { client: one } = client({ url: own.url, token: () => token, onError: "open" });
  await assert.rejects(one.check({ app: "rate" }), (error: TidegateError) => error.kind === "access" && error.answered === 401);
  token = "0123456789abcdef";
  assert.equal((await one.check({ app: "rate" })).checked, true);
  await own.stop();
});

test("where only fetch exists", () => {
  // A realm with what fetch needs, and nothing of Node.
  const program = `
    import { readFileSync } from "node:fs";
    import { SourceTextModule, createContext } from "node:vm";
    const web = { fetch, URL, TextEncoder, TextDecoder, AbortController, setTimeout, clearTimeout, performance, console };
    const context = createContext(web);
    const modules = new Map();
    const load = (path) => {
      if (!modules.has(path)) modules.set(path, new SourceTextModule(readFileSync(path, "utf8"), { context, identifier: path }));
      return modules.get(path);
    };
    const main = new SourceTextModule(\`
      import { Client } from "./index.js";
      const client = new Client({ url: "${server.url}", deadlineMs: 10_000 });
      const decision = await client.check({ app: "rate", "user.id": "fetch" });
      console.log(typeof process, decision.remaining, await client.spend({ app: "one" }, (permit) => permit.decision.limit));
    \`, { context });
    await main.link((name) => load("${join(HERE, "dist")}/" + name.replace("./", "")));
    await main.evaluate();`;
  const args = ["--experimental-vm-modules", "--no-warnings", "--input-type=module", "-e", program];
  assert.equal(execFileSync(process.execPath, args, { encoding: "utf8" }), "undefined 99 1\n");
});

test("by default one warning stands for many", async () => {
  const warn = mock.method(console, "warn", () => undefined);
  const one = new Client({ url: `http://127.0.0.1:9`, onError: "open" });
  for (let n = 0; n < 5; n += 1) assert.equal((await one.check({ app: "rate" })).allowed, true);
  warn.mock.restore();
  assert.equal(one.counts.open, 5);
  assert.equal(warn.mock.callCount(), 1);
  assert.match(String(warn.mock.calls[0]?.arguments[0]), /^tidegate: a request passed unchecked: http:\/\/127.0.0.1:9 cannot be reached/);
});

/** Opens a port in front of the server; `join` connects the two sides. */
async function relay(join: (socket: Socket, to: Socket) => void): Promise<{ url: string; close: () => void }> {
  const sockets = new Set<Socket>();
  const front = createServer((socket) => {
    const to = connect(Number(new URL(server.url).port), "127.0.0.1");
    for (const end of [socket, to]) {
      sockets.add(end);
      end.on("error", () => undefined);
    }
    socket.on("close", () => to.end());
    join(socket, to);
  });
  const port = await listening(front);
  const close = (): void => {
    front.close();
    sockets.forEach((socket) => socket.destroy());
  };
  closing.push(close);
  return { url: `http://127.0.0.1:${port}`, close };
}
