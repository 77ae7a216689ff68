//go:build e2e

package slurm

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// The test's own program stands for what a run starts, under these names. HOME is
// the test's folder: files in it say what a stand-in does, and take its record.
//
//	end        of a driver: an exit status, KILL, or wait
//	engine     what an engine does: serve (default), die, hang
//	record-…   what a process was given
//	terminated a driver that was told to end has had a second for it
var stubs = map[string]func(){"ray": rayStub, "gym": driverStub, "python3": pythonStub, "vllm": engineStub}

// record is what a stand-in was given.
type record struct {
	Argv []string          `json:"argv"`
	Env  map[string]string `json:"env"`
	Cwd  string            `json:"cwd"`
	Host string            `json:"host"`
}

func stubFile(name string) string { return filepath.Join(os.Getenv("HOME"), name) }

func stubText(name, otherwise string) string {
	data, err := os.ReadFile(stubFile(name))
	if err != nil {
		return otherwise
	}
	return strings.TrimSpace(string(data))
}

// must ends a stand-in with what its log then shows.
func must(err error) {
	if err != nil {
		fmt.Println("stub:", err)
		os.Exit(99)
	}
}

// keep writes the record of this process. Each attempt of a job has its own.
func keep() {
	rec := record{Argv: os.Args[1:], Env: map[string]string{}}
	for _, e := range os.Environ() {
		name, value, _ := strings.Cut(e, "=")
		rec.Env[name] = value
	}
	var err error
	rec.Cwd, err = os.Getwd()
	must(err)
	rec.Host, err = os.Hostname()
	must(err)
	data, err := json.Marshal(rec)
	must(err)
	attempt, _ := strconv.Atoi(os.Getenv("SLURM_RESTART_COUNT")) // unset in the first
	name := stubFile(fmt.Sprintf("record-%s-%s.%d", os.Getenv("GENRM_RUN_ID"), os.Getenv("GENRM_PROCESS"), attempt+1))
	must(os.WriteFile(name+".new", data, 0o600))
	must(os.Rename(name+".new", name))
	fmt.Printf("%s of attempt %d recorded\n", os.Getenv("GENRM_PROCESS"), attempt+1)
}

func pythonStub() {
	switch {
	case slices.Contains(os.Args, "-c"): // whether it has SGLang
	case slices.Contains(os.Args, "sglang.launch_server"):
		engineStub()
	default:
		driverStub()
	}
}

func driverStub() {
	told := make(chan os.Signal, 8)
	signal.Notify(told, syscall.SIGTERM)
	end := stubText("end", "0") // before the record, after which a test changes it
	keep()
	switch end {
	case "wait":
		select {
		case <-told:
			time.Sleep(time.Second) // as one that saves a checkpoint
			must(os.WriteFile(stubFile("terminated"), nil, 0o600))
			fmt.Println("checkpoint saved")
			os.Exit(143)
		case <-time.After(time.Hour):
		}
	case "KILL":
		must(syscall.Kill(os.Getpid(), syscall.SIGKILL))
	default:
		code, err := strconv.Atoi(end)
		must(err)
		os.Exit(code)
	}
}

// flagValue is the value of --name=VALUE.
func flagValue(name string) string {
	for _, a := range os.Args {
		if v, ok := strings.CutPrefix(a, "--"+name+"="); ok {
			return v
		}
	}
	return ""
}

func engineStub() {
	keep()
	switch stubText("engine", "serve") {
	case "die":
		fmt.Println("loading the model\nCUDA out of memory, says the stand-in")
		os.Exit(1)
	case "hang":
		fmt.Println("loading shard 1 of 8")
		time.Sleep(time.Hour)
	}
	if rank := flagValue("node-rank"); rank != "" && rank != "0" {
		time.Sleep(time.Hour) // answers nothing
	}
	script := stubFile("sim-" + os.Getenv("GENRM_PROCESS") + ".json")
	text, err := json.Marshal(map[string]string{"model": flagValue("served-model-name"), "constant": "7"})
	must(err)
	must(os.WriteFile(script, text, 0o600))
	genrm, err := exec.LookPath("genrm")
	must(err)
	must(syscall.Exec(genrm, []string{"genrm", "sim", "--route-key=stub", "--host=" + flagValue("host"), "--port=" + flagValue("port"), "--script=" + script}, os.Environ()))
}

// rayStub stands for `ray start --block`: the head's dashboard counts the nodes
// that have come.
func rayStub() {
	keep()
	address := flagValue("address")
	if address == "" {
		address = net.JoinHostPort(flagValue("node-ip-address"), flagValue("port"))
	}
	nodes := stubFile("ray-" + address)
	must(os.MkdirAll(nodes, 0o700))
	must(os.WriteFile(filepath.Join(nodes, os.Getenv("SLURMD_NODENAME")), nil, 0o600)) // both nodes have one address
	if !slices.Contains(os.Args, "--head") {
		time.Sleep(time.Hour)
	}
	token, err := os.ReadFile(os.Getenv("RAY_AUTH_TOKEN_PATH"))
	must(err)
	must(http.ListenAndServe(net.JoinHostPort(flagValue("dashboard-host"), flagValue("dashboard-port")), http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Header.Get("Authorization") != "Bearer "+string(token) {
			http.Error(w, "no token", http.StatusUnauthorized)
			return
		}
		entries, err := os.ReadDir(nodes)
		must(err)
		var summary []any
		for range entries {
			summary = append(summary, map[string]any{"raylet": map[string]string{"state": "ALIVE"}})
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"data": map[string]any{"summary": summary}})
	})))
}
