// Command redsync takes locks with redsync over one or several servers, behind the line protocol of
// tests/interop/libraries.py.
//
//	redsync HOST:PORT...
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

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	client "github.com/redis/go-redis/v9"
)

type locks struct {
	factory *redsync.Redsync
	held    map[string]*redsync.Mutex
}

func milliseconds(text string) time.Duration {
	number, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	return time.Duration(number) * time.Millisecond
}

func (l *locks) obey(words []string) string {
	name := words[1]
	if words[0] == "unlock" {
		mutex := l.held[name]
		delete(l.held, name)
		ok, err := mutex.Unlock()
		var taken *redsync.ErrTaken
		switch {
		case ok:
			return "unlocked"
		case errors.Is(err, redsync.ErrLockAlreadyExpired), errors.As(err, &taken):
			return "lost"
		default:
			return fmt.Sprint("error ", err)
		}
	}
	// As many tries as it takes; the default is 32. A server may take half a lease to answer, and not a twentieth: this
	// machine may be busy.
	mutex := l.factory.NewMutex(name, redsync.WithExpiry(milliseconds(words[2])),
		redsync.WithTries(1<<20), redsync.WithTimeoutFactor(0.5))
	attempt := mutex.TryLockContext
	patience := time.Minute
	if words[0] == "wait" {
		fmt.Println("waiting")
		attempt, patience = mutex.LockContext, milliseconds(words[3])
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := attempt(ctx)
	var taken *redsync.ErrTaken
	// Near the end of a lease some nodes have let it go already: neither side has a majority.
	var takenThere *redsync.ErrNodeTaken
	switch {
	case err == nil:
		l.held[name] = mutex
		return "held"
	case errors.As(err, &taken), errors.As(err, &takenThere), errors.Is(err, redsync.ErrFailed):
		return "busy"
	default:
		return fmt.Sprint("error ", err)
	}
}

func version() string {
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if strings.HasPrefix(module.Path, "github.com/go-redsync/redsync/") {
			return module.Version
		}
	}
	return "?"
}

func main() {
	var pools []redis.Pool
	for _, node := range os.Args[1:] {
		pools = append(pools, goredis.NewPool(client.NewClient(&client.Options{Addr: node, MaxRetries: -1})))
	}
	state := locks{redsync.New(pools...), map[string]*redsync.Mutex{}}
	fmt.Println("ready redsync", version())
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		fmt.Println(strings.ReplaceAll(state.obey(strings.Fields(lines.Text())), "\n", " "))
	}
}
