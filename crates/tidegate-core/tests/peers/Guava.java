package com.google.common.util.concurrent;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.concurrent.TimeUnit;

/**
 * Drives Guava's RateLimiter with the times of a trace: lines in, decisions out. It lives in Guava's package because the
 * stopwatch that the limiter reads is visible there only.
 *
 * <pre>
 * bursty  &lt;rate bits&gt;
 * warming &lt;rate bits&gt; &lt;warm-up in us&gt; &lt;cold factor bits&gt;
 * ask     &lt;us&gt; &lt;cost&gt; &lt;timeout in us&gt;
 * set     &lt;us&gt; &lt;rate bits&gt;
 * </pre>
 *
 * Each line is answered by "+wait in us" or "-".
 */
public final class Guava {
  private static final class Stopwatch extends RateLimiter.SleepingStopwatch {
    long now;
    long slept;

    @Override
    protected long readMicros() {
      return now;
    }

    @Override
    protected void sleepMicrosUninterruptibly(long micros) {
      slept = micros;
    }
  }

  public static void main(String[] args) throws Exception {
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
    PrintStream out = new PrintStream(new java.io.BufferedOutputStream(System.out), false);
    Stopwatch watch = new Stopwatch();
    RateLimiter limiter = null;
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      String[] word = line.trim().split(" ");
      String answer = "+0";
      switch (word[0]) {
        case "bursty":
          watch.now = 0;
          limiter = RateLimiter.create(number(word[1]), watch);
          break;
        case "warming":
          watch.now = 0;
          limiter =
              RateLimiter.create(
                  number(word[1]), Long.parseLong(word[2]), TimeUnit.MICROSECONDS, number(word[3]), watch);
          break;
        case "ask":
          watch.now = Long.parseLong(word[1]);
          watch.slept = 0;
          boolean granted =
              limiter.tryAcquire(Integer.parseInt(word[2]), Long.parseLong(word[3]), TimeUnit.MICROSECONDS);
          answer = granted ? "+" + watch.slept : "-";
          break;
        case "set":
          watch.now = Long.parseLong(word[1]);
          limiter.setRate(number(word[2]));
          break;
        default:
          throw new IllegalArgumentException(line);
      }
      out.println(answer);
    }
    out.flush();
  }

  private static double number(String bits) {
    return Double.longBitsToDouble(Long.parseLong(bits));
  }
}
