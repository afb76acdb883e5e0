"""What has to be true of dlock beside any library: plain functions of a scenario."""

import signal
import subprocess
import threading
import time

from processes import LONG, SHORT, Client, Dlock, Failure, equal, locked, throughout, until

SHARED = ("--shared",)
SLOTS = ("--slots", "2")
# A lease that outlives the scenario: who gets in before its end was let in.
KEPT = ("--ttl", f"{LONG}ms")


class Scenario:
    """One lock on a stage's servers, with the client of the stage's library. What it starts ends with it."""

    def __init__(self, stage, name):
        self.stage, self.name, self.started = stage, name, []

    @property
    def client(self):
        return self.stage.client

    @property
    def server(self):
        return self.stage.servers[0]

    def another_client(self):
        return self._start(Client(self.stage.library, self.stage.nodes))

    def dlock(self, *options, name=None, **words):
        return self._start(Dlock(self.stage.place, self.stage.url, name or self.name, *options, **words))

    def _start(self, process):
        self.started.append(process)
        return process

    def hold(self, *options):
        """A dlock that has the lock until `ends`."""
        return self.dlock(*KEPT, *options).await_running()

    def line(self, *options):
        """A dlock that waits for the lock."""
        return self.dlock("-v", "--wait", "forever", *KEPT, *options).await_waiting()

    def refused(self, *options):
        """A dlock that does not get the lock: it says so, and the command does not run."""
        run = self.dlock(*options)
        equal(run.status(), 75, f"the status of {run}")
        equal(run.lines, [], f"what ran under {run}")
        if not run.tells(f"{self.name} is held by another program"):
            raise Failure(f"no word of another program: {run}")
        return run

    def runs(self, *options):
        """A dlock that gets the lock at once."""
        self.dlock(*options).await_running().ends()

    def clear(self):
        for process in self.started:
            process.clear()


def dlock_keeps_it_out(scenario):
    holder = scenario.hold()
    equal(scenario.client.tries(scenario.name), False, "the library gets what dlock holds")
    holder.ends()
    scenario.client.takes(scenario.name)
    scenario.client.gives(scenario.name)


def it_keeps_dlock_out(scenario):
    scenario.client.takes(scenario.name)
    scenario.refused()
    scenario.refused("--wait", "300ms")
    if scenario.stage.store.shares:
        scenario.refused(*SHARED)
    scenario.client.gives(scenario.name)
    scenario.runs()


def it_wakes_when_dlock_releases(scenario):
    holder = scenario.hold()
    scenario.client.begins_to_wait(scenario.name, scenario.server)
    holder.ends()
    scenario.client.gets_it()
    scenario.refused()
    scenario.client.gives(scenario.name)
    scenario.runs()


def dlock_wakes_when_it_releases(scenario):
    scenario.client.takes(scenario.name)
    waiter = scenario.line()
    scenario.client.gives(scenario.name)
    waiter.await_running()
    equal(scenario.client.tries(scenario.name), False, "the library gets what dlock holds")
    waiter.ends()


def those_in_line_come_in_their_order(scenario):
    scenario.client.takes(scenario.name)
    waiters = [scenario.line() for _ in range(3)]
    scenario.client.gives(scenario.name)
    while waiters:
        until("that one of those in line gets it", lambda: not all(waiter.is_silent() for waiter in waiters))
        if any(not waiter.is_silent() for waiter in waiters[1:]):
            raise Failure("not in their order: " + ", then ".join(map(str, waiters)))
        first = waiters.pop(0).await_running()
        throughout("the others wait", lambda: all(waiter.is_silent() for waiter in waiters))
        first.ends()


def a_token_keeps_it_out_until_it_is_given_back(scenario):
    token = scenario.dlock(*KEPT, command="acquire").answer()
    equal(scenario.client.tries(scenario.name), False, "the library gets what a token of dlock holds")
    scenario.client.begins_to_wait(scenario.name, scenario.server)
    scenario.dlock(command="renew", token=token).ends()
    throughout("the library waits", scenario.client.is_silent)
    scenario.dlock(command="release", token=token).ends()
    scenario.client.gets_it()
    scenario.dlock(command="renew", token=token).ends(76)
    scenario.client.gives(scenario.name)


def all_in_line_come_in_their_order(scenario):
    """Also those of the library."""
    holder = scenario.hold()
    waiters = []
    for _ in range(2):
        waiters.append(scenario.line())
        client = scenario.another_client()
        client.begins_to_wait(scenario.name, scenario.server)
        waiters.append(client)
    holder.ends()
    while waiters:
        first = waiters.pop(0)
        if isinstance(first, Client):
            first.gets_it()
        else:
            first.await_running()
        throughout("the others wait", lambda: all(waiter.is_silent() for waiter in waiters))
        if isinstance(first, Client):
            first.gives(scenario.name)
        else:
            first.ends()


def readers_of_both_share_it(scenario):
    """The library's lock for readers and `--shared`."""
    scenario.client.takes(scenario.name)
    scenario.runs(*SHARED)
    scenario.refused()
    writer = scenario.line()
    scenario.client.gives(scenario.name)
    writer.await_running()
    equal(scenario.client.tries(scenario.name), False, "the library reads what dlock writes")
    writer.ends()
    reader = scenario.hold(*SHARED)
    scenario.client.takes(scenario.name)
    reader.ends()
    scenario.refused()
    scenario.client.gives(scenario.name)
    scenario.runs()


def _keeps_it_out_until_the_last_leaves(scenario, mode):
    first, second = scenario.hold(*mode), scenario.hold(*mode)
    equal(scenario.client.tries(scenario.name), False, "the library gets what two dlocks hold")
    scenario.client.begins_to_wait(scenario.name, scenario.server)
    first.ends()
    throughout("the library waits for the second", scenario.client.is_silent)
    second.ends()
    scenario.client.gets_it()
    scenario.refused(*mode)
    scenario.client.gives(scenario.name)
    scenario.runs(*mode)


def those_who_share_keep_it_out_until_the_last_leaves(scenario):
    _keeps_it_out_until_the_last_leaves(scenario, SHARED)


def those_in_slots_keep_it_out_until_the_last_leaves(scenario):
    _keeps_it_out_until_the_last_leaves(scenario, SLOTS)


def slots_are_refused(scenario):
    """Three of two slots have a majority of five nodes: it cannot be counted there."""
    run = scenario.dlock(*SLOTS)
    equal(run.status(), 64, f"the status of {run}")
    equal(run.lines, [], f"what ran under {run}")


# Lives as long as it can, and so does what it starts; the flock lives as long as any of them.
STUBBORN = 'trap "" TERM INT HUP; sleep 1000 & echo running; while :; do sleep 0.05; done'


def a_killed_dlock_keeps_it_out_while_the_tree_lives(scenario):
    inherited_lock = scenario.stage.place / f"inherited_lock.{scenario.name}"
    tree = ["flock", inherited_lock, "sh", "-c", STUBBORN]
    holder = scenario.dlock("--ttl", f"{SHORT}ms", run=tree).await_running()
    equal(scenario.client.tries(scenario.name), False, "the library gets what dlock holds")
    holder.popen.send_signal(signal.SIGKILL)
    until("that the library gets it", lambda: scenario.client.tries(scenario.name))
    equal(locked(inherited_lock), False, "the tree of the killed dlock lives when the library has the lock")
    scenario.client.gives(scenario.name)


def a_killed_dlock_keeps_one_that_waits_out_while_the_tree_lives(scenario):
    """The library has to have seen a lease for as long as it lasts before it takes it over."""
    inherited_lock = scenario.stage.place / f"inherited_lock.{scenario.name}"
    tree = ["flock", inherited_lock, "sh", "-c", STUBBORN]
    holder = scenario.dlock("--ttl", f"{4 * SHORT}ms", run=tree).await_running()
    scenario.client.begins_to_wait(scenario.name, scenario.server)
    holder.popen.send_signal(signal.SIGKILL)
    scenario.client.gets_it()
    equal(locked(inherited_lock), False, "the tree of the killed dlock lives when the library has the lock")
    scenario.client.gives(scenario.name)


def a_killed_client_keeps_dlock_out_until_its_lease_ends(scenario):
    client = scenario.another_client()
    client.takes(scenario.name, SHORT)
    waiter = scenario.line()
    client.kill()
    waiter.await_running().ends()


def who_comes_too_late_frees_nothing(scenario):
    scenario.client.takes(scenario.name, SHORT)
    next_holder = scenario.line().await_running()
    scenario.client.gives(scenario.name, "lost")
    equal(scenario.client.tries(scenario.name), False, "the library gets what dlock holds")
    next_holder.ends()


def an_inner_hold_of_it_frees_nothing(scenario):
    """The library's lock is reentrant: taken twice by one thread, it is given back twice."""
    for _ in range(2):
        scenario.client.takes(scenario.name)
    waiter = scenario.line()
    scenario.client.gives(scenario.name)
    scenario.refused()
    throughout("dlock waits", waiter.is_silent)
    scenario.client.gives(scenario.name)
    waiter.await_running().ends()


def the_recipe_is_named_to_who_has_the_wrong_one(scenario):
    scenario.client.takes(scenario.name)
    run = scenario.refused()
    if not run.tells("recipe=redisson"):
        raise Failure(f"no word of recipe=redisson: {run}")
    scenario.client.gives(scenario.name)


def it_fails_on_the_key_of_another_recipe(scenario):
    """Redisson expects a hash, and says of a string that it is none. What matters: it does not get the lock."""
    holder = scenario.hold()
    scenario.client.say("try", scenario.name, LONG)
    answer = scenario.client.answer()
    equal(answer.startswith("error ") and "WRONGTYPE" in answer, True, f"an error of the library: {answer}")
    holder.ends()
    scenario.client.takes(scenario.name)
    scenario.client.gives(scenario.name)


TELL_TOKEN = ("sh", "-c", 'echo "$DLOCK_FENCING_TOKEN"')


def fencing_tokens_grow_whoever_takes_it(scenario):
    # A name that the library takes first, and one that dlock does.
    for name, order in ((scenario.name, "lddlld"), (f"{scenario.name}.d", "dllddl")):
        tokens = []
        for who in order:
            if who == "l":
                scenario.client.takes(name)
                tokens.append(scenario.client.token)
                scenario.client.gives(name)
            else:
                run = scenario.dlock(name=name, run=TELL_TOKEN)
                run.ends()
                tokens.append(int(run.answer()))
        equal(tokens, sorted(set(tokens)), f"the tokens of {order}")


# One turn at the counter: is somebody inside, read, dawdle, write. $1: directory, $2: who, $3: fencing token, if any.
TURN = """cd "$1" || exit 1
mkdir inside 2>/dev/null || echo "$2" >>overlaps
read -r count <counter
sleep 0.005
echo "$((count + 1))" >counter
echo "$2 ${DLOCK_FENCING_TOKEN:-$3}" >>turns
rmdir inside
"""
TURNS = 6


# In milliseconds, much longer than a turn takes. What a failed attempt leaves on a majority of nodes stays for as long, which
# is to end before the others have waited too long.
LEASE_OF_A_TURN = 15_000


def no_update_is_lost(scenario, crew):
    """Workers of many kinds count to the same number, which only the lock protects."""
    place = scenario.stage.place / f"counter.{scenario.name}"
    place.mkdir()
    (place / "counter").write_text("0\n")
    (place / "turns").touch()
    turn = ["sh", "-c", TURN, "sh", str(place)]
    problems = []

    def dlock(who):
        for _ in range(TURNS):
            scenario.dlock("--wait", "1m", run=[*turn, who]).ends()
            time.sleep(0.02)

    def client(who, library):
        worker = scenario._start(Client(library, scenario.stage.nodes))
        for _ in range(TURNS):
            worker.say("wait", scenario.name, LEASE_OF_A_TURN, 60_000)
            equal(worker.answer(), "waiting", f"the answer of {who}")
            worker.gets_it()
            subprocess.run([*turn, who, str(worker.token or "")], check=True, timeout=60)
            worker.gives(scenario.name)

    def work(what, *arguments):
        try:
            what(*arguments)
        except Exception as problem:
            problems.append(str(problem))

    workers = []
    for number, kind in enumerate(crew):
        task = (dlock, f"dlock-{number}") if kind is None else (client, f"{kind.name}-{number}".replace(" ", "-"), kind)
        workers.append(threading.Thread(target=work, args=task))
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if problems:
        raise Failure("; ".join(problems))
    equal((place / "overlaps").exists(), False, "two were inside at once")
    equal(int((place / "counter").read_text()), TURNS * len(crew), "the counter")
    turns = [line.split() for line in (place / "turns").read_text().splitlines()]
    tokens = [int(turn[1]) for turn in turns if len(turn) > 1]
    equal(tokens, sorted(set(tokens)), "the fencing tokens in the order of the turns")


# What is played, by what the library and the store have in common.
EXCLUSIVE = [
    dlock_keeps_it_out,
    it_keeps_dlock_out,
    it_wakes_when_dlock_releases,
    dlock_wakes_when_it_releases,
    those_in_line_come_in_their_order,
    a_token_keeps_it_out_until_it_is_given_back,
    a_killed_dlock_keeps_it_out_while_the_tree_lives,
    a_killed_client_keeps_dlock_out_until_its_lease_ends,
    who_comes_too_late_frees_nothing,
]
# On a store whose leases are longer than a scenario.
WITHOUT_LEASES = EXCLUSIVE[:5]
SEVERAL_HOLDERS = [
    those_who_share_keep_it_out_until_the_last_leaves,
    those_in_slots_keep_it_out_until_the_last_leaves,
]
# A library that extends its lease as long as it lives.
KEPT_ALIVE = [play for play in EXCLUSIVE if play is not who_comes_too_late_frees_nothing] + SEVERAL_HOLDERS
# The same, where a client takes over only what it has watched.
ELECTED = [
    a_killed_dlock_keeps_one_that_waits_out_while_the_tree_lives
    if play is a_killed_dlock_keeps_it_out_while_the_tree_lives
    else play
    for play in KEPT_ALIVE
]
# The same, where the lock has one holder.
ALONE_ELECTED = [play for play in ELECTED if play not in SEVERAL_HOLDERS]
# On a store that refuses `dlock acquire`.
IN_SESSIONS = [play for play in KEPT_ALIVE if play is not a_token_keeps_it_out_until_it_is_given_back]
# The same, where the lock has one holder.
ALONE_IN_SESSIONS = [play for play in IN_SESSIONS if play not in SEVERAL_HOLDERS]
# Where all wait by asking again, and the library deletes without comparing.
POLLED = [
    play
    for play in EXCLUSIVE
    if play not in (those_in_line_come_in_their_order, who_comes_too_late_frees_nothing)
]
# Where the store orders all that wait.
IN_LINE = [all_in_line_come_in_their_order]
READERS = [readers_of_both_share_it]
ON_A_MAJORITY = [*EXCLUSIVE, those_who_share_keep_it_out_until_the_last_leaves, slots_are_refused]
OF_ANOTHER_RECIPE = [
    it_fails_on_the_key_of_another_recipe,
    the_recipe_is_named_to_who_has_the_wrong_one,
    it_keeps_dlock_out,
    those_in_line_come_in_their_order,
    an_inner_hold_of_it_frees_nothing,
    a_killed_client_keeps_dlock_out_until_its_lease_ends,
]
# What does not look whether somebody else has the lock, but shows that it has it.
IT_FIRST = [
    it_keeps_dlock_out,
    those_in_line_come_in_their_order,
]
REENTRANT = [an_inner_hold_of_it_frees_nothing]
FENCED = [fencing_tokens_grow_whoever_takes_it]
