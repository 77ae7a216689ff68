// Command server is Kubernetes without its nodes in one file: the API server,
// its controllers, the scheduler and kubectl, each by the name under which the
// file is called. They share nearly all of their code, so that they are linked
// and held in memory once.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

func main() {
	daemons := map[string]func() *cobra.Command{
		"kube-apiserver":          apiserver.NewAPIServerCommand,
		"kube-controller-manager": controllers.NewControllerManagerCommand,
		"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	}
	name := filepath.Base(os.Args[0])
	switch daemon := daemons[name]; {
	case daemon != nil:
		os.Exit(cli.Run(daemon()))
	case name == "kubectl":
		logs.GlogSetter(kubectl.GetLogVerbosity(os.Args)) // before its command is made, which may log
		if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
			util.CheckErr(err)
		}
	default:
		fmt.Fprintf(os.Stderr, "server: nothing is called %s here\n", name)
		os.Exit(2)
	}
}
