// Command etcd-mutex takes locks with concurrency.Mutex of etcd's Go client, behind the line protocol of
// tests/interop/libraries.py.
//
//	etcd-mutex HOST:PORT...
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	client "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// A lease that is shorter than this is to end while this program lives: it is not kept alive.
const keptAlive = 60

type lock struct {
	session *concurrency.Session
	mutex   *concurrency.Mutex
}

type locks struct {
	etcd *client.Client
	held map[string]lock
}

func milliseconds(text string) time.Duration {
	number, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	return time.Duration(number) * time.Millisecond
}

func (l *locks) unlock(name string) (string, error) {
	held := l.held[name]
	delete(l.held, name)
	defer held.session.Close()
	// Unlock itself does not tell.
	owner, err := l.etcd.Txn(context.Background()).If(held.mutex.IsOwner()).Commit()
	if err != nil || !owner.Succeeded {
		return "lost", err
	}
	return "unlocked", held.mutex.Unlock(context.Background())
}

func (l *locks) obey(words []string) (string, error) {
	name := words[1]
	if words[0] == "unlock" {
		return l.unlock(name)
	}
	ttl := int(milliseconds(words[2]).Seconds())
	session, err := concurrency.NewSession(l.etcd, concurrency.WithTTL(ttl))
	if err != nil {
		return "", err
	}
	if ttl < keptAlive {
		session.Orphan()
	}
	mutex := concurrency.NewMutex(session, name)
	if words[0] == "wait" {
		fmt.Println("waiting")
		ctx, cancel := context.WithTimeout(context.Background(), milliseconds(words[3]))
		defer cancel()
		err = mutex.Lock(ctx)
	} else {
		err = mutex.TryLock(context.Background())
	}
	switch {
	case err == nil:
		l.held[name] = lock{session, mutex}
		return fmt.Sprint("held ", mutex.Header().Revision), nil
	case errors.Is(err, concurrency.ErrLocked), errors.Is(err, context.DeadlineExceeded):
		return "busy", session.Close()
	default:
		return "", err
	}
}

func version() string {
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if module.Path == "go.etcd.io/etcd/client/v3" {
			return module.Version
		}
	}
	return "?"
}

func main() {
	etcd, err := client.New(client.Config{Endpoints: os.Args[1:], DialTimeout: 10 * time.Second})
	if err != nil {
		panic(err)
	}
	state := locks{etcd, map[string]lock{}}
	fmt.Println("ready etcd-client", version())
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		answer, err := state.obey(strings.Fields(lines.Text()))
		if err != nil {
			answer = fmt.Sprint("error ", err)
		}
		fmt.Println(strings.ReplaceAll(answer, "\n", " "))
	}
}
