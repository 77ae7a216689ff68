package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"genrm.dev/genrm/compiler"
	"genrm.dev/genrm/launchers/ray/kuberay"
)

// Exit statuses, on which scripts rely. After signal n it is 128+n.
const (
	exitOK     = 0
	exitInput  = 1 // problems in the input, or a file that cannot be read or written
	exitUsage  = 2 // the command line itself is wrong
	exitTarget = 3 // the target failed or is unreachable
)

// errReported says that everything was printed already: only the status is left.
var errReported = errors.New("already reported")

// targetError is a failure of the machine that something should run on.
type targetError struct{ err error }

func (e targetError) Error() string { return e.err.Error() }
func (e targetError) Unwrap() error { return e.err }

// usageError is a command line that parses but makes no sense.
type usageError struct{ msg string }

func (e usageError) Error() string { return e.msg }

func usagef(format string, args ...any) error { return usageError{fmt.Sprintf(format, args...)} }

// cli is the command line: one field a command, each with a type and a file of
// its own.
type cli struct {
	Vet    vetCmd    `cmd:"" help:"Check experiments: silent, or every mistake at once."`
	Plan   planCmd   `cmd:"" help:"Show what would run: mode, roles, judges, GPU map, the exact command."`
	Emit   emitCmd   `cmd:"" help:"Write the scripts, JSON and files of an experiment."`
	Golden goldenCmd `cmd:"" help:"Keep plans and emitted files under review, and compare."`

	Launch   launchCmd   `cmd:"" aliases:"submit" help:"Start an experiment on its target and follow it."`
	Status   statusCmd   `cmd:"" help:"Show how a run and its processes are."`
	Logs     logsCmd     `cmd:"" help:"Show what the processes of a run print."`
	Stop     stopCmd     `cmd:"" help:"End runs, and everything that belongs to them."`
	List     listCmd     `cmd:"" help:"List runs."`
	Endpoint endpointCmd `cmd:"" help:"Show where the judges of a run are asked."`
	Prune    pruneCmd    `cmd:"" help:"Remove the folders of ended runs."`
	Node     nodeCmd     `cmd:"" help:"Run the processes of one node of a run; launchers start it."`

	Gateway gatewayCmd `cmd:"" help:"Run the GenRM service API in front of judges."`
	Sim     simCmd     `cmd:"" help:"Run a scripted judge: no model, no GPU."`

	Init       initCmd       `cmd:"" help:"Write a commented starter experiment."`
	Fmt        fmtCmd        `cmd:"" help:"Format .cue files."`
	Explain    explainCmd    `cmd:"" help:"Explain a diagnostic code or a field."`
	Schema     schemaCmd     `cmd:"" help:"Print the schema, or vendor it for editors and stock cue."`
	Model      modelCmd      `cmd:"" help:"Facts about models."`
	Catalogue  catalogueCmd  `cmd:"" help:"Flags of the engines, by release."`
	Version    versionCmd    `cmd:"" help:"Print the version."`
	Completion completionCmd `cmd:"" help:"Print a completion script for bash, zsh or fish."`
}

func (cli) Help() string {
	return `An experiment is a .cue file or a folder of them. It says what runs (relax, gym or serve) in the field names of those systems, and where (local, slurm, ray or kuberay).

Examples:

  genrm init my-judges --workload serve --target local
  genrm vet ./...
  genrm plan examples/relax-dual-judge
  genrm emit examples/relax-dual-judge --target slurm -o out
  genrm launch examples/quickstart
  genrm explain relax.genrm_instances.*.num_gpus

Exit status: 0 fine, 1 problems in the input, 2 wrong usage, 3 the target failed, 128+n after signal n.`
}

// app is what a command may use of the outside world.
type app struct {
	ctx     context.Context // ends at a signal
	kong    *kong.Kong
	stdin   io.Reader
	stdout  io.Writer
	stderr  io.Writer
	env     []string
	took    atomic.Bool      // the command takes signals itself, from signal
	signal  chan os.Signal   // see takeSignals
	grace   atomic.Int64     // nanoseconds that a command may take to end after a signal
	away    map[string]error // dashboards of Ray that did not answer: of many runs the first is waited for
	asked   sync.Mutex       // of away: runs are stopped side by side
	where   kuberay.Where    // the same of a run on Kubernetes
	address string           // by which the cluster of a run is asked now, instead of the one of its launch
}

// takeSignals hands every further signal to the command, which ends by itself.
func (a *app) takeSignals() <-chan os.Signal {
	a.took.Store(true)
	return a.signal
}

// exitStatus is the status of what was run, after everything was printed.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// getenv returns the last value of a variable, or "".
func (a *app) getenv(name string) string {
	for i := len(a.env) - 1; i >= 0; i-- {
		if v, ok := strings.CutPrefix(a.env[i], name+"="); ok {
			return v
		}
	}
	return ""
}

// colour reports whether w is a terminal that wants colours.
// Source: https://no-color.org.
func (a *app) colour(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || a.getenv("NO_COLOR") != "" || a.getenv("TERM") == "dumb" {
		return false
	}
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeCharDevice != 0
}

// exited carries kong's wish to end the process (after --help) up to Main.
type exited int

// Main runs genrm and returns its exit status. It changes nothing outside of
// what the command says, reads no environment but env, and catches SIGINT,
// SIGTERM and SIGHUP: the command is told to stop and has two seconds to remove
// what it had half done, or as long as it said (app.grace). A second signal ends
// it at once.
func Main(args []string, stdin io.Reader, stdout, stderr io.Writer, env []string) int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	signals := make(chan os.Signal, 16)
	caught := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // as under nohup
		caught = append(caught, syscall.SIGHUP)
	}
	signal.Notify(signals, caught...)
	defer signal.Stop(signals)
	done := make(chan int, 1)
	a := &app{ctx: ctx, stdin: stdin, stdout: stdout, stderr: stderr, env: env, signal: make(chan os.Signal, 16)}
	a.grace.Store(int64(2 * time.Second))
	go func() { done <- run(a, args) }()
	first, late := os.Signal(nil), (<-chan time.Time)(nil)
	for {
		select {
		case code := <-done:
			if first != nil && !a.took.Load() {
				return 128 + number(first)
			}
			return code
		case s := <-signals:
			select {
			case a.signal <- s: // for a command that takes signals, if only later
			default: // so many that one more says nothing new
			}
			switch {
			case a.took.Load():
			case first != nil:
				return 128 + number(first)
			default:
				first, late = s, time.After(time.Duration(a.grace.Load()))
				cancel()
			}
		case <-late:
			if !a.took.Load() {
				return 128 + number(first)
			}
		}
	}
}

// number is that of a signal.
func number(s os.Signal) int {
	n, _ := s.(syscall.Signal)
	return int(n)
}

func run(a *app, args []string) (code int) {
	defer func() {
		switch e := recover().(type) {
		case nil:
		case exited:
			code = int(e)
		default:
			panic(e)
		}
	}()
	var c cli
	parser, err := newParser(a, &c)
	if err != nil {
		fmt.Fprintf(a.stderr, "genrm: %v\n", err)
		return exitUsage
	}
	a.kong = parser
	if len(args) == 0 {
		args = []string{"--help"}
	}
	ctx, err := parser.Parse(args)
	if err != nil {
		var pe *kong.ParseError
		hint := "genrm --help"
		if errors.As(err, &pe) && pe.Context != nil && pe.Context.Command() != "" {
			hint = "genrm " + firstWords(pe.Context.Command()) + " --help"
		}
		fmt.Fprintf(a.stderr, "genrm: %s\nRun `%s` for usage.\n", safe(err), hint)
		return exitUsage
	}
	return a.status(ctx.Run(a))
}

// status prints an error unless that was done, and returns its exit status.
func (a *app) status(err error) int {
	var usage usageError
	var target targetError
	var code exitStatus
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &code):
		return int(code)
	case errors.Is(err, errReported):
		return exitInput
	case errors.As(err, &usage):
		fmt.Fprintf(a.stderr, "genrm: %s\n", safe(err))
		return exitUsage
	case errors.As(err, &target):
		fmt.Fprintf(a.stderr, "genrm: %v\n", err)
		return exitTarget
	}
	fmt.Fprintf(a.stderr, "genrm: %s\n", safe(err))
	return exitInput
}

// safe is the text of an error, unless it would repeat a secret that was typed
// on the command line: CI keeps what is printed.
func safe(err error) string {
	if compiler.LooksSecret(err.Error()) {
		return `an argument holds what looks like an access token, which is not repeated here; refer to secrets in the file by {env: "NAME"} or {file: "/path"}`
	}
	return err.Error()
}

// newParser builds the command line's model, which help, parsing and completion
// share.
func newParser(a *app, c *cli) (*kong.Kong, error) {
	return kong.New(c,
		kong.Name("genrm"),
		kong.Description("A typed config compiler for GenRM and LLM-judge runs: every mistake at once, and the whole plan, before a GPU is touched."),
		kong.Writers(a.stdout, a.stderr),
		kong.Exit(func(code int) { panic(exited(code)) }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: false, WrapUpperBound: 100}),
		kong.Bind(a),
		kong.Vars{"targets": targetNames()},
	)
}

// firstWords returns the command names of kong's command string, which also
// holds positional arguments as <name>.
func firstWords(command string) string {
	head, _, _ := strings.Cut(command, " <")
	head, _, _ = strings.Cut(head, " [")
	return head
}
