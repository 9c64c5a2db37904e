import { TidegateError, shown } from "./error.js";

/** The longest wait of a timer; a longer one would end at once. */
const LONGEST = 2 ** 31 - 1;

/** Waits; fails with the signal's reason if that comes first. */
export async function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  const until = performance.now() + ms;
  for (let left = ms; left > 0; left = until - performance.now()) {
    await new Promise<void>((resolve, reject) => {
      signal?.throwIfAborted();
      const stop = (): void => {
        clearTimeout(timer);
        reject(signal?.reason);
      };
      const timer = setTimeout(() => {
        signal?.removeEventListener("abort", stop);
        resolve();
      }, Math.min(left, LONGEST));
      signal?.addEventListener("abort", stop, { once: true });
    });
  }
}

/** Runs something later, without keeping the program alive for it. */
export function later(ms: number, run: () => void): ReturnType<typeof setTimeout> {
  const timer: unknown = setTimeout(run, Math.min(ms, LONGEST));
  if (typeof timer === "object" && timer !== null && "unref" in timer && typeof timer.unref === "function") timer.unref();
  return timer as ReturnType<typeof setTimeout>;
}

/** Tries again after growing, random pauses: callers that were refused together do not come back together. */
export function pause(tries: number): number {
  return Math.min(100 * 2 ** tries, 2000) * (0.5 + Math.random());
}

/** Refuses a span that is none: a timer takes NaN for nothing, and text for text. */
export function span(name: string, ms: number, least: number): number {
  if (typeof ms === "number" && ms >= least && ms <= LONGEST) return ms;
  throw new TidegateError("input", `${name} is ${shown(ms)}; write milliseconds, ${least} to ${LONGEST}`);
}
