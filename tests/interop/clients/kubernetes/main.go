// Command leader takes locks with the leader election of Kubernetes' Go client, behind the line protocol of
// tests/interop/libraries.py. It renews its lease as long as it lives.
//
//	leader KUBECONFIG
package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
)

const namespace = "default"

// An election that was won.
type term struct {
	resign context.CancelFunc
	// Closed when it is over.
	over chan struct{}
}

type candidate struct {
	client   *kubernetes.Clientset
	identity string
	terms    map[string]term
}

func milliseconds(text string) time.Duration {
	number, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	return time.Duration(number) * time.Millisecond
}

func isOver(over chan struct{}) bool {
	select {
	case <-over:
		return true
	default:
		return false
	}
}

func (c *candidate) unlock(name string) string {
	held := c.terms[name]
	delete(c.terms, name)
	answer := "unlocked"
	if isOver(held.over) {
		answer = "lost"
	}
	held.resign()
	<-held.over
	return answer
}

// Runs for the office until it is won, somebody else has it (for those that do not wait), or the patience ends.
func (c *candidate) run(name string, ttl, patience time.Duration) (string, error) {
	ctx, cancel := context.WithCancel(context.Background())
	won, other, over := make(chan struct{}), make(chan struct{}, 100), make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  meta.ObjectMeta{Namespace: namespace, Name: name},
			Client:     c.client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: c.identity},
		},
		LeaseDuration:   ttl,
		RenewDeadline:   ttl * 2 / 3,
		RetryPeriod:     500 * time.Millisecond,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { close(won) },
			OnStoppedLeading: func() {},
			OnNewLeader: func(identity string) {
				if identity != c.identity && identity != "" {
					other <- struct{}{}
				}
			},
		},
	})
	if err != nil {
		cancel()
		return "", err
	}
	go func() {
		defer close(over)
		elector.Run(ctx)
	}()
	if patience > 0 {
		other = nil
	} else {
		patience = 30 * time.Second
	}
	select {
	case <-won:
		c.terms[name] = term{cancel, over}
		return "held", nil
	case <-other:
	case <-time.After(patience):
	}
	cancel()
	<-over
	return "busy", nil
}

func (c *candidate) obey(words []string) (string, error) {
	switch words[0] {
	case "unlock":
		return c.unlock(words[1]), nil
	case "wait":
		fmt.Println("waiting")
		return c.run(words[1], milliseconds(words[2]), milliseconds(words[3]))
	default:
		return c.run(words[1], milliseconds(words[2]), 0)
	}
}

func version() string {
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if module.Path == "k8s.io/client-go" {
			return module.Version
		}
	}
	return "?"
}

func main() {
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	config, err := clientcmd.BuildConfigFromFlags("", os.Args[1])
	if err != nil {
		panic(err)
	}
	config.UserAgent = "interop"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		panic(err)
	}
	state := candidate{client, fmt.Sprint("controller_", os.Getpid()), map[string]term{}}
	fmt.Println("ready client-go", version())
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		answer, err := state.obey(strings.Fields(lines.Text()))
		if err != nil {
			answer = fmt.Sprint("error ", err)
		}
		fmt.Println(strings.ReplaceAll(answer, "\n", " "))
	}
}
