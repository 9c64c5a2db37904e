// The page "Rate limits in Express": its programs run as they stand there, with a real server and its policy file. Only the
// addresses are replaced; fragments stand between lines that make them programs.

import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import type { ChildProcess } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { Client } from "tidegate";

import { send } from "./http.js";
import { HERE, Server, freePort, until } from "./server.js";

const PAGE = readFileSync(join(HERE, "../../docs/express.md"), "utf8");

function blocks(language: string): string[] {
  return [...PAGE.matchAll(/^```(\w+)\n(.*?)^```$/gms)].filter(([, found]) => found === language).map(([, , text]) => text ?? "");
}

/** The block that has this text. */
function block(language: string, has: string): string {
  const found = blocks(language).filter((text) => text.includes(has));
  assert.equal(found.length, 1, `${found.length} blocks have ${has}`);
  return found[0] ?? "";
}

const IMPORTS = 'import express from "express";\nimport { Client } from "tidegate";\nimport { tidegate } from "tidegate/express";\n';
const CLIENT = 'const client = new Client({ url: "http://127.0.0.1:8080" });\n';
const MODEL = 'const model = async (/** @type {string} */ prompt) => ({ text: `${prompt} yourself`, input: 100, output: 200 });\n';
const APP = "const app = express();\n";
const SERVES = 'app.get("/api/search", (req, res) => void res.send("found"));\napp.listen(3000);\n';
const HEADERS = 'app.use(tidegate(client, { headers: ["x-api-key"] }));\n';

/** Lines before and after each block, by a text of the block. */
const PROGRAMS: Readonly<Record<string, readonly [string, string, string]>> = {
  app: ["", "// app.mjs", ""],
  proxies: [IMPORTS + CLIENT + APP, "proxies: 1", SERVES],
  users: [`${IMPORTS}${CLIENT}${APP}app.use((req, res, next) => { req.user = { id: "ann" }; next(); });\n`, "req.user", SERVES],
  gone: ['import { Client } from "tidegate";\n', "onError:", 'const { allowed, checked } = await client.check({ "request.path": "/" });\nconsole.log(allowed, checked, client.counts.open);\n'],
  chat: [IMPORTS + CLIENT + MODEL + APP + HEADERS, "permitOf(req)", SERVES],
  spend: [`import { Client } from "tidegate";\n${CLIENT}${MODEL}`, "client.spend(", ""],
  acquire: [`import { Client } from "tidegate";\n${CLIENT}`, "await using", ""],
  hono: [`import { serve } from "@hono/node-server";\nimport { Client } from "tidegate";\n${CLIENT}`, "new Hono()", "serve({ fetch: app.fetch, port: 3000 });\n"],
};

const FOLDER = join(HERE, "out/page");
const children: ChildProcess[] = [];
let server: Server;
let url: string;

before(async () => {
  server = await Server.start(block("yaml", "per-ip").replace("version: 1", "version: 1\nstore: { kind: memory, keys: 1000 }"));
  const port = await freePort();
  url = `http://127.0.0.1:${port}`;
  mkdirSync(FOLDER, { recursive: true });
  writeFileSync(join(FOLDER, "user.d.ts"), "declare namespace Express { interface Request { user?: { id: string } } }\n");
  for (const [name, [begin, has, end]] of Object.entries(PROGRAMS)) {
    const text = (begin + block("js", has) + end).replaceAll("http://127.0.0.1:8080", server.url).replaceAll("3000", String(port));
    writeFileSync(join(FOLDER, `${name}.mjs`), text);
  }
  const options = {
    extends: "../../tsconfig.json",
    compilerOptions: { allowJs: true, checkJs: true, noPropertyAccessFromIndexSignature: false, noUnusedLocals: false, noUnusedParameters: false, declaration: false, skipLibCheck: true, types: ["node"], lib: ["ES2022", "ESNext.Disposable", "DOM"], rootDir: ".", outDir: "run" },
    include: ["*.mjs", "*.d.ts"],
  };
  writeFileSync(join(FOLDER, "tsconfig.json"), JSON.stringify(options));
  execFileSync(join(HERE, "node_modules/.bin/tsc"), ["-p", FOLDER], { stdio: ["ignore", "inherit", "inherit"] });
});

after(async () => {
  children.forEach((child) => child.kill("SIGKILL"));
  await server.stop();
});

/** Runs a program to its end; answers what it printed. */
function printed(name: string): string {
  return execFileSync(process.execPath, [join(FOLDER, `run/${name}.mjs`)], { encoding: "utf8", stdio: ["ignore", "pipe", "inherit"] });
}

/** Starts a program that serves, and runs a test with it. */
async function serving(name: string, run: () => Promise<void>): Promise<void> {
  const child = spawn(process.execPath, [join(FOLDER, `run/${name}.mjs`)], { stdio: ["ignore", "inherit", "inherit"] });
  children.push(child);
  await until(`${name} serves`, async () => {
    assert.equal(child.exitCode, null, `${name} has ended`);
    return send(url, "/up").then(() => true, () => false);
  });
  await run();
  const ended = once(child, "exit");
  child.kill("SIGKILL");
  await ended;
}

test("every program of the page runs here", () => {
  assert.equal(blocks("js").length, Object.keys(PROGRAMS).length);
});

test("the first app answers as the page shows", () => serving("app", async () => {
  for (let n = 0; n < 3; n += 1) assert.equal((await send(url, "/api/search")).text, "found");
  const { status, headers } = await send(url, "/API/search");
  const [first, ...shown] = block("console", "curl -i").split("\n").slice(1).filter((line) => line !== "");
  assert.match(String(first), new RegExp(`^HTTP/1.1 ${status} `));
  // A second may have passed between the requests.
  const seconds = (line: string): string => line.replace(/(retry-after: |t=)\d+$/, "$1N");
  assert.ok(Number(headers["retry-after"]) > 20);
  for (const line of shown) {
    const name = line.slice(0, line.indexOf(":"));
    assert.equal(seconds(`${name}: ${String(headers[name])}`), seconds(line));
  }
}));

test("behind a proxy", () => serving("proxies", async () => {
  const forwarded = { "x-forwarded-for": "10.0.0.1, 198.51.100.1" };
  for (let n = 0; n < 3; n += 1) assert.equal((await send(url, "/api/search", forwarded)).status, 200);
  assert.equal((await send(url, "/api/search", { "x-forwarded-for": "10.0.0.2, 198.51.100.1" })).status, 429);
  assert.equal((await send(url, "/api/search", { "x-forwarded-for": "198.51.100.2" })).status, 200);
  assert.equal((await send(url, "/api/search")).status, 400);
}));

test("users", () => serving("users", async () => {
  const policy = "match: { path: /mine }\nby: [user.id]\nabsent: skip\nlimit: { rate: 1/h, burst: 1 }\n";
  assert.equal((await fetch(`${server.url}/v1/policies/per-user`, { method: "PUT", body: policy })).status, 201);
  assert.equal((await send(url, "/mine")).status, 404);
  assert.equal((await send(url, "/mine")).status, 429);
}));

test("a handler tells what it used", () => serving("chat", async () => {
  assert.equal((await send(url, "/chat", { "x-api-key": "bob" })).text, "hello yourself");
  const asked = { "request.path": "/chat", "request.header.x-api-key": "bob" };
  await until("300 are settled", async () => Number((await new Client({ url: server.url }).peek(asked)).remaining) >= 19_700);
}));

test("a program spends", async () => {
  assert.equal(printed("spend"), "hello yourself\n");
  // With what is left a call of that size is told when to come back.
  const client = new Client({ url: server.url });
  const asked = { "request.path": "/chat", "request.header.x-api-key": "ann" };
  assert.ok(Number((await client.peek(asked)).remaining) >= 19_700);
  const { ticket } = await client.check(asked);
  await client.settle(ticket ?? "", { attributes: { "llm.input": 40_000, "llm.output": 0 } });
  assert.match(printed("spend"), /^try again in \d+ ms\n$/);
});

test("a block holds a place", async () => {
  assert.equal(printed("acquire"), "7 places left\n");
  assert.equal(await server.placesTaken("reports"), 0);
});

test("an app of Hono", () => serving("hono", async () => {
  assert.equal((await send(url, "/api/search")).status, 429);
  assert.equal((await send(url, "/up")).status, 404);
}));

test("a server that is gone", async () => {
  await server.kill();
  assert.equal(printed("gone"), "true false 1\n");
});
