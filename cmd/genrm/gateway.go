package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"genrm.dev/genrm/gateway"
)

type gatewayCmd struct {
	Config string `placeholder:"FILE" help:"gateway.json, which emit writes for serve workloads."`
	RunRef string `name:"run" placeholder:"RUN" help:"In place of --config: stand in front of this run, with its gateway.json and the addresses of its judges. Its id, the beginning of one, or @last."`
	rootFlag
	clusterFlags
	Upstream []string      `placeholder:"KEY=URL" help:"Address of a judge; once for each of its replicas. Repeatable, or several with commas. Default: those of $$GENRM_UPSTREAMS."`
	Host     string        `placeholder:"ADDRESS" help:"Address to listen on. Default: the file's."`
	Port     int           `default:"-1" placeholder:"PORT" help:"Port to listen on; 0 takes a free one. Default: the file's; where that leaves it open $$GENRM_PORT_GATEWAY, else a free one."`
	Timeout  time.Duration `default:"30m" help:"Longest wait for a judge's answer, retries included."`
	Grace    time.Duration `default:"30s" help:"At a signal: how long requests under way may take to end. A second signal ends them."`
}

func (gatewayCmd) Help() string {
	return `Runs the GenRM service API in front of the judges of a serve workload: /genrm/generate, /genrm/health, /genrm/metrics, and with a judge's route_key for the model /v1/models, /v1/chat/completions and /v1/responses.

Steps: read the file; read API keys from the variables and files that it names; learn where the judges are; listen, and print the address and a request to try. Judges are not waited for: /genrm/health says which are well.

With --run it stands in front of a run from anywhere: of an application of Ray Serve, which has no GenRM API of its own, or of the engines of a run on another target. Headers of ray.headers are sent along where the application is asked at the dashboard's host.

A request without a route_key goes to the only judge, or to __default__. Of a judge's replicas the one with the fewest requests under way is asked. No connection and the statuses 502, 503 and 504 are tried again, at most twice; a judge that fails then is an error with status 502 and the experiment's failure_policy, never an answer.

It ends at SIGINT, SIGTERM or SIGHUP, once the requests under way have ended.

Examples:

  genrm gateway --config=out/gateway.json --upstream=quality=http://127.0.0.1:8001 --upstream=safety=http://127.0.0.1:8002
  GENRM_UPSTREAMS=quality=http://127.0.0.1:8001,safety=http://127.0.0.1:8002 genrm gateway --config=out/gateway.json
  genrm gateway --run=judges-2026 --address=http://ray-head:8265

Exit status: 1 a file or secret that cannot be used, or a judge without an address; 3 the address cannot be listened on; 128+n after signal n.`
}

// runFlags are those of commands about one run.
func (c *gatewayCmd) runFlags() runFlags { return runFlags{c.RunRef, c.rootFlag, c.clusterFlags} }

func (c *gatewayCmd) Run(a *app) error {
	if (c.Config == "") == (c.RunRef == "") {
		return usagef("give --config FILE or --run RUN")
	}
	var config *gateway.Config
	var options gateway.Options
	var err error
	source := c.Config
	if c.RunRef != "" {
		source = c.RunRef
		if config, options, err = c.ofRun(a); err != nil {
			return err
		}
	} else {
		data, err := os.ReadFile(c.Config)
		if err != nil {
			return err
		}
		if config, err = gateway.ParseConfig(data); err != nil {
			return fmt.Errorf("%s: %w", c.Config, err)
		}
	}
	text := ""
	if c.RunRef == "" {
		text = a.getenv(gateway.UpstreamsVariable)
	}
	if len(c.Upstream) > 0 {
		text = strings.Join(c.Upstream, ",")
		options.Fronts = nil
	}
	upstreams, err := gateway.ParseUpstreams(text)
	if err != nil {
		return err
	}
	if text != "" || options.Upstreams == nil {
		options.Upstreams = upstreams
	}
	upstreams, options.Getenv, options.Timeout = options.Upstreams, a.getenv, c.Timeout
	g, err := gateway.New(config, options)
	var missing *gateway.NoAddress
	if errors.As(err, &missing) {
		var example []string
		for i, key := range missing.RouteKeys {
			example = append(example, fmt.Sprintf("%s=http://127.0.0.1:%d", key, 8001+i))
		}
		return fmt.Errorf("%w\nSet %s or --upstream, such as %s=%s", err, gateway.UpstreamsVariable, gateway.UpstreamsVariable, strings.Join(example, ","))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", source, err)
	}
	for _, r := range config.Routes {
		_, fronted := options.Fronts[r.RouteKey]
		if n := len(upstreams[r.RouteKey]); r.Engine != "openai" && !fronted && n != r.Replicas {
			fmt.Fprintf(a.stderr, "genrm: note: judge %s has %d replicas in %s and %d addresses\n", r.RouteKey, r.Replicas, source, n)
		}
	}
	host, port := config.Host, int(config.Port)
	if c.Host != "" {
		host = c.Host
	}
	if open := a.getenv("GENRM_PORT_GATEWAY"); port == 0 && open != "" {
		if port, err = strconv.Atoi(open); err != nil {
			return usagef("GENRM_PORT_GATEWAY is %q: want a port", open)
		}
	}
	if c.Port >= 0 {
		port = c.Port
	}
	if err := checkExposed(host, config); err != nil {
		return err
	}
	l, err := a.listen(host, port)
	if err != nil {
		return err
	}
	fmt.Fprintf(a.stdout, "gateway: listening on http://%s\n", l.Addr())
	fmt.Fprintf(a.stdout, "Try:\n%s", tryLine("http://"+l.Addr().String(), config))
	a.grace.Store(int64(c.Grace + time.Second))
	if err := g.Serve(a.ctx, l, c.Grace); errors.Is(err, context.DeadlineExceeded) {
		fmt.Fprintf(a.stderr, "genrm: requests that were still under way after %s were cut off\n", c.Grace)
		return errReported
	} else if err != nil {
		return targetError{err}
	}
	return nil
}

// checkExposed refuses what the compiler refuses in a file (GRM6001), for an
// address that is given here.
func checkExposed(host string, c *gateway.Config) error {
	if c.APIKey != nil || gateway.Loopback(host) {
		return nil
	}
	return fmt.Errorf("the gateway would listen on %s without an api_key: whoever reaches the port could ask the judges\nAdd serve.gateway.api_key, or listen on 127.0.0.1", host)
}

// tryLine is a request to paste.
func tryLine(base string, c *gateway.Config) string {
	auth := ""
	if k := c.APIKey; k != nil && k.Env != "" {
		auth = fmt.Sprintf(` -H "Authorization: Bearer $%s"`, k.Env)
	} else if k != nil {
		auth = ` -H "Authorization: Bearer $KEY"`
	}
	return request(base, auth, c.Routes[len(c.Routes)-1].RouteKey)
}

// request is the line to paste; auth is the header that a key needs, or "".
func request(base, auth, routeKey string) string {
	return fmt.Sprintf("  curl -s %s/genrm/generate%s -H 'Content-Type: application/json' -d '{\"route_key\": \"%s\", \"messages\": [{\"role\": \"user\", \"content\": \"hello\"}]}'\n",
		base, auth, routeKey)
}
