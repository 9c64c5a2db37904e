// Drives golang.org/x/time/rate with the times of a trace: lines in, decisions out.
//
//	new <limit bits> <burst>
//	ask <ns> <cost> <longest wait in ns, 0 or -1 for any>
//	cancel <ns> <number of the grant>
//	set <ns> <limit bits> <burst>
//
// Each line is answered by "<+wait | -> <bits of the tokens at that time>".
package main

import (
	"bufio"
	"fmt"
	"math"
	"os"
	"time"

	"golang.org/x/time/rate"
)

func main() {
	in, out := bufio.NewScanner(os.Stdin), bufio.NewWriter(os.Stdout)
	defer out.Flush()
	var limiter *rate.Limiter
	var grants []*rate.Reservation
	for in.Scan() {
		var verb string
		var a, b, c int64
		fmt.Sscan(in.Text(), &verb, &a, &b, &c)
		answer, at := "", time.Unix(0, a)
		switch verb {
		case "new":
			limiter = rate.NewLimiter(rate.Limit(math.Float64frombits(uint64(a))), int(b))
			grants = nil
			answer, at = "+0", time.Unix(0, 0)
		case "ask":
			answer = "-"
			if c == 0 {
				// AllowN keeps its reservation to itself, so a grant at once cannot be cancelled.
				if limiter.AllowN(at, int(b)) {
					answer = "+0"
				}
			} else if r := limiter.ReserveN(at, int(b)); r.OK() {
				grants = append(grants, r)
				answer = fmt.Sprintf("+%d", r.DelayFrom(at).Nanoseconds())
			}
		case "cancel":
			grants[b].CancelAt(at)
			answer = "+0"
		case "set":
			limiter.SetLimitAt(at, rate.Limit(math.Float64frombits(uint64(b))))
			limiter.SetBurstAt(at, int(c))
			answer = "+0"
		}
		fmt.Fprintln(out, answer, math.Float64bits(limiter.TokensAt(at)))
	}
}
