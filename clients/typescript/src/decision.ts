import type { TidegateError } from "./error.js";
import type { Answer } from "./wire.js";
import { isObject } from "./wire.js";

/** When the same request can pass: after a known wait, later, or never at this cost. */
export type Retry = "after" | "unknown" | "never";

/** How one limit decided. */
export interface LimitOfDecision {
  readonly name: string;
  readonly decision: string;
  /** Whether the limit is only measured. */
  readonly shadow: boolean;
  readonly remaining: number | null;
  readonly limit: number | null;
  readonly resetAfterMs: number | null;
  /** Whether a report of the outcome decides about the charge, or returns the place. */
  readonly awaitsReport: boolean;
}

/** Whether a request may pass. Numbers above 2^53 are rounded. */
export interface Decision {
  readonly allowed: boolean;
  /** `unchecked`: the server did not decide; `onError` of the client did, for the reason in `error`. */
  readonly decision: "allowed" | "delayed" | "denied" | "unchecked";
  readonly checked: boolean;
  readonly error: TidegateError | null;
  /** Whether any policy was about the request. If not, nothing limits it. */
  readonly limited: boolean;
  /** The policy that binds. */
  readonly policy: string | null;
  /** The units, or places, that this policy has left. */
  readonly remaining: number | null;
  /** The most that it grants at once. */
  readonly limit: number | null;
  /** Of a denial. */
  readonly retry: Retry | null;
  /** The least wait until the same request can pass; null unless `retry` is `after`. */
  readonly retryAfterMs: number | null;
  readonly resetAt: Date | null;
  /** How long the work is put off. The client has waited this long before it returned the decision. */
  readonly delayMs: number;
  /** What settles the decision; null if there is nothing to settle. */
  readonly ticket: string | null;
  /** Why there is no ticket although one is wanted: the estimate stands. */
  readonly ticketError: string | null;
  /** The HTTP status for the caller: 200, or that of the refusal. */
  readonly status: number;
  /** For logs, and for `tidegate explain`. */
  readonly id: string | null;
  /** Of a denial: a problem document (RFC 9457). */
  readonly problem: { readonly type: string; readonly title: string; readonly detail: string } | null;
  /** The policies that let the request pass over their limit. */
  readonly marked: readonly string[];
  /** The policies that lowered its priority, and to what. */
  readonly demoted: readonly string[];
  readonly priority: string | null;
  /** The policies in shadow mode that would have refused. */
  readonly wouldDeny: readonly string[];
  /** Why the server's store could not decide, where a policy passes the request all the same. */
  readonly storeError: string | null;
  readonly limits: readonly LimitOfDecision[];
  /** The rate limit headers of the answer, for the caller. */
  readonly headers: Readonly<Record<string, string>>;
}

const HEADERS = [
  "ratelimit", "ratelimit-policy", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "retry-after",
];

/** Reads the decision in an answer; null if there is none, or one that contradicts itself. */
export function decisionIn(answer: Answer): Decision | null {
  const { body, status } = answer;
  if (body === null) return null;
  const word = body["decision"];
  if (word !== "allowed" && word !== "delayed" && word !== "denied") return null;
  const allowed = word !== "denied";
  const passes = status >= 200 && status < 300;
  const delayMs = number(body, "delay_ms") ?? 0;
  if (allowed !== passes || !Array.isArray(body["policies"])) return null;
  const limits = body["policies"].filter(isObject).map(limitIn);
  const retry = body["retry"];
  const policy = text(body, "policy");
  const resetAt = new Date(text(body, "reset_at") ?? Number.NaN);
  const headers = HEADERS.flatMap((name) => {
    const value = answer.headers.get(name);
    return value === null ? [] : [[name, value] as const];
  });
  return {
    allowed,
    decision: word,
    checked: true,
    error: null,
    limited: policy !== null || limits.length > 0,
    policy,
    remaining: number(body, "remaining"),
    limit: number(body, "limit"),
    retry: retry === "after" || retry === "unknown" || retry === "never" ? retry : null,
    retryAfterMs: number(body, "retry_after_ms"),
    resetAt: Number.isNaN(resetAt.getTime()) ? null : resetAt,
    delayMs,
    ticket: text(body, "ticket"),
    ticketError: text(body, "ticket_error"),
    status: allowed ? 200 : status,
    id: text(body, "decision_id"),
    problem: allowed ? null : {
      type: text(body, "type") ?? "about:blank",
      title: text(body, "title") ?? "Refused",
      detail: text(body, "detail") ?? "",
    },
    marked: texts(body, "marked"),
    demoted: texts(body, "demoted"),
    priority: text(body, "priority"),
    wouldDeny: limits.filter((limit) => limit.shadow && limit.decision === "denied").map((limit) => limit.name),
    storeError: text(body, "store_error"),
    limits,
    headers: Object.fromEntries(headers),
  };
}

/** Makes the decision of `onError`. */
export function unchecked(open: boolean, error: TidegateError): Decision {
  const detail = "it cannot be decided at the moment whether this request may pass; try again later";
  return {
    allowed: open,
    decision: "unchecked",
    checked: false,
    error,
    limited: false,
    policy: null,
    remaining: null,
    limit: null,
    retry: open ? null : "unknown",
    retryAfterMs: null,
    resetAt: null,
    delayMs: 0,
    ticket: null,
    ticketError: null,
    status: open ? 200 : 503,
    id: null,
    problem: open ? null : { type: "about:blank", title: "Service Unavailable", detail },
    marked: [],
    demoted: [],
    priority: null,
    wouldDeny: [],
    storeError: null,
    limits: [],
    // As the server says itself where its store did not answer.
    headers: open ? {} : { "retry-after": "1" },
  };
}

function limitIn(entry: Readonly<Record<string, unknown>>): LimitOfDecision {
  return {
    name: text(entry, "name") ?? "",
    decision: text(entry, "decision") ?? "",
    shadow: entry["shadow"] === true,
    remaining: number(entry, "remaining"),
    limit: number(entry, "limit"),
    resetAfterMs: number(entry, "reset_after_ms"),
    awaitsReport: entry["awaits_report"] === true,
  };
}

function text(body: Readonly<Record<string, unknown>>, name: string): string | null {
  const value = body[name];
  return typeof value === "string" ? value : null;
}

function texts(body: Readonly<Record<string, unknown>>, name: string): readonly string[] {
  const value = body[name];
  return Array.isArray(value) ? value.filter((item) => typeof item === "string") : [];
}

function number(body: Readonly<Record<string, unknown>>, name: string): number | null {
  const value = body[name];
  return typeof value === "number" && value >= 0 ? value : null;
}
