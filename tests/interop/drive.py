#!/usr/bin/env python3
"""Runs every scenario with every library, several at a time, and says of each how it went.

drive.py [WORD...]      only those whose title contains one of the words; called by tests/interop.sh, which prepares
                        DLOCK (the binary) and DLOCK_INTEROP (what has been built)
"""

import concurrent.futures
import os
import pathlib
import signal
import sys
import tempfile
import threading
import time
import traceback

import libraries as of
import processes
import scenarios
from processes import Client, Failure

STAGES_AT_A_TIME = 5
TWO_MONTHS = 61 * 24 * 3600 * 1000  # ms


class Stage:
    """Servers, a library's client, and what is played there, one after the other."""

    def __init__(self, library, store, plays):
        self.library, self.store = library, store
        self.plays = plays
        self._client = None

    def titles(self):
        name = self.library.name if self.library else "all together"
        return [(f"{name}, {self.store.name}: {title}", play) for title, play in self.plays]

    @property
    def client(self):
        if self._client is None:
            self._client = Client(self.library, self.nodes)
            versions.add(self._client.version)
        return self._client

    def drop_client(self):
        if self._client is not None:
            self._client.clear()
            self._client = None

    def play(self, wanted):
        titles = [(title, play) for title, play in self.titles() if wanted(title)]
        if not titles:
            return
        with tempfile.TemporaryDirectory(prefix="stage.") as place:
            self.place = pathlib.Path(place)
            (self.place / "config.toml").touch()
            servers = []
            try:
                for _ in range(self.store.servers):
                    servers.append(self.store.server(self.place))
                self.nodes = [server.address for server in servers]
                self.url = self.store.url.format(",".join(self.nodes))
                self.servers = servers[self.store.down :]
                if self.store.down:
                    self._use_and_end(servers, self.store.down)
                for number, (title, play) in enumerate(titles):
                    self._play(f"lock{number}", title, play)
            finally:
                self.drop_client()
                for server in servers:
                    server.end()

    def _use_and_end(self, servers, down):
        """A node that has just been started might have forgotten a lease: these are as old as any lease can be."""
        scenario = scenarios.Scenario(self, "first")
        try:
            scenario.runs()
        finally:
            scenario.clear()
        for server in servers:
            began, rest = server.redis.get("dlock#since").split(" ", 1)
            server.redis.set("dlock#since", f"{int(began) - TWO_MONTHS} {rest}")
        for server in servers[:down]:
            server.end()

    def _play(self, name, title, play):
        began = time.monotonic()
        scenario = scenarios.Scenario(self, name)
        try:
            play(scenario)
            problem = None
        except Failure as failure:
            problem = str(failure)
        except Exception:
            problem = traceback.format_exc()
        finally:
            scenario.clear()
        if problem:
            # It may still wait for something.
            self.drop_client()
        tell(title, problem, time.monotonic() - began)


def named(functions):
    return [(function.__name__.replace("_", " "), function) for function in functions]


def together(store, crew):
    names = ", ".join("dlock" if kind is None else kind.name for kind in crew)
    play = (f"no update is lost ({names})", lambda scenario: scenarios.no_update_is_lost(scenario, crew))
    return Stage(None, store, [play])


EVERYTHING = scenarios.EXCLUSIVE + scenarios.SEVERAL_HOLDERS
STAGES = [
    together(of.PLAIN, [None, None, of.REDIS_PY, of.REDSYNC, of.REDLOCK4, of.REDLOCK5]),
    Stage(of.REDIS_PY, of.PLAIN, named(EVERYTHING)),
    Stage(of.REDSYNC, of.PLAIN, named(EVERYTHING)),
    Stage(of.REDLOCK4, of.PLAIN, named(EVERYTHING)),
    Stage(of.REDLOCK5, of.PLAIN, named(EVERYTHING)),
    Stage(of.RLOCK, of.PLAIN, named(scenarios.OF_ANOTHER_RECIPE)),
    Stage(of.RLOCK, of.REDISSON_RECIPE, named(EVERYTHING + scenarios.REENTRANT)),
    Stage(of.RFENCEDLOCK, of.REDISSON_RECIPE, named(EVERYTHING + scenarios.REENTRANT + scenarios.FENCED)),
    Stage(of.RFAIRLOCK, of.REDISSON_RECIPE, named(EVERYTHING)),
    Stage(of.RREADWRITELOCK, of.REDISSON_RECIPE, named(scenarios.IT_FIRST)),
    together(of.REDISSON_RECIPE, [None, None, of.RFENCEDLOCK, of.RFENCEDLOCK]),
    Stage(of.PYTHON_REDIS_LOCK, of.PYTHON_RECIPE, named(EVERYTHING)),
    together(of.PYTHON_RECIPE, [None, None, of.PYTHON_REDIS_LOCK, of.PYTHON_REDIS_LOCK]),
    together(of.MAJORITY, [None, None, of.REDSYNC, of.REDLOCK4, of.REDLOCK5]),
    Stage(of.REDSYNC, of.MAJORITY, named(scenarios.ON_A_MAJORITY)),
    Stage(of.REDLOCK4, of.MAJORITY, named(scenarios.ON_A_MAJORITY)),
    Stage(of.REDLOCK5, of.MAJORITY, named(scenarios.ON_A_MAJORITY)),
    Stage(of.REDSYNC, of.BARE_MAJORITY, named(scenarios.ON_A_MAJORITY)),
    Stage(of.REDLOCK5, of.BARE_MAJORITY, named(scenarios.ON_A_MAJORITY)),
    Stage(of.ETCDCTL34, of.ETCD34, named(scenarios.KEPT_ALIVE + scenarios.IN_LINE + scenarios.FENCED)),
    Stage(of.ETCDCTL36, of.ETCD36, named(scenarios.KEPT_ALIVE + scenarios.IN_LINE + scenarios.FENCED)),
    Stage(of.GO_MUTEX, of.ETCD34, named(EVERYTHING + scenarios.IN_LINE + scenarios.FENCED)),
    Stage(of.GO_MUTEX, of.ETCD36, named(EVERYTHING + scenarios.IN_LINE + scenarios.FENCED)),
    Stage(of.JETCD, of.ETCD36, named(EVERYTHING + scenarios.IN_LINE)),
    together(of.ETCD34, [None, None, of.ETCDCTL34, of.GO_MUTEX]),
    together(of.ETCD36, [None, None, of.ETCDCTL36, of.GO_MUTEX, of.JETCD]),
    Stage(of.MUTEX, of.CURATOR, named(scenarios.IN_SESSIONS + scenarios.IN_LINE)),
    Stage(of.WRITE_LOCK, of.CURATOR_RW, named(scenarios.IN_SESSIONS + scenarios.IN_LINE)),
    Stage(of.READ_LOCK, of.CURATOR_RW, named(scenarios.READERS)),
    Stage(of.KAZOO, of.KAZOO_RECIPE, named(scenarios.IN_SESSIONS + scenarios.IN_LINE)),
    Stage(of.PYMEMCACHE, of.MEMCACHED, named(scenarios.POLLED)),
    together(of.MEMCACHED, [None, None, of.PYMEMCACHE, of.PYMEMCACHE]),
    # It checks a condition before it writes, in two steps: nothing is tried at the same time there.
    Stage(of.LOCK_CLIENT, of.DYNAMODB, named(scenarios.ALONE_ELECTED)),
    Stage(of.ADVISORY, of.POSTGRES, named(scenarios.IN_SESSIONS)),
    Stage(of.ADVISORY_SHARED, of.POSTGRES, named(scenarios.READERS + [scenarios.it_wakes_when_dlock_releases])),
    together(of.POSTGRES, [None, None, of.ADVISORY, of.ADVISORY]),
    Stage(of.GET_LOCK, of.MARIADB, named(scenarios.ALONE_IN_SESSIONS)),
    together(of.MARIADB, [None, None, of.GET_LOCK, of.GET_LOCK]),
    Stage(of.SHEDLOCK_POSTGRES, of.POSTGRES_OF_SHEDLOCK, named(scenarios.POLLED)),
    together(of.POSTGRES_OF_SHEDLOCK, [None, None, of.SHEDLOCK_POSTGRES, of.SHEDLOCK_POSTGRES]),
    Stage(of.SHEDLOCK_MARIADB, of.MARIADB_OF_SHEDLOCK, named(scenarios.POLLED)),
    together(of.MARIADB_OF_SHEDLOCK, [None, None, of.SHEDLOCK_MARIADB, of.SHEDLOCK_MARIADB]),
    together(of.CURATOR, [None, None, of.MUTEX, of.MUTEX]),
    together(of.CURATOR_RW, [None, None, of.WRITE_LOCK, of.WRITE_LOCK]),
    together(of.KAZOO_RECIPE, [None, None, of.KAZOO, of.KAZOO]),
]

if os.environ.get("DLOCK_INTEROP_CONSUL") == "1":
    STAGES += [
        Stage(of.CONSUL_LOCK, of.CONSUL, named(scenarios.WITHOUT_LEASES)),
        together(of.CONSUL, [None, None, of.CONSUL_LOCK, of.CONSUL_LOCK]),
    ]
if os.environ.get("DLOCK_INTEROP_KUBERNETES") == "1":
    STAGES += [
        Stage(of.CLIENT_GO, of.KUBERNETES, named(scenarios.ELECTED)),
        together(of.KUBERNETES, [None, None, of.CLIENT_GO, of.CLIENT_GO]),
    ]

results, versions, mouth = [], set(), threading.Lock()


def tell(title, problem, seconds):
    if processes.Process.alive is None:
        return
    with mouth:
        results.append(problem is None)
        if problem is None:
            print(f"ok {len(results)} - {title} ({seconds:.1f}s)", flush=True)
        else:
            print(f"interop.sh: FAILED {title} ({seconds:.1f}s)", flush=True)
            print("\n".join(f"#   {line}" for line in problem.splitlines()), flush=True)


def main(words):
    began = time.monotonic()
    processes.adopt_orphans()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: sys.exit(128 + number))

    def wanted(title):
        return not words or any(word in title for word in words)

    pool = concurrent.futures.ThreadPoolExecutor(STAGES_AT_A_TIME)
    try:
        for stage in [pool.submit(stage.play, wanted) for stage in STAGES]:
            try:
                stage.result()
            except Exception:
                tell("a stage could not be set", traceback.format_exc(), 0)
        left = processes.left_behind()
        if left:
            tell("nothing is left behind", "\n".join(left), 0)
    except (KeyboardInterrupt, SystemExit) as end:
        processes.clear_all()
        # The threads of the stages are not waited for: what they wait for is gone.
        os._exit(end.code if isinstance(end, SystemExit) else 128 + signal.SIGINT)
    passed = sum(results)
    if not results:
        sys.exit("interop.sh: no scenario is called so")
    seconds = time.monotonic() - began
    print(f"interop.sh: {passed} of {len(results)} passed in {seconds:.0f}s with {', '.join(sorted(versions))}")
    sys.exit(passed != len(results))


main(sys.argv[1:])
