import type { Decision } from "./decision.js";
import { TidegateError } from "./error.js";
import type { Amount, Outcome, Settling } from "./input.js";
import { amount } from "./input.js";
import { later } from "./time.js";

/** What happened to the charge of one limit. */
export interface Charge {
  readonly name: string;
  readonly effect: "returned" | "owed" | "kept" | "forgotten";
  readonly charged: number;
  readonly used: number;
  readonly returned: number;
  readonly owed: number;
  readonly remaining: number;
  readonly debt: number;
  /** Why `used` could not be worked out, and the estimate stands. */
  readonly note: string | null;
}

/** What a settlement did. */
export interface Settlement {
  readonly id: string | null;
  readonly outcome: string | null;
  readonly charges: readonly Charge[];
  /** What it did not change, and why. */
  readonly note: string | null;
}

/** How long places are held, and the ticket that returns them from now on. */
export interface Extension {
  readonly ticket: string;
  /** The shortest span of all places; null if they do not lapse. */
  readonly lapsesAfterMs: number | null;
}

/** What a permit asks of its client. */
export interface Settles {
  settle(ticket: string, settling: Settling): Promise<Settlement>;
  extend(ticket: string): Promise<Extension>;
  /** Counts and tells a settlement that failed. */
  lost(error: unknown): void;
}

/** Tells of permits that nobody ended, when they are collected. */
const forgotten = typeof FinalizationRegistry === "undefined" ? null : new FinalizationRegistry<Settles>((client) => {
  const what = "a permit was dropped and never ended: its places lapse after their ttl, and its estimate stands; call end, or write await using";
  client.lost(new TidegateError("ticket", what));
});

const asyncDispose: typeof Symbol.asyncDispose = Symbol.asyncDispose ?? Symbol.for("Symbol.asyncDispose");

/**
 * The right to work. It holds the charges and places of a decision until the work ends.
 *
 * Say how the work ended by `end`, once. `await using` gives the places back in any case; then a permit that was not
 * ended counts as `ignored`: its places return, and its charges stay.
 */
export class Permit {
  readonly #client: Settles;
  #ticket: string | null;
  #used: Amount | null = null;
  #told = false;
  #ended: Promise<Settlement | null> | null = null;
  #extending: Promise<unknown> = Promise.resolve();
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(client: Settles, readonly decision: Decision) {
    this.#client = client;
    this.#ticket = decision.ticket;
    if (decision.ticket !== null) forgotten?.register(this, client, this);
  }

  /** The ticket to settle by. It changes when places are extended. */
  get ticket(): string | null {
    return this.#ticket;
  }

  /** Whether `used` was called. */
  get told(): boolean {
    return this.#told;
  }

  /**
   * Remembers what the work spends, for the settlement at its end; the last call counts. Call it as soon as anything is
   * spent: work that fails afterwards is not undone.
   */
  used(used: Amount): void {
    // Also if the amount is wrong: something was spent, so nothing is given back.
    this.#told = true;
    this.#used = null;
    amount(used);
    this.#used = used;
  }

  /**
   * Ends the work: returns its places, and settles what was used. `how` is an outcome or an HTTP status; `undone` gives
   * all charges back. Answers null if there was nothing to settle. Further calls answer the same.
   */
  end(how: Outcome | number = "success"): Promise<Settlement | null> {
    this.#ended ??= this.#end(how).catch((error: unknown) => {
      this.#ended = null;
      throw error;
    });
    return this.#ended;
  }

  /** Ends the work; a settlement that fails is counted and reported by the client, and not thrown. */
  async finish(how: Outcome | number): Promise<Settlement | null> {
    try {
      return await this.end(how);
    } catch (error) {
      this.#client.lost(error);
      return null;
    }
  }

  /** Holds the places for another `ttl` from now; answers how long, in milliseconds. */
  async extend(): Promise<number | null> {
    if (this.#ticket === null || this.#ended !== null) {
      throw new TidegateError("ticket", this.#ended === null ? "this permit has no ticket: it holds no places" : "this permit has ended");
    }
    const extended = this.#client.extend(this.#ticket);
    // `end` waits for it: the old ticket returns nothing.
    this.#extending = extended.catch(() => undefined);
    const { ticket, lapsesAfterMs } = await extended;
    this.#ticket = ticket;
    return lapsesAfterMs;
  }

  /**
   * Extends the places by itself until the work ends, each third of their time to live, so that a lost try can be
   * repeated. For work whose end is certain to be told: otherwise the places never come back.
   */
  keep(): void {
    const lapses = this.decision.limits.filter((limit) => limit.awaitsReport && limit.resetAfterMs !== null);
    if (this.#ticket === null || lapses.length === 0) return;
    this.#keepFor(Math.min(...lapses.map((limit) => limit.resetAfterMs ?? Infinity)));
  }

  async [asyncDispose](): Promise<void> {
    if (this.#ended === null) await this.finish("ignored");
    else await this.#ended.catch(() => undefined);
  }

  #keepFor(lapsesAfterMs: number | null): void {
    if (lapsesAfterMs === null || this.#ended !== null) return;
    this.#timer = later(lapsesAfterMs / 3, () => {
      this.extend().then((next) => this.#keepFor(next), (error: unknown) => {
        if (this.#ended !== null) return;
        // Without places, as of a breaker or `charge: on-failure`, there is nothing to extend.
        const final = error instanceof TidegateError && error.kind !== "unavailable";
        if (final && /it has none/.test(error.message)) return;
        this.#client.lost(error);
        if (!final) this.#keepFor(lapsesAfterMs);
      });
    });
  }

  async #end(how: Outcome | number): Promise<Settlement | null> {
    clearTimeout(this.#timer);
    forgotten?.unregister(this);
    await this.#extending;
    if (this.#ticket === null) return null;
    const ended: Settling = typeof how === "number" ? { status: how } : { outcome: how };
    if (how === "undone" || this.#used === null) return this.#client.settle(this.#ticket, ended);
    const used: Settling = typeof this.#used === "number" ? { cost: this.#used } : { attributes: this.#used };
    return this.#client.settle(this.#ticket, { ...used, ...ended });
  }
}
