import type { Decision } from "./decision.js";
import { decisionIn, unchecked } from "./decision.js";
import { TidegateError, shown } from "./error.js";
import type { Amount, Asked, Attributes, Settling } from "./input.js";
import * as input from "./input.js";
import type { Charge, Extension, Settlement } from "./permit.js";
import { Permit } from "./permit.js";
import { later, pause, sleep, span } from "./time.js";
import type { Answer, Fetch, Token } from "./wire.js";
import { Wire, isObject } from "./wire.js";

export interface ClientOptions {
  /** The address of `tidegate serve`, such as `http://127.0.0.1:8080`. */
  readonly url: string;
  /** The server's token, with the scope `check`; a function if it changes. */
  readonly token?: Token | undefined;
  /**
   * What a check answers if the server is gone, late, or cannot decide: `open` lets the request pass, `closed`, the
   * default, refuses it with 503. Both are marked in the decision, counted and reported.
   */
  readonly onError?: "open" | "closed" | undefined;
  /** How long a call waits for its answer, in milliseconds; default 1,000. */
  readonly deadlineMs?: number | undefined;
  /** Where messages go about what was not limited, or not settled. By default to `console.warn`, one in ten seconds. */
  readonly report?: ((error: Error) => void) | undefined;
  /** In place of the global `fetch`: for Unix sockets or certificates by an agent of undici. */
  readonly fetch?: Fetch | undefined;
}

/** What bounds a call. */
export interface CallOptions {
  /** In place of the client's `deadlineMs`. */
  readonly deadlineMs?: number | undefined;
  /** Ends the call at once; it then fails with the reason of the signal. */
  readonly signal?: AbortSignal | undefined;
}

export interface CheckOptions extends CallOptions, Asked {
  /** How long to wait out refusals, in milliseconds: asks again when the refusal says that it can pass. Default 0. */
  readonly waitMs?: number | undefined;
}

export interface SpendOptions<T> extends CheckOptions {
  /** Reads from the result of the work what it spent. Without it, and without `permit.used`, the estimate stands. */
  readonly used?: ((result: T) => Amount) | undefined;
}

/** What the checks of a client came to, since it was made. */
export interface Counts {
  readonly allowed: number;
  readonly denied: number;
  /** Allowed because no policy is about the request: see whether its attributes are named as in the policy file. */
  readonly unlimited: number;
  /** Passed, and refused, by `onError`. */
  readonly open: number;
  readonly closed: number;
  /** Allowed or refused by the server while its store could not decide. */
  readonly storeErrors: number;
  /** Settlements and extensions that failed: an estimate stands, or a place lapses by its `ttl`. */
  readonly unsettled: number;
  /** Answers that came too late, whose charges and places were given back. */
  readonly late: number;
}

/** The server refused, in `acquire` or `spend`. `decision` says why, and when to try again. */
export class Denied extends TidegateError {
  override readonly name = "Denied";

  constructor(readonly decision: Decision) {
    const { problem, error } = decision;
    super("denied", error?.message ?? problem?.detail ?? "refused", decision.checked ? decision.status : null, false, error ?? undefined);
  }
}

/** How long an answer is awaited beyond the deadline, to give its places back; and for how many calls at once. */
const LATE_MS = 3000;
const LATE_CALLS = 100;
/** How often a settlement is sent: it counts once, however often it arrives. */
const SETTLE_TRIES = 4;
const WARNING_MS = 10_000;

/** A client of one server. Make one for the program: it keeps counts, and connections are kept by `fetch`. */
export class Client {
  readonly #wire: Wire;
  readonly #onError: "open" | "closed";
  readonly #deadlineMs: number;
  readonly #report: (error: Error) => void;
  readonly #counts = { allowed: 0, denied: 0, unlimited: 0, open: 0, closed: 0, storeErrors: 0, unsettled: 0, late: 0 };
  #lateCalls = 0;

  constructor(options: ClientOptions) {
    if (!isObject(options)) {
      throw new TidegateError("input", `options are ${shown(options)}; write new Client({ url: "http://127.0.0.1:8080" })`);
    }
    const { url, token, onError = "closed", deadlineMs = 1000, report = warning(), fetch } = options;
    input.known("option", options, ["url", "token", "onError", "deadlineMs", "report", "fetch"]);
    if (onError !== "open" && onError !== "closed") {
      throw new TidegateError("input", `onError is ${shown(onError)}; write "open" to let requests pass while the server is gone, or "closed" to refuse them`);
    }
    this.#wire = new Wire(url, token, fetch);
    this.#onError = onError;
    this.#deadlineMs = span("deadlineMs", deadlineMs, 1);
    this.#report = report;
  }

  /** A copy of the counts. */
  get counts(): Counts {
    return { ...this.#counts };
  }

  /**
   * Asks whether a request may pass, and charges it if so. Waits as long as the decision delays the work. Never tries
   * again by itself where the server may have charged.
   */
  async check(attributes: Attributes, options: CheckOptions = {}): Promise<Decision> {
    input.known("option", options, CHECK);
    const body = input.check(attributes, options);
    const { signal, waitMs = 0 } = options;
    const until = performance.now() + span("waitMs", waitMs, 0);
    for (let tries = 0; ; tries += 1) {
      const decision = await this.#decide(body, options);
      if (decision.allowed) {
        await this.#delay(decision, signal);
        return decision;
      }
      const wait = waitOf(decision, tries);
      if (wait === null || performance.now() + wait > until) return decision;
      await sleep(wait, signal);
    }
  }

  /** Asks how a request would be decided, and charges nothing. Fails if the server does not answer. */
  async peek(attributes: Attributes, options: CheckOptions = {}): Promise<Decision> {
    input.known("option", options, CHECK);
    const answer = await this.#ask("/v1/peek", input.check(attributes, options), options);
    const decision = decisionIn(answer);
    if (decision === null) throw this.#wire.refusal(answer);
    return decision;
  }

  /**
   * Checks, and holds what was charged until the work ends: by `await using`, or by `end`. Throws `Denied` if the request
   * may not pass. Places that nobody gives back lapse after the `ttl` of the policy.
   */
  async acquire(attributes: Attributes, options: CheckOptions = {}): Promise<Permit> {
    const decision = await this.check(attributes, { ticket: true, ...options });
    if (!decision.allowed) throw new Denied(decision);
    return this.permit(decision);
  }

  /**
   * Runs work that spends, and settles with what it returns. If it throws before it told `permit.used`, everything is
   * given back. Places are held, and extended, while it runs. What the work returned is never lost: a settlement that
   * fails is counted and reported. Throws `Denied` if the request may not pass.
   */
  async spend<T>(attributes: Attributes, work: (permit: Permit) => T | Promise<T>, options: SpendOptions<T> = {}): Promise<T> {
    if (typeof work !== "function") {
      throw new TidegateError("input", `the work is ${shown(work)}; pass a function, and what it spent by the option \`used\``);
    }
    input.known("option", options, [...CHECK, "used"]);
    const { used, ...asked } = options;
    const permit = await this.acquire(attributes, asked);
    permit.keep();
    let result: T;
    try {
      result = await work(permit);
    } catch (error) {
      await permit.finish(permit.told ? "failure" : "undone");
      throw error;
    }
    try {
      if (used !== undefined) permit.used(used(result));
    } catch (error) {
      this.lost(error);
    }
    const settlement = await permit.finish("success");
    for (const { name, note } of settlement?.charges ?? []) {
      if (note !== null) this.lost(new TidegateError("input", `the estimate of policy ${shown(name)} stands: ${note}`));
    }
    return result;
  }

  /** Makes the permit of a decision, to say how its work ended. */
  permit(decision: Decision): Permit {
    return new Permit({
      settle: (ticket, settling) => this.settle(ticket, settling),
      extend: (ticket) => this.extend(ticket),
      lost: (error) => this.lost(error),
    }, decision);
  }

  /**
   * Settles a ticket: what the work spent, how it ended, or both. Tries again if the server does not answer: a ticket
   * counts once.
   */
  async settle(ticket: string, settling: Settling, options: CallOptions = {}): Promise<Settlement> {
    input.known("field", settling, ["cost", "attributes", "status", "outcome", "refund"]);
    const sent = await this.#again("/v1/settle", input.settle(ticket, settling), options);
    if (sent === "before") {
      return { id: null, outcome: null, charges: [], note: "an earlier try has settled this ticket; its answer was lost" };
    }
    const { body } = sent;
    const id = text(body?.["decision_id"]);
    if (body === null || id === null || !Array.isArray(body["policies"])) throw this.#wire.refusal(sent);
    return { id, outcome: text(body["outcome"]), charges: body["policies"].filter(isObject).map(charge), note: text(body["note"]) };
  }

  /** Holds the places of a ticket for another `ttl`. From then on only the new ticket returns them. */
  async extend(ticket: string, options: CallOptions = {}): Promise<Extension> {
    if (typeof ticket !== "string" || ticket === "") {
      throw new TidegateError("input", `ticket is ${shown(ticket)}; pass the ticket of a decision that took a place`);
    }
    const sent = await this.#again("/v1/extend", JSON.stringify({ ticket }), options);
    if (sent === "before") {
      throw new TidegateError("ticket", "an earlier try has extended this ticket, and the new one was lost; its places lapse by themselves", 409);
    }
    const next = text(sent.body?.["ticket"]);
    const places = sent.body?.["places"];
    if (next === null || !Array.isArray(places)) throw this.#wire.refusal(sent);
    const lapses = places.filter(isObject).map((place) => place["lapses_after_ms"]).filter((ms) => typeof ms === "number");
    return { ticket: next, lapsesAfterMs: lapses.length === 0 ? null : Math.min(...lapses) };
  }

  /** Counts and reports a settlement or an extension that failed. */
  lost(error: unknown): void {
    this.#counts.unsettled += 1;
    this.#tell(error);
  }

  /** Passes a message on to `report`. */
  warn(message: string): void {
    this.#tell(new TidegateError("input", message));
  }

  async #decide(body: string, options: CallOptions): Promise<Decision> {
    try {
      const answer = await this.#ask("/v1/check", body, options, (late) => this.#giveBack(decisionIn(late), options));
      const decision = decisionIn(answer);
      if (decision === null) throw this.#wire.refusal(answer);
      this.#count(decision);
      return decision;
    } catch (error) {
      if (!(error instanceof TidegateError) || error.kind !== "unavailable") throw error;
      this.#counts[this.#onError] += 1;
      const what = this.#onError === "open" ? "a request passed unchecked" : "a request was refused unchecked";
      this.#tell(new TidegateError("unavailable", `${what}: ${error.message}`, error.answered, error.mayHaveCharged, error));
      return unchecked(this.#onError === "open", error);
    }
  }

  #count(decision: Decision): void {
    this.#counts[decision.allowed ? "allowed" : "denied"] += 1;
    if (!decision.limited && decision.storeError === null) this.#counts.unlimited += 1;
    if (decision.storeError !== null) {
      this.#counts.storeErrors += 1;
      this.#tell(new TidegateError("unavailable", `the store of ${this.#wire.url} could not decide: ${decision.storeError}`));
    }
    if (decision.ticketError !== null) this.lost(new TidegateError("ticket", `no ticket: ${decision.ticketError}`));
  }

  /** Waits out the delay of a decision; if the caller goes away, its charges are given back. */
  async #delay(decision: Decision, signal: AbortSignal | undefined): Promise<void> {
    try {
      signal?.throwIfAborted();
      await sleep(decision.delayMs, signal);
    } catch (error) {
      void this.permit(decision).finish("undone");
      throw error;
    }
  }

  /** Gives back what nobody waits for any more. */
  #giveBack(decision: Decision | null, { signal }: CallOptions): void {
    if (decision === null || !decision.allowed) return;
    this.#counts.late += 1;
    // Work that was let pass unchecked runs: its charges stay, and its places return.
    const runs = this.#onError === "open" && signal?.aborted !== true;
    if (decision.ticket !== null) void this.permit(decision).finish(runs ? "ignored" : "undone");
  }

  /** Asks once. */
  async #ask(path: string, body: string, options: CallOptions, late?: (answer: Answer) => void): Promise<Answer> {
    const { signal, deadlineMs = this.#deadlineMs } = options;
    if (signal !== undefined && typeof signal.throwIfAborted !== "function") {
      throw new TidegateError("input", `signal is ${shown(signal)}; pass its \`signal\`, an AbortSignal`);
    }
    signal?.throwIfAborted();
    span("deadlineMs", deadlineMs, 1);
    const stop = new AbortController();
    const asked = this.#wire.post(path, body, stop.signal);
    let timer: ReturnType<typeof setTimeout> | undefined;
    let aborted = (): void => undefined;
    const over = new Promise<never>((_, reject) => {
      timer = setTimeout(() => {
        const message = `${this.#wire.url} did not answer within ${deadlineMs / 1000} s; it may have charged the call (deadlineMs: ${deadlineMs})`;
        reject(new TidegateError("unavailable", message, null, true));
      }, deadlineMs);
      aborted = () => reject(signal?.reason);
      signal?.addEventListener("abort", aborted, { once: true });
    });
    try {
      return await Promise.race([asked, over]);
    } catch (error) {
      this.#await(asked, stop, late);
      throw error;
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", aborted);
    }
  }

  /** Lets a late answer come in, so that its places are not lost until they lapse; or breaks the call off. */
  #await(asked: Promise<Answer>, stop: AbortController, late: ((answer: Answer) => void) | undefined): void {
    const gone = (): void => stop.abort(new TidegateError("unavailable", "nobody waits for this answer any more"));
    if (late === undefined || this.#lateCalls >= LATE_CALLS) {
      gone();
      asked.catch(() => undefined);
      return;
    }
    this.#lateCalls += 1;
    const timer = later(LATE_MS, gone);
    asked.then(late, () => undefined).finally(() => {
      clearTimeout(timer);
      this.#lateCalls -= 1;
    });
  }

  /** Asks until there is an answer, for calls that count once; `before` if a try without an answer has counted. */
  async #again(path: string, body: string, options: CallOptions): Promise<Answer | "before"> {
    const { signal, deadlineMs = this.#deadlineMs } = options;
    const until = performance.now() + span("deadlineMs", deadlineMs, 1);
    let maybe = false;
    for (let tries = 1; ; tries += 1) {
      try {
        const answer = await this.#ask(path, body, { signal, deadlineMs: Math.max(1, until - performance.now()) });
        if (answer.status === 409 && maybe) return "before";
        if (answer.status < 200 || answer.status > 299) throw this.#wire.refusal(answer);
        return answer;
      } catch (error) {
        if (!(error instanceof TidegateError) || error.kind !== "unavailable") throw error;
        maybe ||= error.mayHaveCharged;
        const wait = pause(tries - 1);
        if (tries === SETTLE_TRIES || performance.now() + wait > until) throw error;
        await sleep(wait, signal);
      }
    }
  }

  #tell(error: unknown): void {
    try {
      this.#report(error instanceof Error ? error : new Error(String(error)));
    } catch {
      // A report that fails must not fail the call.
    }
  }
}

const CHECK = ["cost", "priority", "policies", "ticket", "waitMs", "deadlineMs", "signal"];

/** Returns how long to wait before a refused request is tried again; null if that has no use, or may charge twice. */
function waitOf(decision: Decision, tries: number): number | null {
  if (!decision.checked) return null;
  // Others may have taken what came free: who is refused again waits longer than told.
  if (decision.retry === "after" && decision.retryAfterMs !== null) return Math.max(decision.retryAfterMs, tries === 0 ? 1 : pause(tries - 1));
  return decision.retry === "unknown" ? pause(tries) : null;
}

function text(value: unknown): string | null {
  return typeof value === "string" ? value : null;
}

function charge(entry: Readonly<Record<string, unknown>>): Charge {
  const number = (name: string): number => (typeof entry[name] === "number" ? entry[name] : 0);
  const effect = entry["effect"];
  return {
    name: text(entry["name"]) ?? "",
    effect: effect === "returned" || effect === "owed" || effect === "forgotten" ? effect : "kept",
    charged: number("charged"),
    used: number("used"),
    returned: number("returned"),
    owed: number("owed"),
    remaining: number("remaining"),
    debt: number("debt"),
    note: text(entry["note"]),
  };
}

/** Makes the default report: one line in ten seconds, with the number of those left out. */
function warning(): (error: Error) => void {
  let [last, left] = [-Infinity, 0];
  return (error) => {
    const now = performance.now();
    left += 1;
    if (now - last < WARNING_MS) return;
    const more = left > 1 ? ` (and ${left - 1} messages since the last)` : "";
    [last, left] = [now, 0];
    console.warn(`tidegate: ${error.message}${more}`);
  };
}
