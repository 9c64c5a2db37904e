// Runs golang.org/x/time/rate with explicit times, and prints its answers: the fixture that the profile is compared with.
//
//	go mod init peer && go get golang.org/x/time@2b4e4390 && go run x_time.go > ../fixtures/x_time.txt
package main

import (
	"fmt"
	"math/rand"
	"time"

	"golang.org/x/time/rate"
)

func main() {
	fmt.Println("# golang.org/x/time/rate 2b4e439 (September 2025); new: limit burst | allow reserve: t n -> ok wait tokens")
	random := rand.New(rand.NewSource(7))
	limits := []float64{10, 0.5, 3, 1e6, 0, 7.7, 1.0 / 86400, 1.0 / (365 * 86400)}
	for _, perSecond := range limits {
		for _, burst := range []int{1, 5, 100, 1000} {
			run(random, perSecond, burst)
		}
	}
}

func run(random *rand.Rand, perSecond float64, burst int) {
	fmt.Printf("new %v %d\n", perSecond, burst)
	limiter := rate.NewLimiter(rate.Limit(perSecond), burst)
	now := int64(1_000_000_000_000)
	at := func() time.Time { return time.Unix(0, now) }
	var held []*rate.Reservation
	for step := 0; step < 40; step++ {
		switch random.Intn(4) {
		case 0:
		case 1:
			now += random.Int63n(1000)
		case 2:
			now += random.Int63n(2_000_000_000)
		case 3:
			now += random.Int63n(100_000_000)
		}
		n := 1 + random.Intn(burst)
		if random.Intn(12) == 0 {
			n = burst + 1
		}
		switch kind := random.Intn(10); {
		case kind < 4:
			ok := limiter.AllowN(at(), n)
			fmt.Printf("allow %d %d -> %v 0 %v\n", now, n, ok, limiter.TokensAt(at()))
		case kind < 8:
			// The library grants this with a wait of 292 years; the profile never grants it.
			if missing := float64(n) - limiter.TokensAt(at()); missing > 0 && missing/perSecond > 9.2e9 {
				continue
			}
			reservation := limiter.ReserveN(at(), n)
			held = append(held, reservation)
			wait := int64(0)
			if reservation.OK() {
				wait = int64(reservation.DelayFrom(at()))
			}
			fmt.Printf("reserve %d %d -> %v %d %v\n", now, n, reservation.OK(), wait, limiter.TokensAt(at()))
		case kind == 8 && len(held) > 0:
			index := random.Intn(len(held))
			held[index].CancelAt(at())
			fmt.Printf("cancel %d %d -> true 0 %v\n", now, index, limiter.TokensAt(at()))
		default:
			if perSecond > 0 {
				perSecond *= 1.5
			} else {
				perSecond = 10
			}
			limiter.SetLimitAt(at(), rate.Limit(perSecond))
			// The profile gives back nothing that was reserved before a change.
			held = nil
			fmt.Printf("limit %d %v -> true 0 %v\n", now, perSecond, limiter.TokensAt(at()))
		}
	}
}
