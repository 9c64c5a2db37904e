// Runs Guava's RateLimiter on a stopwatch that is set by hand, and prints its answers: the fixture that the profiles are compared with.
//
//   javac -cp /usr/share/java/guava.jar -d /tmp/peer Guava.java
//   java -cp /usr/share/java/guava.jar:/tmp/peer com.google.common.util.concurrent.Guava > ../fixtures/guava.txt
package com.google.common.util.concurrent;

import java.util.Random;
import java.util.concurrent.TimeUnit;

/** In Guava's package, because the stopwatch is private to it. */
public final class Guava {
  private static final class Hand extends RateLimiter.SleepingStopwatch {
    long micros;
    long slept;

    @Override
    protected long readMicros() {
      return micros;
    }

    @Override
    protected void sleepMicrosUninterruptibly(long time) {
      slept = time;
    }
  }

  public static void main(String[] arguments) {
    System.out.println("# Guava 31.1 (Debian 12); bursty: rate | warming: rate warm-up-us cold-factor | try: us n timeout-us -> ok wait-us");
    Random random = new Random(7);
    for (double rate : new double[] {10, 0.5, 3, 333.3, 100000}) {
      Hand hand = new Hand();
      System.out.println("bursty " + rate);
      run(random, hand, RateLimiter.create(rate, hand), rate);
      for (long warmUp : new long[] {3_000_000, 250_000}) {
        Hand warm = new Hand();
        System.out.println("warming " + rate + " " + warmUp + " 3.0");
        run(random, warm, RateLimiter.create(rate, warmUp, TimeUnit.MICROSECONDS, 3.0, warm), rate);
      }
    }
  }

  private static void run(Random random, Hand hand, RateLimiter limiter, double rate) {
    for (int step = 0; step < 60; step++) {
      switch (random.nextInt(4)) {
        case 0: break;
        case 1: hand.micros += random.nextInt(1000); break;
        case 2: hand.micros += (long) (random.nextInt(3_000_000) / rate); break;
        default: hand.micros += random.nextInt(2_000_000);
      }
      if (random.nextInt(15) == 0) {
        rate *= 1.25;
        limiter.setRate(rate);
        System.out.println("rate " + hand.micros + " " + rate);
        continue;
      }
      int n = 1 + random.nextInt(random.nextInt(3) == 0 ? 20 : 2);
      long timeout = new long[] {0, 0, 100_000, 5_000_000}[random.nextInt(4)];
      hand.slept = 0;
      boolean ok = limiter.tryAcquire(n, timeout, TimeUnit.MICROSECONDS);
      System.out.println("try " + hand.micros + " " + n + " " + timeout + " -> " + ok + " " + hand.slept);
    }
  }
}
