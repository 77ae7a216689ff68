package main

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"genrm.dev/genrm/gateway/sim"
)

type simCmd struct {
	RouteKey string `required:"" placeholder:"KEY" help:"Name of the judge, for what is printed."`
	Host     string `default:"127.0.0.1" help:"Address to listen on."`
	Port     int    `default:"0" help:"Port to listen on; 0 takes a free one."`
	Script   string `required:"" placeholder:"FILE" help:"What it answers, as JSON; emit writes one for each sim instance."`
}

func (simCmd) Help() string {
	return `Runs a scripted judge that speaks vLLM's HTTP surface: /health, /v1/models, /v1/chat/completions and /v1/completions (streamed or not), /metrics. No model or GPU is needed.

The script has a model name, exactly one of constant, echo (the last message) and match (patterns and their answers; the first that matches the last message), and may have latency (seconds), failure_rate (share of requests that fail with status 500, evenly spread), startup_time (seconds until it listens) and crash_after (requests after which it ends). Words count as tokens.

Its address is printed once it listens. It ends at SIGINT, SIGTERM or SIGHUP.

Examples:

  genrm sim --route-key=safety --script=out/sim-safety.json
  genrm sim --route-key=safety --host=127.0.0.1 --port=8001 --script=out/sim-safety.json

Exit status: 1 a script that cannot be used, or crashed as it says; 3 the address cannot be listened on; 128+n after signal n.`
}

func (c *simCmd) Run(a *app) error {
	data, err := os.ReadFile(c.Script)
	if err != nil {
		return err
	}
	s, err := sim.ParseScript(data)
	if err != nil {
		return fmt.Errorf("%s: %w", c.Script, err)
	}
	j := sim.New(s)
	if err := j.Startup(a.ctx); err != nil {
		return err
	}
	l, err := a.listen(c.Host, c.Port)
	if err != nil {
		return err
	}
	fmt.Fprintf(a.stdout, "sim %s: listening on http://%s\n", c.RouteKey, l.Addr())
	if err := j.Serve(a.ctx, l, time.Second); err != nil {
		return fmt.Errorf("sim %s: %w", c.RouteKey, err)
	}
	return nil
}

// listen opens a TCP port; 0 is any free one.
func (a *app) listen(host string, port int) (net.Listener, error) {
	if port < 0 || port > 65535 {
		return nil, usagef("port %d: want 0 to 65535", port)
	}
	var lc net.ListenConfig
	l, err := lc.Listen(a.ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return nil, targetError{err}
	}
	return l, nil
}
