package proc

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestBelow(t *testing.T) {
	p := func(pid, parent int, state string) Process {
		return Process{ID: ID{PID: pid}, Parent: parent, State: state}
	}
	all := []Process{
		p(1, 0, "S"), p(10, 1, "S"), p(11, 10, "S"), p(12, 11, "R"), // a chain
		p(20, 1, "S"), p(21, 20, "Z"), p(22, 21, "S"), // by way of a zombie
		p(30, 30, "S"), // its own parent, which no kernel says
		p(40, 1, "X"), p(41, 40, "S"),
	}
	for _, c := range []struct {
		roots []int
		want  []int
	}{
		{nil, nil},
		{[]int{99}, nil},
		{[]int{12}, nil},
		{[]int{10}, []int{11, 12}},
		{[]int{10, 11}, []int{12}}, // a root below a root is still a root
		{[]int{11, 10}, []int{12}},
		{[]int{20}, []int{22}},
		{[]int{30}, nil},
		{[]int{1}, []int{10, 11, 12, 20, 22, 41}},
	} {
		var got []int
		for _, q := range Below(all, c.roots...) {
			got = append(got, q.PID)
		}
		if slices.Sort(got); !slices.Equal(got, c.want) {
			t.Errorf("Below(%v) = %v, want %v", c.roots, got, c.want)
		}
	}
}

// until waits for something that the kernel does soon.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("%s: not in ten seconds", what)
}

// started starts a command and collects it at its end, as a supervisor does.
func started(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Skip(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		<-ended
	})
}

// start starts a command that is a zombie from its end to that of the test.
func start(t *testing.T, cmd *exec.Cmd) *exec.Cmd {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	})
	return cmd
}

func TestAlive(t *testing.T) {
	self := Identify(os.Getpid())
	if self.Start == 0 {
		t.Fatal("this process has no start")
	}
	child := start(t, exec.Command("sh", "-c", "exit 0"))
	until(t, "a zombie", func() bool { p, ok := lookup(child.Process.Pid); return ok && p.State == "Z" })
	zombie := Identify(child.Process.Pid)
	for _, c := range []struct {
		name string
		id   ID
		want bool
	}{
		{"this process", self, true},
		{"its start unknown", ID{PID: self.PID}, true},
		{"an earlier process with its number", ID{self.PID, self.Start - 1}, false},
		{"a zombie", zombie, false},
		{"a zombie, its start unknown", ID{PID: zombie.PID}, false},
		{"none", ID{}, false},
		{"a group", ID{PID: -self.PID}, false},
		{"a number that no process has", ID{PID: 1 << 30}, false},
	} {
		if got := c.id.Alive(); got != c.want {
			t.Errorf("%s: Alive() = %v, want %v", c.name, got, c.want)
		}
	}
	if got := Identify(1 << 30); got != (ID{PID: 1 << 30}) {
		t.Errorf("identity of a process that there is not: %+v", got)
	}
}

// A run's processes are found whatever they do: in a session of their own,
// without their environment, orphaned; and are gone after End, those that do not
// listen to SIGTERM, too.
func TestMarkedAndEnd(t *testing.T) {
	for _, program := range []string{"setsid", "env", "sleep"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	mark := "GENRM_PROC_TEST=" + strconv.Itoa(os.Getpid()) + "-" + t.Name()
	// Each sleeps another time, by which it is told apart: 901 ignores TERM in a
	// session of its own; 902 has no environment; 903 has none either and its
	// parent is gone: only the session is left of it; 904 is an ordinary child.
	cmd := exec.Command("sh", "-c", `
		setsid sh -c 'trap "" TERM; sleep 901 & exec sleep 905' &
		env -i "$(command -v sleep)" 902 &
		(env -i "$(command -v sleep)" 903 &)
		sleep 904 &
		wait`)
	cmd.Env = append(os.Environ(), mark)
	cmd.SysProcAttr = OwnSession(false)
	started(t, cmd)
	session := cmd.Process.Pid
	sleeping := regexp.MustCompile(`^[^ ]*sleep (90[0-9])$`)
	times := func(list []Process) string {
		var out []string
		for _, p := range list {
			if m := sleeping.FindStringSubmatch(Command(p.PID)); m != nil {
				out = append(out, m[1])
			}
		}
		slices.Sort(out)
		return strings.Join(out, " ")
	}
	list := func() []Process { return Marked(mark, []int{session}) }
	t.Cleanup(func() {
		if _, err := End(list, 0); err != nil {
			t.Error(err)
		}
	})
	until(t, "every process is found", func() bool { return times(list()) == "901 902 903 904 905" })
	if got := times(Marked(mark, nil)); got != "901 902 904 905" {
		t.Errorf("found by the environment: %s", got)
	}
	if got := times(Marked(mark+"0", []int{session})); got != "901 902 903 904 905" {
		t.Errorf("found by the session: %s", got)
	}
	if got := Marked(mark[:len(mark)-1], nil); len(got) > 0 {
		t.Errorf("the beginning of an entry finds %v", got)
	}
	if slices.ContainsFunc(list(), func(p Process) bool { return p.PID == os.Getpid() }) {
		t.Error("this process is in the list")
	}
	before := list()
	n, err := End(list, 200*time.Millisecond)
	if err != nil || n < len(before) {
		t.Errorf("End: %d of %d, %v", n, len(before), err)
	}
	for _, p := range before {
		if p.Alive() {
			t.Errorf("%d (%s) lives", p.PID, Command(p.PID))
		}
	}
	if n, err := End(list, 0); n != 0 || err != nil {
		t.Errorf("with nothing left: %d, %v", n, err)
	}
}

// TERM comes first: a process that cleans up does so.
func TestEndIsGentle(t *testing.T) {
	path := t.TempDir() + "/cleaned"
	cmd := exec.Command("sh", "-c", `trap 'echo yes > "$1"; exit' TERM; echo ready; while :; do sleep 0.05; done`, "sh", path)
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd.Stdout = in
	started(t, cmd)
	if _, err := out.Read(make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	id := Identify(cmd.Process.Pid)
	if n, err := End(func() []Process {
		if p, ok := lookup(id.PID); ok && p.alive() {
			return []Process{p}
		}
		return nil
	}, 10*time.Second); n != 1 || err != nil {
		t.Errorf("End = %d, %v", n, err)
	}
	if data, _ := os.ReadFile(path); string(data) != "yes\n" {
		t.Error("it was killed before it could clean up")
	}
}

func TestReap(t *testing.T) {
	if err := Subreaper(); err != nil {
		t.Skip(err)
	}
	// Its child is orphaned and comes here.
	cmd := exec.Command("sh", "-c", "sleep 0.05 & echo $!")
	text, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	orphan, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	mine := start(t, exec.Command("sh", "-c", "exit 7"))
	state := func(pid int) string { p, _ := lookup(pid); return p.State }
	until(t, "two zombies", func() bool { return state(orphan) == "Z" && state(mine.Process.Pid) == "Z" })
	if p, _ := lookup(orphan); p.Parent != os.Getpid() {
		t.Errorf("the orphan's parent is %d", p.Parent)
	}
	Reap(All(), os.Getpid(), []int{mine.Process.Pid})
	if s := state(orphan); s != "" {
		t.Errorf("the orphan is still there: %s", s)
	}
	if err := mine.Wait(); mine.ProcessState.ExitCode() != 7 {
		t.Errorf("a child that somebody waits for was collected: %v", err)
	}
}

// With die a process does not outlive who started it, even one that is killed.
func TestOwnSession(t *testing.T) {
	if os.Getenv("GENRM_PROC_PARENT") != "" {
		cmd := exec.Command("sleep", "60")
		cmd.SysProcAttr = OwnSession(true)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		fmt.Println("pid", cmd.Process.Pid)
		_ = cmd.Wait()
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Skip(err)
	}
	parent := exec.Command(self, "-test.run=^TestOwnSession$")
	parent.Env = append(os.Environ(), "GENRM_PROC_PARENT=1")
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	start(t, parent)
	var pid int
	if _, err := fmt.Fscanf(out, "pid %d\n", &pid); err != nil {
		t.Fatal(err)
	}
	p, ok := lookup(pid)
	if !ok || p.Session != pid {
		t.Errorf("the child is in session %d: %v", p.Session, ok)
	}
	if err := parent.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, "the child's end", func() bool { return !p.Alive() })
}

func TestHolder(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0", ":0"} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Log(err) // no IPv6
			continue
		}
		port := l.Addr().(*net.TCPAddr).Port
		if pid, ok := Holder(port); pid != os.Getpid() || !ok {
			t.Errorf("%s: held by %d, %v", address, pid, ok)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if pid, ok := Holder(port); ok {
			t.Errorf("%s: held by %d after it was closed", address, pid)
		}
	}
}

func TestCommand(t *testing.T) {
	long := start(t, exec.Command("sh", "-c", "sleep 60; : "+strings.Repeat("é", 500)))
	until(t, "its command", func() bool { return strings.HasPrefix(Command(long.Process.Pid), "sh -c sleep 60") })
	if got := Command(long.Process.Pid); len([]rune(got)) != 162 || !strings.HasSuffix(got, "é …") {
		t.Errorf("a long command: %q", got)
	}
	if got := Command(1 << 30); got != "" {
		t.Errorf("of no process: %q", got)
	}
	done := start(t, exec.Command("sh", "-c", "exit 0"))
	until(t, "a zombie", func() bool { return !ID{PID: done.Process.Pid}.Alive() })
	if got := Command(done.Process.Pid); got != "sh" {
		t.Errorf("of a zombie: %q", got)
	}
	if len(BootID()) != 36 {
		t.Errorf("the boot has no id: %q", BootID())
	}
}
