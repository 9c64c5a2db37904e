// Mistakes that users make, and what they are told. In TypeScript most do not compile; these calls are as of JavaScript.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { Client, TidegateError } from "tidegate";
import { permitOf, tidegate } from "tidegate/express";

import { Server } from "./server.js";

const POLICIES = `
version: 1
store: { kind: memory, keys: 1000 }
policies:
  - { name: rate, match: { attributes: { app: rate } }, by: [user.id], limit: { rate: 1/h, burst: 100 } }
  - name: tokens
    match: { attributes: { app: tokens } }
    by: [user.id]
    cost: { estimate: 800, settle: llm.input + llm.output }
    limit: { rate: 1000/h }
  - { name: places, match: { attributes: { app: places } }, limit: { algorithm: concurrency, max: 2, ttl: 1min } }
`;

let server: Server;
before(async () => {
  server = await Server.start(POLICIES);
});
after(() => server.stop());

/** Passes a value as if its type were right, as a program without types does. */
function as<T>(value: unknown): T {
  return value as T;
}

type Options = ConstructorParameters<typeof Client>[0];

const make = (options: object): Client => new Client(as<Options>({ url: server.url, deadlineMs: 10_000, ...options }));

async function told(what: () => unknown): Promise<string> {
  try {
    await what();
  } catch (error) {
    assert.ok(error instanceof TidegateError, String(error));
    assert.notEqual(error.kind, "unavailable", "a mistake is no outage");
    return error.message;
  }
  throw new Error("the mistake was not noticed");
}

const MISTAKES: readonly (readonly [string, () => unknown, RegExp])[] = [
  ["an address in place of options", () => new Client(as("http://127.0.0.1:8080")), /write new Client\(\{ url: /],
  ["no scheme", () => make({ url: "localhost:8080" }), /"localhost:8080" begins with neither http:\/\/ .* such as http:\/\/127/],
  ["no address", () => make({ url: process.env["NO_SUCH_VARIABLE"] }), /url undefined is no address/],
  ["the path of a call", () => make({ url: `${server.url}/v1/check` }), /has the path of a call/],
  ["a login in the address", () => make({ url: "http://me:secret@127.0.0.1:1" }), /has a login/],
  ["a token as it stands in a file", () => make({ token: "0123456789abcdef\n" }), /newline .* at 17 of 17; .*token\.trim\(\)/],
  ["an empty token", () => make({ token: "" }), /token is empty/],
  ["another word for onError", () => make({ onError: "allow" }), /onError is "allow"; write "open" .* or "closed"/],
  ["an option of another library", () => make({ timeout: 500 }), /option "timeout" is not known; there are url, .*deadlineMs/],
  ["a deadline with its unit", () => make({ deadlineMs: "500ms" }), /deadlineMs is "500ms"; write milliseconds/],
  ["no deadline", () => make({ deadlineMs: Infinity }), /deadlineMs is Infinity/],
  ["a user who has not signed in", () => make({}).check(as({ app: "rate", "user.id": undefined })), /"user\.id" is undefined; leave it out/],
  ["a request in place of attributes", () => make({}).check(as(new Request("http://a/"))), /attributes are an object Request; send a plain object/],
  ["headers in place of attributes", () => make({}).check(as(new Headers({ a: "b" }))), /attributes are an object Headers/],
  ["a key in place of attributes", () => make({}).check(as("ann")), /attributes are "ann"; send a plain object/],
  ["an attribute with several values", () => make({}).check(as({ "user.id": ["a", "b"] })), /"user\.id" is a list; send text/],
  ["a number that is none", () => make({}).check({ "user.id": Number.NaN }), /"user\.id" is NaN/],
  ["a cost that is worked out", () => make({}).check({ app: "rate" }, { cost: 10 / 4 }), /cost is 2\.5; send a whole number/],
  ["one policy in place of a list", () => make({}).check({ app: "rate" }, { policies: as("rate") }), /policies is "rate"; name at least one/],
  ["a policy that is not there", () => make({}).check({ app: "rate" }, { policies: ["rates"] }), /no policy `rates`; did you mean "rate"\?/],
  ["a misspelt option of a check", () => make({}).check({ app: "rate" }, as({ costs: 3 })), /option "costs" is not known; there are cost/],
  ["a signal in place of options", () => make({}).check({ app: "rate" }, as(AbortSignal.timeout(1))), /options are an object AbortSignal; pass an object/],
  ["a signal that is none", () => make({}).check({ app: "rate" }, { signal: as(new AbortController()) }), /signal is an object AbortController; pass its `signal`/],
  ["work that runs already", () => make({}).spend({ app: "rate" }, as(Promise.resolve(1))), /the work is an object Promise; pass a function/],
  ["a function in place of options", () => make({}).spend({ app: "rate" }, () => 1, as(() => 1)), /options are a function; pass an object with some of .*used/],
  ["the ticket of a refusal", () => make({}).settle(as(null), { cost: 1 }), /ticket is null; pass the ticket of a decision that has one/],
  ["nothing to settle", () => make({}).settle("AbC", {}), /nothing to settle; tell cost/],
  ["tokens without a name", () => make({}).settle("AbC", as({ tokens: 3 })), /field "tokens" is not known; there are cost/],
  ["a decision in place of a ticket", () => make({}).extend(as({ ticket: "AbC" })), /ticket is an object/],
  ["proxies that are trusted", () => tidegate(make({}), { proxies: as(true) }), /proxies is true; write how many/],
  ["an option of another middleware", () => tidegate(make({}), as<object>({ windowMs: 60_000 })), /option "windowMs" is not known; there are .*proxies/],
  ["headers in capitals", () => tidegate(make({}), { headers: ["X-Api-Key"] }), /headers are a list; name them in lower case/],
  ["both ways to the address", () => tidegate(make({}), { proxies: 1, clientIp: () => "::1" }), /both proxies and clientIp/],
  ["options in place of the client", () => tidegate(as({ proxies: 1 })), /first argument is an object Object; pass a Client/],
];

for (const [name, what, message] of MISTAKES) {
  test(`mistake: ${name}`, async () => {
    assert.match(await told(what), message);
  });
}

test("mistake: no middleware before the handler", () => {
  assert.throws(() => permitOf({}), /no permit; put app\.use\(tidegate\(client\)\) before its handler/);
});

test("mistake: settled twice", async () => {
  const client = make({});
  const { ticket } = await client.check({ app: "tokens", "user.id": "twice" });
  await client.settle(ticket ?? "", { attributes: { "llm.input": 1, "llm.output": 1 } });
  const again = (): unknown => client.settle(ticket ?? "", { attributes: { "llm.input": 1, "llm.output": 1 } });
  assert.match(await told(again), /409: this ticket is settled already/);
});

test("mistake: extending what holds no place, or has ended", async () => {
  const client = make({});
  const permit = await client.acquire({ app: "places" });
  await permit.end();
  assert.match(await told(() => permit.extend()), /this permit has ended/);
  const unlimited = await client.acquire({ app: "none" });
  assert.match(await told(() => unlimited.extend()), /holds no places/);
});

test("mistake: what the model used is not where it was looked for", async () => {
  const answer = { usage: { total: 5 } } as { readonly usage: { readonly input?: number; readonly output?: number } };
  const amounts: readonly (readonly [() => unknown, RegExp])[] = [
    [() => ({ "llm.input": answer.usage.input, "llm.output": answer.usage.output }), /"llm\.input" is undefined; settle with a whole number/],
    [() => Number(answer.usage.input) + 1, /what was used is NaN/],
    [() => ({ "llm.inputs": 5 }), /no policy settles by `llm\.inputs`; .*did you mean llm\.input\?/],
    [() => ({ "llm.input": 5 }), /the estimate of policy "tokens" stands: llm\.output was not sent/],
    [() => { throw new TypeError("cannot read the usage"); }, /cannot read the usage/],
  ];
  for (const [n, [used, message]] of amounts.entries()) {
    const reports: string[] = [];
    const client = make({ report: (error: Error) => void reports.push(error.message) });
    const attributes = { app: "tokens", "user.id": `usage ${n}` };
    // The answer has cost money: it is returned, and the mistake told.
    assert.equal(await client.spend(attributes, () => answer, { used: as(used) }), answer);
    assert.match(String(reports), message);
    assert.equal(client.counts.unsettled, 1);
    // The estimate stands: nothing comes back for a number that is not known.
    assert.equal((await client.peek(attributes, { policies: ["tokens"] })).remaining, 200);
  }
});

test("mistake: another server at the address", async () => {
  const { createServer } = await import("node:http");
  const { listening } = await import("./server.js");
  const other = createServer((_, response) => response.writeHead(404).end("<html>no such page</html>"));
  const port = await listening(other);
  assert.match(await told(() => make({ url: `http://127.0.0.1:${port}` }).check({ app: "rate" })), /answered 404: .*see that this is the address of tidegate serve/);
  other.close();
  other.closeAllConnections();
});

test("mistakes that do not compile", () => {
  const client = make({});
  const never = async (): Promise<void> => {
    // @ts-expect-error: a promise has no `allowed`
    if (client.check({ app: "rate" }).allowed) return;
    // @ts-expect-error: undefined is no value
    await client.check({ "user.id": undefined });
    // @ts-expect-error: misspelt
    await client.check({ app: "rate" }, { waitMS: 5 });
    // @ts-expect-error: another word
    new Client({ url: "http://127.0.0.1:8080", onError: "fail-open" });
    // @ts-expect-error: a number is wanted
    tidegate(client, { proxies: "1" });
  };
  assert.equal(typeof never, "function");
});
