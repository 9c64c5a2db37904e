// The scenario file that clients of all languages, and the server's own tests, run.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { Client, Denied, TidegateError } from "tidegate";
import type { Attributes, CheckOptions, Decision, Outcome, Permit, Settlement, Settling } from "tidegate";

import { HERE, Server } from "./server.js";

type Fields = Readonly<Record<string, unknown>>;

interface Scenario {
  readonly name: string;
  readonly client?: { readonly token?: string; readonly on_error?: "open" | "closed"; readonly deadline?: number };
  readonly steps: readonly Fields[];
}

interface File {
  readonly form: number;
  readonly token: string;
  readonly policy_file: object;
  readonly scenarios: readonly Scenario[];
}

const FILE = JSON.parse(readFileSync(join(HERE, "../scenarios.json"), "utf8")) as File;
assert.equal(FILE.form, 1, "the scenario file has another form than this test knows");

let server: Server;
before(async () => {
  server = await Server.start(JSON.stringify(FILE.policy_file), FILE.token);
});
after(() => server.stop());

for (const scenario of FILE.scenarios) {
  test(scenario.name, async () => {
    const { token = FILE.token, on_error = "closed", deadline = 10 } = scenario.client ?? {};
    const report = (): void => undefined;
    const client = new Client({ url: server.url, token, onError: on_error, deadlineMs: deadline * 1000, report });
    const run = new Run(client);
    for (const [index, step] of scenario.steps.entries()) {
      for (let times = Number(step["times"] ?? 1); times > 0; times -= 1) {
        await run.step(step).catch((error: unknown) => {
          throw new Error(`step ${index + 1}: ${JSON.stringify(step)}`, { cause: error });
        });
      }
    }
  });
}

/** What a step came to, as the scenario file calls it. */
type Seen = Record<string, unknown>;

class Run {
  readonly #client: Client;
  readonly #permits = new Map<unknown, Permit>();

  constructor(client: Client) {
    this.#client = client;
  }

  async step(step: Fields): Promise<void> {
    const began = performance.now();
    let seen: Seen;
    try {
      seen = await this.#do(step);
    } catch (error) {
      if (!(error instanceof TidegateError)) throw error;
      seen = { error: { kind: error.kind, status: error.answered }, says: error.message };
    }
    seen["took"] = (performance.now() - began) / 1000;
    const expected = (step["expect"] ?? {}) as Fields;
    if (expected["error"] === undefined) assert.equal(seen["error"], undefined, `an error: ${String(seen["says"])}`);
    for (const [name, value] of Object.entries(expected)) {
      if (name === "error") {
        const { says, kind, status } = value as Fields;
        const found = seen["error"] as Fields | undefined;
        assert.equal(found?.["kind"], kind, `kind of ${JSON.stringify(seen)}`);
        if (found?.["status"] !== null && status !== undefined) assert.equal(found?.["status"], status);
        if (says !== undefined) holds("says", seen["says"], says);
      } else {
        holds(name, seen[name], value);
      }
    }
  }

  async #do(step: Fields): Promise<Seen> {
    const [verb] = Object.keys(step);
    const what = step[verb ?? ""] as Fields;
    switch (verb) {
      case "check":
        return this.#decided(step, await this.#client.check(...asked(what)));
      case "peek":
        return this.#decided(step, await this.#client.peek(...asked(what)));
      case "acquire":
        return this.#refusedToo(async () => {
          const permit = await this.#client.acquire(...asked(what));
          this.#permits.set(step["as"], permit);
          return decisionSeen(permit.decision);
        });
      case "release":
        return settled(await this.#of(what).end((what["outcome"] as Outcome | undefined) ?? "success"));
      case "extend": {
        const lapses = await this.#of(what).extend();
        return { lapses_after: (lapses ?? Number.NaN) / 1000 };
      }
      case "settle": {
        const { of: _, ticket, ...fields } = what;
        const settled_ = await this.#client.settle(String(ticket ?? this.#of(what).ticket), fields as Settling);
        return settled(settled_);
      }
      case "spend":
        return this.#refusedToo(() => this.#spend(step, what));
      case "server":
        await this.#server(String(step["server"]));
        return {};
      case "pause":
        await new Promise((wait) => setTimeout(wait, Number(step["pause"]) * 1000));
        return {};
      default:
        throw new Error(`unknown step ${String(verb)}`);
    }
  }

  #of(what: Fields): Permit {
    const permit = this.#permits.get(what["of"]);
    assert.ok(permit, `no step is called ${String(what["of"])}`);
    return permit;
  }

  #decided(step: Fields, decision: Decision): Seen {
    if (step["as"] !== undefined) this.#permits.set(step["as"], this.#client.permit(decision));
    return decisionSeen(decision);
  }

  async #refusedToo(run: () => Promise<Seen>): Promise<Seen> {
    try {
      return await run();
    } catch (error) {
      if (error instanceof Denied) return decisionSeen(error.decision);
      throw error;
    }
  }

  async #spend(step: Fields, what: Fields): Promise<Seen> {
    const permits: Permit[] = [];
    const fails = new Error("the work fails");
    const work = (permit: Permit): Settling => {
      permits.push(permit);
      if (step["raises"] === true) throw fails;
      return step["settle"] as Settling;
    };
    try {
      const [attributes, options] = asked(what);
      await this.#client.spend(attributes, work, { ...options, used: (settle) => settle.attributes ?? settle.cost ?? 0 });
    } catch (error) {
      if (error !== fails) throw error;
    }
    const [permit] = permits;
    assert.ok(permit);
    return { ...decisionSeen(permit.decision), ...settled(await permit.end()) };
  }

  async #server(what: string): Promise<void> {
    if (what === "kill") await server.kill();
    else if (what === "start") await server.run();
    else if (what === "pause") await server.pause();
    else if (what === "resume") server.resume();
    else throw new Error(`unknown: ${what}`);
  }
}

function asked({ attributes, wait, ...rest }: Fields): [Attributes, CheckOptions] {
  const waitMs = wait === undefined ? {} : { waitMs: Number(wait) * 1000 };
  return [attributes as Attributes, { ...(rest as CheckOptions), ...waitMs }];
}

function decisionSeen(decision: Decision): Seen {
  const seconds = (ms: number | null): number | null => (ms === null ? null : ms / 1000);
  return {
    ...decision,
    would_deny: decision.wouldDeny,
    retry_after: seconds(decision.retryAfterMs),
    delay: seconds(decision.delayMs),
    ticket: decision.ticket !== null,
    says: decision.problem?.detail,
    error: undefined,
  };
}

function settled(settlement: Settlement | null): Seen {
  assert.ok(settlement, "nothing was settled");
  const charges = Object.fromEntries(settlement.charges.map((charge) => [charge.name, charge]));
  return { charges, outcome: settlement.outcome, note: settlement.note };
}

function holds(name: string, seen: unknown, expected: unknown): void {
  if (name === "says" || name === "note") {
    for (const part of Array.isArray(expected) ? expected : [expected]) {
      assert.ok(String(seen).includes(String(part)), `${name} ${JSON.stringify(part)} is not in ${JSON.stringify(seen)}`);
    }
  } else if (Array.isArray(expected) || expected === null || typeof expected !== "object") {
    assert.deepEqual(seen, expected, `${name} is ${JSON.stringify(seen)}`);
  } else if ("at_least" in expected || "at_most" in expected) {
    const { at_least = -Infinity, at_most = Infinity } = expected as { at_least?: number; at_most?: number };
    assert.ok(typeof seen === "number" && seen >= at_least && seen <= at_most, `${name} is ${String(seen)}, not ${JSON.stringify(expected)}`);
  } else {
    if (name === "charges") assert.deepEqual(Object.keys(expected).length === 0 ? seen : {}, {}, "there are charges");
    for (const [part, value] of Object.entries(expected)) holds(part, (seen as Fields | undefined)?.[part], value);
  }
}
