import type { Client } from "./client.js";
import { BadValue } from "./error.js";
import type { MiddlewareOptions, Refusal, Seen } from "./middleware.js";
import { BadRequest, Reader, badRequest, refusal } from "./middleware.js";
import type { Permit } from "./permit.js";
import { isObject } from "./wire.js";

export type { MiddlewareOptions } from "./middleware.js";

/** What is used of a context of Hono. */
export interface ContextLike {
  readonly req: { readonly raw: Request };
  readonly env: unknown;
  res: Response;
  header(name: string, value: string): void;
}

const permits = new WeakMap<object, Permit>();

/**
 * Makes middleware for Hono that asks about each request. It answers refusals itself: with the status of the policy (429,
 * or 503 for places), `Retry-After` and rate limit headers. Places are held until the response has ended, or the caller
 * hung up.
 */
export function tidegate<C extends ContextLike = ContextLike>(
  client: Client,
  options: MiddlewareOptions<C> = {},
): (c: C, next: () => Promise<void>) => Promise<Response | undefined> {
  const reader = new Reader(client, options);
  return async (c, next) => {
    const { signal } = c.req.raw;
    let permit: Permit;
    try {
      const attributes = await reader.attributes(c, seen(c));
      const decision = await client.check(attributes, { ...reader.asked, signal });
      if (!decision.allowed) return answer(refusal(decision));
      permit = client.permit(decision);
    } catch (error) {
      // Nobody reads the answer to a caller who hung up.
      if (signal.aborted) return answer({ status: 503, headers: {}, body: "" });
      if (!(error instanceof BadRequest || error instanceof BadValue)) throw error;
      return answer(badRequest(error));
    }
    permits.set(c, permit);
    const { decision } = permit;
    if (decision.ticket === null) {
      await next();
    } else {
      permit.keep();
      await held(c, permit, next);
    }
    Object.entries(decision.headers).forEach(([name, value]) => c.header(name, value));
    return undefined;
  };
}

/** The permit that the last `tidegate` before this handler took: its decision, and `used` for what is spent. */
export function permitOf(c: object): Permit {
  const permit = permits.get(c);
  if (permit === undefined) throw new Error("this request has no permit; put app.use(tidegate(client)) before its handler");
  return permit;
}

/** Runs the handlers, and ends the permit with the response. */
async function held(c: ContextLike, permit: Permit, next: () => Promise<void>): Promise<void> {
  const { signal } = c.req.raw;
  const end = (how: number | "ignored"): void => void permit.finish(how);
  if (signal.aborted) end("ignored");
  signal.addEventListener("abort", () => end("ignored"), { once: true });
  const outgoing = part(c.env, "outgoing");
  // On Node the response of node:http tells its end; elsewhere its body does.
  if (isOutgoing(outgoing)) {
    if (outgoing.destroyed) end("ignored");
    outgoing.once("close", () => end(outgoing.writableFinished ? outgoing.statusCode : "ignored"));
    return next();
  }
  try {
    await next();
  } catch (error) {
    end(500);
    throw error;
  }
  const { body, status } = c.res;
  if (body === null) return end(status);
  const watched = watch(body, (how) => end(how === "finished" ? status : "ignored"));
  c.res = new Response(watched, c.res);
}

/** Passes a body on, and tells when it has ended. */
function watch(body: ReadableStream<Uint8Array>, ended: (how: "finished" | "broken") => void): ReadableStream<Uint8Array> {
  const reader = body.getReader();
  return new ReadableStream({
    async pull(controller) {
      try {
        const { done, value } = await reader.read();
        if (!done) return controller.enqueue(value);
        ended("finished");
        controller.close();
      } catch (error) {
        ended("broken");
        controller.error(error);
      }
    },
    cancel(reason) {
      ended("broken");
      return reader.cancel(reason);
    },
  }, { highWaterMark: 0 });
}

interface Outgoing {
  readonly statusCode: number;
  readonly destroyed: boolean;
  readonly writableFinished: boolean;
  once(event: "close", listener: () => void): unknown;
}

function isOutgoing(value: unknown): value is Outgoing {
  return typeof value === "object" && value !== null && "once" in value && typeof value.once === "function" && "writableFinished" in value;
}

function part(value: unknown, name: string): unknown {
  return isObject(value) ? value[name] : undefined;
}

function seen(c: ContextLike): Seen {
  const { method, url, headers } = c.req.raw;
  const peer = part(part(part(c.env, "incoming"), "socket"), "remoteAddress");
  return {
    method,
    path: url,
    peer: typeof peer === "string" ? peer : undefined,
    header: (name) => headers.get(name) ?? undefined,
  };
}

function answer({ status, headers, body }: Refusal): Response {
  return new Response(body, { status, headers: { ...headers } });
}
