// Servers that are not Tidegate, or not well: whatever they answer, nothing passes without a mark, and nothing grows.

import assert from "node:assert/strict";
import { createServer } from "node:net";
import type { Socket } from "node:net";
import { test } from "node:test";
import { gzipSync } from "node:zlib";

import { Client, TidegateError } from "tidegate";

import { Server, listening } from "./server.js";

/** Runs a server that does one thing with each request, whose head it is given. */
async function answering(answer: (socket: Socket, head: string) => void): Promise<{ url: string; close: () => void }> {
  const sockets = new Set<Socket>();
  const server = createServer((socket) => {
    sockets.add(socket);
    socket.on("error", () => undefined);
    let head = "";
    socket.on("data", (bytes: Buffer) => {
      head += bytes.toString("latin1");
      if (!head.includes("\r\n\r\n")) return;
      answer(socket, head);
      head = "";
    });
  });
  const port = await listening(server);
  return { url: `http://127.0.0.1:${port}`, close: () => [server, ...sockets].forEach((end) => ("destroy" in end ? end.destroy() : end.close())) };
}

const JSON_HEAD = "content-type: application/json\r\n";

function http(status: string, headers: string, body: string | Buffer): Buffer {
  return Buffer.concat([Buffer.from(`HTTP/1.1 ${status}\r\n${headers}content-length: ${body.length}\r\n\r\n`, "latin1"), Buffer.from(body)]);
}

const passes = (more: object): string =>
  JSON.stringify({ decision: "allowed", policy: null, remaining: null, limit: null, delay_ms: 0, policies: [], ...more });

const NONSENSE: Readonly<Record<string, Buffer>> = {
  "no HTTP": Buffer.from("SSH-2.0-OpenSSH_9.7\r\n"),
  "an empty answer": http("200 OK", "", ""),
  "no content": Buffer.from("HTTP/1.1 204 No Content\r\n\r\n"),
  "a page": http("200 OK", "content-type: text/html\r\n", "<html>welcome to nginx</html>"),
  "half a document": http("200 OK", JSON_HEAD, '{"decision":"allowed","poli'),
  "half an answer": http("200 OK", JSON_HEAD, passes({})).subarray(0, -10),
  "half a head": Buffer.from("HTTP/1.1 200 OK\r\ncontent-le"),
  "null": http("200 OK", JSON_HEAD, "null"),
  "a list": http("200 OK", JSON_HEAD, `[${passes({})}]`),
  "another word": http("200 OK", JSON_HEAD, passes({ decision: "ALLOWED" })),
  "true": http("200 OK", JSON_HEAD, passes({ decision: true })),
  "no list of policies": http("200 OK", JSON_HEAD, '{"decision":"allowed"}'),
  "allowed, with the status of a refusal": http("429 Too Many Requests", JSON_HEAD, passes({})),
  "denied, with the status of a pass": http("200 OK", JSON_HEAD, passes({ decision: "denied" })),
  "refused by somebody else": http("429 Too Many Requests", "content-type: text/plain\r\n", "slow down"),
  "a gateway whose upstream is gone": http("502 Bad Gateway", "content-type: text/html\r\n", "<html>bad gateway"),
  "no text": http("200 OK", JSON_HEAD, Buffer.from([0xff, 0xfe, 0x00, 0x7b, 0xc3])),
  "deep": http("200 OK", JSON_HEAD, "[".repeat(500_000)),
  "squeezed": http("200 OK", `${JSON_HEAD}content-encoding: gzip\r\n`, gzipSync(Buffer.alloc(50_000_000, " "))),
  "not squeezed": http("200 OK", `${JSON_HEAD}content-encoding: gzip\r\n`, passes({})),
  "a header with a newline": http("200 OK", `${JSON_HEAD}ratelimit: a\rset-cookie: b\r\n`, passes({})),
};

for (const [name, bytes] of Object.entries(NONSENSE)) {
  test(`nonsense: ${name}`, async () => {
    const { url, close } = await answering((socket) => socket.end(bytes));
    const report = (): void => undefined;
    const before = process.memoryUsage().rss;
    for (const onError of ["open", "closed"] as const) {
      const client = new Client({ url, report, onError });
      const { allowed, checked, error } = await client.check({ app: "x" });
      assert.deepEqual([allowed, checked, client.counts[onError]], [onError === "open", false, 1]);
      assert.deepEqual([error?.kind, error?.mayHaveCharged], ["unavailable", true]);
      const message = error?.message ?? "";
      assert.ok(message.startsWith(url) && message.length < 400 && !/[\r\n]/.test(message), message);
    }
    const client = new Client({ url, report, onError: "open", deadlineMs: 100 });
    for (const call of [() => client.peek({ app: "x" }), () => client.settle("t", { cost: 1 }), () => client.extend("t")]) {
      await assert.rejects(call(), (error: TidegateError) => error.kind === "unavailable");
    }
    assert.ok(process.memoryUsage().rss - before < 200_000_000, "an answer was read whole");
    close();
  });
}

test("an answer without end is cut off, and so is one that drips", async () => {
  let sent = 0;
  const { url, close } = await answering((socket) => {
    socket.write(`HTTP/1.1 200 OK\r\n${JSON_HEAD}transfer-encoding: chunked\r\n\r\n`);
    const more = (): void => {
      while (!socket.destroyed) {
        sent += 0x10000;
        if (!socket.write(`10000\r\n${" ".repeat(0x10000)}\r\n`)) return void socket.once("drain", more);
      }
    };
    more();
  });
  await assert.rejects(new Client({ url, deadlineMs: 10_000 }).peek({ app: "x" }), /more than 1048576 bytes/);
  assert.ok(sent < 20_000_000, `${sent} bytes were sent`);
  close();

  const dripping = await answering((socket) => {
    socket.write(`HTTP/1.1 200 OK\r\n${JSON_HEAD}content-length: 100000\r\n\r\n`);
    const timer = setInterval(() => (socket.destroyed ? clearInterval(timer) : socket.write(" ")), 20);
  });
  const began = performance.now();
  await assert.rejects(new Client({ url: dripping.url, deadlineMs: 300 }).peek({ app: "x" }), /did not answer within 0.3 s/);
  assert.ok(performance.now() - began < 3000);
  dripping.close();
});

test("a redirect is not followed, so the token goes nowhere else", async () => {
  const heads: string[] = [];
  const elsewhere = await answering((socket, head) => {
    heads.push(head);
    socket.end(http("200 OK", JSON_HEAD, passes({})));
  });
  for (const status of ["301 Moved Permanently", "303 See Other", "307 Temporary Redirect", "308 Permanent Redirect"]) {
    const { url, close } = await answering((socket) => socket.end(http(status, `location: ${elsewhere.url}/v1/check\r\n`, "")));
    const client = new Client({ url, token: "0123456789abcdef" });
    await assert.rejects(client.peek({ app: "x" }), (error: TidegateError) => {
      assert.match(error.message, /redirects to http:.*; give the address of tidegate serve itself/);
      return error.kind === "unavailable";
    });
    close();
  }
  assert.deepEqual(heads, []);
  elsewhere.close();
});

test("an answer that is Tidegate's, but wild, does no harm", async () => {
  const wild = passes({
    remaining: -5, limit: "many", retry: "soon", reset_at: "never", delay_ms: "1e9", policies: [null, 7, { name: 3 }],
    marked: [1, "m"], ticket: 12, __proto__: { allowed: 1 }, constructor: 1,
  });
  const { url, close } = await answering((socket) => socket.end(http("200 OK", `${JSON_HEAD}ratelimit: \xff\xfe"p";r=1\r\n`, wild)));
  const decision = await new Client({ url }).check({ app: "x" });
  assert.deepEqual(
    [decision.remaining, decision.limit, decision.retry, decision.resetAt, decision.delayMs, decision.ticket, decision.marked],
    [null, null, null, null, 0, null, ["m"]],
  );
  close();

  // A wait that no timer holds is not cut to nothing, and ends with the signal.
  const slow = await answering((socket) => socket.end(http("200 OK", JSON_HEAD, passes({ decision: "delayed", delay_ms: 1e15 }))));
  await assert.rejects(new Client({ url: slow.url }).check({ app: "x" }, { signal: AbortSignal.timeout(200) }), { name: "TimeoutError" });
  slow.close();
});

test("what a stranger writes does not make a server look gone", async () => {
  // The server closes the connection on a body that is too long. Under onError: "open" that would let the stranger pass.
  const server = await Server.start("version: 1\nstore: { kind: memory, keys: 1000 }\npolicies: [{ name: all, by: [user.id], limit: { rate: 1/h } }]\n");
  const client = new Client({ url: server.url, onError: "open", deadlineMs: 10_000 });
  const long = "x".repeat(8192);
  const many = (count: number): Record<string, string> => Object.fromEntries(Array.from({ length: count }, (_, n) => [`a${n}`, long]));
  for (const attributes of [
    { "user.id": "x".repeat(8193) }, { "user.id": "\u2603".repeat(4000) }, { "user.id": "half \ud83d" }, many(9), many(65),
    { ["n".repeat(257)]: "x" }, { "user.id": "\u0000".repeat(8192), b: "\u0000".repeat(8192) },
    { "user.id": "x".repeat(20_000_000) },
  ]) {
    await assert.rejects(client.check(attributes), (error: TidegateError) => {
      assert.ok(error.message.length < 400, error.message);
      // Refused before it was sent.
      return error.kind === "input" && error.answered === null;
    });
  }
  assert.equal(client.counts.open, 0);
  // What just fits is decided.
  assert.equal((await client.check({ "user.id": long })).checked, true);
  assert.equal((await client.check({ "user.id": "\u2603".repeat(2730) })).checked, true);
  assert.equal((await client.check({ ["n".repeat(256)]: "x", "user.id": "y" })).checked, true);
  assert.equal((await client.check({ ...many(7), "user.id": "z" })).checked, true);

  // Values stay values, whatever they look like.
  for (const [n, user] of ["\r\nx-tidegate-token: y\r\n\r\n", '", "cost": 9, "x": "', "\u0000\u2028\u007f", "__proto__"].entries()) {
    const decision = await client.check({ "user.id": user, n });
    assert.deepEqual([decision.checked, decision.remaining], [true, 0]);
  }
  assert.equal((await client.check(JSON.parse('{"__proto__": "x", "user.id": "proto"}') as Record<string, string>)).remaining, 0);
  await server.stop();
});

test("a server that closes every connection is asked anew, and no call hangs", async () => {
  const { url, close } = await answering((socket) => socket.end(http("200 OK", `${JSON_HEAD}connection: close\r\n`, passes({}))));
  const client = new Client({ url, deadlineMs: 10_000 });
  const decisions = await Promise.all(Array.from({ length: 100 }, () => client.check({ app: "x" })));
  assert.ok(decisions.every((decision) => decision.checked));
  close();
});
