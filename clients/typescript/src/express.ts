import type { Client } from "./client.js";
import { BadValue } from "./error.js";
import type { MiddlewareOptions, Refusal, Seen } from "./middleware.js";
import { BadRequest, Reader, badRequest, refusal } from "./middleware.js";
import type { Permit } from "./permit.js";

export type { MiddlewareOptions } from "./middleware.js";

/** What is used of a request of Express, or of node:http. */
export interface RequestLike {
  readonly method?: string | undefined;
  readonly url?: string | undefined;
  readonly originalUrl?: string;
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
  readonly socket: { readonly remoteAddress?: string | undefined };
  readonly app?: { enabled?(setting: string): boolean };
}

/** What is used of a response of Express, or of node:http. */
export interface ResponseLike {
  statusCode: number;
  readonly headersSent: boolean;
  readonly writableFinished: boolean;
  readonly destroyed: boolean;
  setHeader(name: string, value: string): unknown;
  end(body: string): unknown;
  once(event: "close", listener: () => void): unknown;
}

const permits = new WeakMap<object, Permit>();

/**
 * Makes middleware for Express 4 and 5 that asks about each request. It answers refusals itself: with the status of the
 * policy (429, or 503 for places), `Retry-After` and rate limit headers. Places are held until the response has ended,
 * or the caller hung up.
 */
export function tidegate<R extends RequestLike = RequestLike>(
  client: Client,
  options: MiddlewareOptions<R> = {},
): (req: R, res: ResponseLike, next: (error?: unknown) => void) => void {
  const reader = new Reader(client, options);
  return (req, res, next) => {
    enter(client, reader, req, res).then((passes) => {
      if (passes) next();
    }, next);
  };
}

/** The permit that the last `tidegate` before this handler took: its decision, and `used` for what is spent. */
export function permitOf(req: object): Permit {
  const permit = permits.get(req);
  if (permit === undefined) throw new Error("this request has no permit; put app.use(tidegate(client)) before its handler");
  return permit;
}

async function enter<R extends RequestLike>(client: Client, reader: Reader<R>, req: R, res: ResponseLike): Promise<boolean> {
  // Who has hung up before is not asked about: nothing would tell the end.
  if (res.destroyed) return false;
  const gone = new AbortController();
  const hangUp = (): void => gone.abort();
  res.once("close", hangUp);
  try {
    const attributes = await reader.attributes(req, seen(req));
    const decision = await client.check(attributes, { ...reader.asked, signal: gone.signal });
    if (!decision.allowed) {
      answer(res, refusal(decision));
      return false;
    }
    const permit = client.permit(decision);
    permits.set(req, permit);
    if (decision.ticket !== null) {
      permit.keep();
      res.once("close", () => void permit.finish(res.writableFinished ? res.statusCode : "ignored"));
    }
    if (!res.headersSent) Object.entries(decision.headers).forEach(([name, value]) => res.setHeader(name, value));
    return true;
  } catch (error) {
    if (gone.signal.aborted) return false;
    if (!(error instanceof BadRequest || error instanceof BadValue)) throw error;
    answer(res, badRequest(error));
    return false;
  }
}

function seen(req: RequestLike): Seen {
  const target = req.originalUrl ?? req.url ?? "/";
  const path = req.app?.enabled?.("case sensitive routing") === true ? target : lower(target);
  return {
    method: req.method ?? "GET",
    path,
    peer: req.socket.remoteAddress,
    header: (name) => {
      const value = req.headers[name];
      return Array.isArray(value) ? value.join(", ") : value;
    },
  };
}

/** Express finds /API/x under /api unless told otherwise; a policy for /api must too, also of letters that are escaped. */
function lower(path: string): string {
  return path.replace(/%(4[1-9a-f]|5[0-9a])/gi, (escape) => decodeURIComponent(escape)).toLowerCase();
}

function answer(res: ResponseLike, { status, headers, body }: Refusal): void {
  res.statusCode = status;
  for (const [name, value] of Object.entries(headers)) res.setHeader(name, value);
  res.end(body);
}
