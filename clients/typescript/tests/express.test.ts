// Apps of Express 4 and 5 over real HTTP, with a real server.

import assert from "node:assert/strict";
import { createServer } from "node:http";
import type { Server as HttpServer } from "node:http";
import { after, before, describe, test } from "node:test";

import express5 from "express";
import type { ErrorRequestHandler, Express, Request } from "express";
import express4 from "express4";
import type { Request as Request4 } from "express4";
import { Client } from "tidegate";
import { permitOf, tidegate } from "tidegate/express";

import { begin, send } from "./http.js";
import { Server, listening, until } from "./server.js";

const POLICIES = `
version: 1
store: { kind: memory, keys: 10000 }
policies:
  - { name: per-ip, match: { path: /api/** }, by: [client.ip], limit: { rate: 2/h, burst: 3 } }
  - { name: per-user, match: { path: /me }, by: [user.id], absent: skip, limit: { rate: 1/h, burst: 1 } }
  - { name: per-key, match: { path: /keyed }, by: [request.header.x-api-key], absent: charge, limit: { rate: 1/h, burst: 1 } }
  - { name: reports, match: { path: /reports/** }, limit: { algorithm: concurrency, max: 1, ttl: 1min } }
  - { name: brief, match: { path: /brief }, limit: { algorithm: concurrency, max: 1, ttl: 2s } }
  - { name: waits, match: { path: /waits }, limit: { rate: 2/s, burst: 1, max_wait: 5s } }
  - name: tokens
    match: { path: /llm }
    by: [user.id]
    cost: { estimate: 800, settle: llm.output }
    limit: { rate: 1000/h }
`;

// The types fit both; the rest of this file is written once.
express4().use(tidegate(new Client({ url: "http://127.0.0.1:1" }), { clientIp: (req: Request4) => req.ip }));
const VERSIONS = [["4", express4 as unknown as typeof express5], ["5", express5]] as const;

const pause = (ms: number): Promise<void> => new Promise((wait) => setTimeout(wait, ms));

for (const [version, express] of VERSIONS) {
  describe(`Express ${version}`, () => {
    let server: Server;
    let reports: string[];
    const apps: HttpServer[] = [];
    before(async () => {
      server = await Server.start(POLICIES);
    });
    after(async () => {
      apps.forEach((app) => app.close().closeAllConnections());
      await server.stop();
    });

    const client = (options: Partial<ConstructorParameters<typeof Client>[0]> = {}): Client => {
      reports = [];
      return new Client({ url: server.url, deadlineMs: 10_000, report: (error) => void reports.push(error.message), ...options });
    };

    /** Serves an app; answers its address. */
    async function serve(set: (app: Express) => void): Promise<string> {
      const app = express();
      set(app);
      app.use((req, res) => void res.send(`seen ${req.path}`));
      // Express tells errors that nobody handles on the console.
      app.set("env", "test");
      const http = createServer(app as unknown as (req: object, res: object) => void);
      apps.push(http);
      return `http://127.0.0.1:${await listening(http)}`;
    }

    test("each address has its limit, told in headers and a problem document", async () => {
      const url = await serve((app) => app.use(tidegate(client())));
      const first = await send(url, "/api/a?page=1");
      assert.equal(first.text, "seen /api/a");
      assert.match(String(first.headers["ratelimit"]), /^"per-ip";r=2;t=\d+$/);
      assert.equal(first.headers["ratelimit-policy"], '"per-ip";q=3;w=5400');
      assert.equal(first.headers["retry-after"], undefined);
      await send(url, "/api/b");
      await send(url, "/api/c", {}, "POST");
      const refused = await send(url, "/api/d");
      assert.equal(refused.status, 429);
      assert.ok(Number(refused.headers["retry-after"]) > 1700);
      assert.match(String(refused.headers["ratelimit"]), /^"per-ip";r=0/);
      assert.equal(refused.headers["content-type"], "application/problem+json");
      assert.equal(refused.headers["cache-control"], "no-store");
      const { title, status, retry, ...rest } = JSON.parse(refused.text) as Record<string, unknown>;
      assert.deepEqual([title, status, retry, rest["violated-policies"]], ["Quota exceeded", 429, "after", ["per-ip"]]);
      assert.equal((await send(url, "/other")).status, 200);
      assert.deepEqual(reports, []);
    });

    test("no spelling of the path passes the limit by", async () => {
      const url = await serve((app) => {
        app.use(tidegate(client(), { clientIp: () => "203.0.113.77" }));
        const api = express.Router();
        api.get("/search", (_, res) => void res.send("found"));
        app.use("/api", api);
      });
      let found = 0;
      for (const path of ["/api/search", "/API/search", "/Api/Search", "/api/search/", "/api/SEARCH?x=/api", "/aPi/search"]) {
        found += Number((await send(url, path)).text === "found");
      }
      assert.equal(found, 3);
      // Handlers that decode the path, as those of files do, find these too.
      for (const path of ["/%41PI/search", "/a%50%69/x", "/%2541pi"]) {
        assert.equal((await send(url, path)).status, path.includes("%25") ? 200 : 429, path);
      }
      // Each spelling reaches the route, so it was the limit that refused.
      const open = await serve((app) => app.use("/api", express.Router().get("/search", (_, res) => void res.send("found"))));
      assert.equal((await send(open, "/API/SEARCH/")).text, "found");
    });

    test("a mounted router is limited by the whole path", async () => {
      const url = await serve((app) => {
        const api = express.Router();
        api.use(tidegate(client(), { clientIp: () => "203.0.113.78" }));
        api.get("/x", (req, res) => void res.send(permitOf(req).decision.policy));
        app.use("/api", api);
      });
      assert.equal((await send(url, "/api/x")).text, "per-ip");
      assert.equal((await send(url, "/other")).text, "seen /other");
    });

    test("X-Forwarded-For counts only as far as the proxies are told", async () => {
      const address = async (options: Parameters<typeof tidegate>[1], forwarded?: string | string[]): Promise<string> => {
        const seen: string[] = [];
        // The attributes of the check itself, as the server gets them.
        const spy: typeof fetch = (url, init) => {
          const body = JSON.parse(String(init?.body)) as { readonly attributes: Record<string, string> };
          seen.push(body.attributes["client.ip"] ?? "none");
          return fetch(url, init);
        };
        const url = await serve((app) => app.use(tidegate(client({ fetch: spy }), options)));
        const { status } = await send(url, "/", forwarded === undefined ? {} : { "x-forwarded-for": forwarded });
        return status === 200 ? String(seen) : String(status);
      };
      assert.equal(await address({}), "127.0.0.1");
      assert.equal(await address({}, "198.51.100.1"), "127.0.0.1");
      assert.match(String(reports), /has X-Forwarded-For, which is not read: .* write `proxies: 1`/);
      assert.equal(await address({ proxies: 0 }, "198.51.100.1"), "127.0.0.1");
      assert.deepEqual(reports, []);
      assert.equal(await address({ proxies: 1 }, "198.51.100.1"), "198.51.100.1");
      // What stands left of the proxies' own entries, a caller has written.
      assert.equal(await address({ proxies: 1 }, "10.0.0.1, 198.51.100.1"), "198.51.100.1");
      assert.equal(await address({ proxies: 2 }, "10.0.0.1, 198.51.100.1, 192.0.2.7"), "198.51.100.1");
      assert.equal(await address({ proxies: 1 }, ["10.0.0.1", "198.51.100.1"]), "198.51.100.1");
      assert.equal(await address({ proxies: 1 }, "[2001:db8::1]:4711"), "2001:db8::1");
      assert.equal(await address({ proxies: 1 }, "198.51.100.1:80"), "198.51.100.1");
      assert.equal(await address({ proxies: 1 }, "::ffff:198.51.100.1"), "::ffff:198.51.100.1");
      // A count too high, a proxy passed by, or a header that is no list of addresses.
      for (const forwarded of [undefined, "", "unknown", "198.51.100.1, _hidden", "1.2.3.4.5", ",", "198.51.100.1,", "a b"]) {
        assert.equal(await address({ proxies: 1 }, forwarded), "400", String(forwarded));
      }
      assert.equal(await address({ proxies: 2 }, "198.51.100.1"), "400");
      for (const text of [undefined, "", "nobody"]) assert.equal(await address({ clientIp: () => text }), "400");
      assert.equal(await address({ clientIp: (req) => String(req.headers["cf-connecting-ip"] ?? "192.0.2.1") }), "192.0.2.1");
    });

    test("attributes of one's own, and their mistakes", async () => {
      const url = await serve((app) => {
        app.use(tidegate(client(), { attributes: (req: Request) => ({ "user.id": req.get("x-user") ?? "nobody" }) }));
        app.use(((error, _req, res, _next) => void res.status(500).send(String(error))) as ErrorRequestHandler);
      });
      assert.equal((await send(url, "/me", { "x-user": "ann" })).status, 200);
      assert.equal((await send(url, "/me", { "x-user": "ann" })).status, 429);
      assert.equal((await send(url, "/me", { "x-user": "bob\t\u00e9" })).status, 200);
      // A stranger's value is the stranger's fault.
      const long = await send(url, "/me", { "x-user": "x".repeat(9000) });
      assert.deepEqual([long.status, long.headers["content-type"]], [400, "application/problem+json"]);
      assert.equal((await send(url, `/${"x".repeat(9000)}`)).status, 400);

      const broken = await serve((app) => {
        app.use(tidegate(client({ onError: "open" }), { attributes: async (req: Request) => ({ "user.id": req.get("x-user") as string }) }));
        app.use(((error, _req, res, _next) => void res.status(500).send(String(error))) as ErrorRequestHandler);
      });
      const mistake = await send(broken, "/me");
      assert.equal(mistake.status, 500);
      assert.match(mistake.text, /attribute "user\.id" is undefined; leave it out/);
    });

    test("headers that policies use", async () => {
      const url = await serve((app) => app.use(tidegate(client(), { headers: ["x-api-key"] })));
      const get = async (key?: string): Promise<number> => (await send(url, "/keyed", key === undefined ? {} : { "X-Api-Key": key })).status;
      assert.deepEqual([await get("a"), await get("b"), await get(), await get("a"), await get()], [200, 200, 200, 429, 429]);
    });

    test("odd targets of requests", async () => {
      const url = await serve((app) => app.use(tidegate(client(), { clientIp: () => "203.0.113.79" })));
      assert.notEqual((await send(url, "*", {}, "OPTIONS")).status, 500);
      for (const path of ["http://example.org/api/x", "//api/x", "/api/../api/x"]) await send(url, path);
      assert.equal((await send(url, "/api/x")).status, 429);
    });

    test("a place is held until the response has ended", async () => {
      let finish = (): void => undefined;
      const url = await serve((app) => {
        app.use(tidegate(client()));
        app.get("/reports/slow", (_, res) => {
          res.write("begun ");
          finish = () => void res.end("done");
        });
      });
      const slow = begin(url, "/reports/slow");
      const response = await slow.response;
      assert.equal(await server.placesTaken("reports"), 1);
      const refused = await send(url, "/reports/other");
      assert.equal(refused.status, 503);
      assert.deepEqual((JSON.parse(refused.text) as Record<string, unknown>)["violated-policies"], ["reports"]);
      finish();
      response.resume();
      await until("the place is free", async () => (await server.placesTaken("reports")) === 0);
      assert.equal((await send(url, "/reports/other")).status, 200);
      await until("the place is free", async () => (await server.placesTaken("reports")) === 0);
    });

    test("a place is free again when the caller hangs up", async () => {
      const url = await serve((app) => {
        app.use(tidegate(client()));
        app.get("/reports/endless", (_, res) => void res.write("begun "));
      });
      for (let times = 0; times < 5; times += 1) {
        const endless = begin(url, "/reports/endless");
        await endless.response;
        assert.equal(await server.placesTaken("reports"), 1);
        endless.hangUp();
        await until("the place is free", async () => (await server.placesTaken("reports")) === 0);
      }
      assert.deepEqual(reports, []);
    });

    test("who hangs up while the server thinks holds no place, and reaches no handler", async () => {
      let handled = 0;
      const own = client();
      const url = await serve((app) => {
        app.use(tidegate(own));
        app.get("/reports/x", (_, res) => {
          handled += 1;
          res.end();
        });
        app.use(((_error, _req, _res, _next) => void (handled += 1)) as ErrorRequestHandler);
      });
      await send(url, "/");
      await server.pause();
      const hasty = begin(url, "/reports/x");
      await pause(100);
      hasty.hangUp();
      await pause(100);
      server.resume();
      await until("the late answer came", () => own.counts.late === 1);
      await until("the place is free", async () => (await server.placesTaken("reports")) === 0);
      assert.equal(handled, 0);
      assert.deepEqual(reports, []);
    });

    test("a handler that throws, and one that takes longer than the ttl", async () => {
      const url = await serve((app) => {
        app.use(tidegate(client()));
        app.get("/reports/throws", () => {
          throw new Error("a fault of the handler");
        });
        app.get("/brief", async (_, res) => {
          await pause(3500);
          res.end("done");
        });
      });
      assert.equal((await send(url, "/reports/throws")).status, 500);
      await until("the place is free", async () => (await server.placesTaken("reports")) === 0);
      const slow = send(url, "/brief");
      await pause(2700);
      assert.equal((await send(url, "/brief")).status, 503);
      assert.equal((await slow).text, "done");
      assert.deepEqual(reports, []);
    });

    test("requests that are put off wait", async () => {
      const url = await serve((app) => app.use(tidegate(client())));
      await send(url, "/waits");
      const began = performance.now();
      assert.equal((await send(url, "/waits")).status, 200);
      assert.ok(performance.now() - began > 200);
    });

    test("a handler tells what it used", async () => {
      const url = await serve((app) => {
        app.use(tidegate(client(), { attributes: (req: Request) => ({ "user.id": req.get("x-user") ?? "nobody" }) }));
        app.get("/llm", (req, res) => {
          permitOf(req).used({ "llm.output": 300 });
          res.send("an answer");
        });
      });
      await send(url, "/llm", { "x-user": "ann" });
      const left = async (): Promise<number | null> => (await client().peek({ "request.path": "/llm", "user.id": "ann" })).remaining;
      await until("300 are settled", async () => (await left()) === 700);
      assert.equal((await send(url, "/llm", { "x-user": "ann" })).status, 429);
    });

    test("the server is killed, and comes back", async () => {
      const closed = client({ onError: "closed" });
      const open = client({ onError: "open" });
      const [shut, passes] = await Promise.all([
        serve((app) => app.use(tidegate(closed))),
        serve((app) => {
          app.use(tidegate(open));
          app.get("/marked", (req, res) => void res.send(String(permitOf(req).decision.checked)));
        }),
      ]);
      assert.equal((await send(shut, "/")).status, 200);
      await server.kill();
      const refused = await send(shut, "/");
      assert.deepEqual([refused.status, refused.headers["retry-after"]], [503, "1"]);
      assert.equal((JSON.parse(refused.text) as Record<string, unknown>)["title"], "Service Unavailable");
      assert.ok(!refused.text.includes("127.0.0.1"), "strangers do not learn where the server is");
      assert.equal((await send(passes, "/marked")).text, "false");
      assert.deepEqual([closed.counts.closed, open.counts.open], [1, 1]);
      await server.run();
      assert.equal((await send(shut, "/")).status, 200);
      assert.equal((await send(passes, "/marked")).text, "true");
      assert.deepEqual([closed.counts.closed, open.counts.open], [1, 1]);
    });

    test("a crowd over HTTP", async () => {
      const url = await serve((app) => app.use(tidegate(client({ deadlineMs: 30_000 }), { clientIp: () => "203.0.113.80" })));
      const replies = await Promise.all(Array.from({ length: 100 }, () => send(url, "/api/x")));
      assert.equal(replies.filter(({ status }) => status === 200).length, 3);
      assert.equal(replies.filter(({ status }) => status === 429).length, 97);
    });
  });
}
