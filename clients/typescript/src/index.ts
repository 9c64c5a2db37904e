export { Client, Denied } from "./client.js";
export type { CallOptions, CheckOptions, ClientOptions, Counts, SpendOptions } from "./client.js";
export type { Decision, LimitOfDecision, Retry } from "./decision.js";
export { BadValue, TidegateError } from "./error.js";
export type { ErrorKind } from "./error.js";
export type { Amount, Asked, Attributes, Outcome, Priority, Settling } from "./input.js";
export { Permit } from "./permit.js";
export type { Charge, Extension, Settlement, Settles } from "./permit.js";
export type { Fetch, Token } from "./wire.js";
