"""What has to be true of dlock beside any library: plain functions of a scene."""

import signal
import subprocess
import threading
import time

from processes import LONG, SHORT, Client, Dlock, Failure, equal, locked, throughout, until

SHARED = ("--shared",)
SLOTS = ("--slots", "2")
# A lease that outlives the scenario: who gets in before its end was let in.
KEPT = ("--ttl", f"{LONG}ms")


class Scene:
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


def dlock_keeps_it_out(scene):
    holder = scene.hold()
    equal(scene.client.tries(scene.name), False, "the library gets what dlock holds")
    holder.ends()
    scene.client.takes(scene.name)
    scene.client.gives(scene.name)


def it_keeps_dlock_out(scene):
    scene.client.takes(scene.name)
    scene.refused()
    scene.refused("--wait", "300ms")
    scene.refused(*SHARED)
    scene.client.gives(scene.name)
    scene.runs()


def it_wakes_when_dlock_releases(scene):
    holder = scene.hold()
    scene.client.begins_to_wait(scene.name, scene.server)
    holder.ends()
    scene.client.gets_it()
    scene.refused()
    scene.client.gives(scene.name)
    scene.runs()


def dlock_wakes_when_it_releases(scene):
    scene.client.takes(scene.name)
    waiter = scene.line()
    scene.client.gives(scene.name)
    waiter.await_running()
    equal(scene.client.tries(scene.name), False, "the library gets what dlock holds")
    waiter.ends()


def those_in_line_come_in_their_order(scene):
    scene.client.takes(scene.name)
    waiters = [scene.line() for _ in range(3)]
    scene.client.gives(scene.name)
    while waiters:
        until("that one of those in line gets it", lambda: not all(waiter.is_silent() for waiter in waiters))
        if any(not waiter.is_silent() for waiter in waiters[1:]):
            raise Failure("not in their order: " + ", then ".join(map(str, waiters)))
        first = waiters.pop(0).await_running()
        throughout("the others wait", lambda: all(waiter.is_silent() for waiter in waiters))
        first.ends()


def a_token_keeps_it_out_until_it_is_given_back(scene):
    token = scene.dlock(*KEPT, command="acquire").answer()
    equal(scene.client.tries(scene.name), False, "the library gets what a token of dlock holds")
    scene.client.begins_to_wait(scene.name, scene.server)
    scene.dlock(command="renew", token=token).ends()
    throughout("the library waits", scene.client.is_silent)
    scene.dlock(command="release", token=token).ends()
    scene.client.gets_it()
    scene.dlock(command="renew", token=token).ends(76)
    scene.client.gives(scene.name)


def _keeps_it_out_until_the_last_leaves(scene, mode):
    first, second = scene.hold(*mode), scene.hold(*mode)
    equal(scene.client.tries(scene.name), False, "the library gets what two dlocks hold")
    scene.client.begins_to_wait(scene.name, scene.server)
    first.ends()
    throughout("the library waits for the second", scene.client.is_silent)
    second.ends()
    scene.client.gets_it()
    scene.refused(*mode)
    scene.client.gives(scene.name)
    scene.runs(*mode)


def those_who_share_keep_it_out_until_the_last_leaves(scene):
    _keeps_it_out_until_the_last_leaves(scene, SHARED)


def those_in_slots_keep_it_out_until_the_last_leaves(scene):
    _keeps_it_out_until_the_last_leaves(scene, SLOTS)


def slots_are_refused(scene):
    """Three of two slots have a majority of five nodes: it cannot be counted there."""
    run = scene.dlock(*SLOTS)
    equal(run.status(), 64, f"the status of {run}")
    equal(run.lines, [], f"what ran under {run}")


# Lives as long as it can, and so does what it starts; the flock lives as long as any of them.
STUBBORN = 'trap "" TERM INT HUP; sleep 1000 & echo running; while :; do sleep 0.05; done'


def a_killed_dlock_keeps_it_out_while_the_tree_lives(scene):
    leash = scene.stage.place / f"leash.{scene.name}"
    tree = ["flock", leash, "sh", "-c", STUBBORN]
    holder = scene.dlock("--ttl", f"{SHORT}ms", run=tree).await_running()
    equal(scene.client.tries(scene.name), False, "the library gets what dlock holds")
    holder.popen.send_signal(signal.SIGKILL)
    until("that the library gets it", lambda: scene.client.tries(scene.name))
    equal(locked(leash), False, "the tree of the killed dlock lives when the library has the lock")
    scene.client.gives(scene.name)


def a_killed_client_keeps_dlock_out_until_its_lease_ends(scene):
    client = scene.another_client()
    client.takes(scene.name, SHORT)
    waiter = scene.line()
    client.kill()
    waiter.await_running().ends()


def who_comes_too_late_frees_nothing(scene):
    scene.client.takes(scene.name, SHORT)
    heir = scene.line().await_running()
    scene.client.gives(scene.name, "lost")
    equal(scene.client.tries(scene.name), False, "the library gets what dlock holds")
    heir.ends()


def an_inner_hold_of_it_frees_nothing(scene):
    """The library's lock is reentrant: taken twice by one thread, it is given back twice."""
    for _ in range(2):
        scene.client.takes(scene.name)
    waiter = scene.line()
    scene.client.gives(scene.name)
    scene.refused()
    throughout("dlock waits", waiter.is_silent)
    scene.client.gives(scene.name)
    waiter.await_running().ends()


def the_recipe_is_named_to_who_has_the_wrong_one(scene):
    scene.client.takes(scene.name)
    run = scene.refused()
    if not run.tells("recipe=redisson"):
        raise Failure(f"no word of recipe=redisson: {run}")
    scene.client.gives(scene.name)


def it_fails_on_the_key_of_another_recipe(scene):
    """Redisson expects a hash, and says of a string that it is none. What matters: it does not get the lock."""
    holder = scene.hold()
    scene.client.say("try", scene.name, LONG)
    answer = scene.client.answer()
    equal(answer.startswith("error ") and "WRONGTYPE" in answer, True, f"an error of the library: {answer}")
    holder.ends()
    scene.client.takes(scene.name)
    scene.client.gives(scene.name)


TELL_TOKEN = ("sh", "-c", 'echo "$DLOCK_FENCING_TOKEN"')


def fencing_tokens_grow_whoever_takes_it(scene):
    # A name that the library takes first, and one that dlock does.
    for name, order in ((scene.name, "lddlld"), (f"{scene.name}.d", "dllddl")):
        tokens = []
        for who in order:
            if who == "l":
                scene.client.takes(name)
                tokens.append(scene.client.token)
                scene.client.gives(name)
            else:
                run = scene.dlock(name=name, run=TELL_TOKEN)
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


def no_update_is_lost(scene, crew):
    """Workers of many kinds count to the same number, which only the lock protects."""
    place = scene.stage.place / f"counter.{scene.name}"
    place.mkdir()
    (place / "counter").write_text("0\n")
    (place / "turns").touch()
    turn = ["sh", "-c", TURN, "sh", str(place)]
    problems = []

    def dlock(who):
        for _ in range(TURNS):
            scene.dlock("--wait", "1m", run=[*turn, who]).ends()
            time.sleep(0.02)

    def client(who, library):
        worker = scene._start(Client(library, scene.stage.nodes))
        for _ in range(TURNS):
            worker.say("wait", scene.name, LONG, 60_000)
            equal(worker.answer(), "waiting", f"the answer of {who}")
            worker.gets_it()
            subprocess.run([*turn, who, str(worker.token or "")], check=True, timeout=60)
            worker.gives(scene.name)

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
SEVERAL_HOLDERS = [
    those_who_share_keep_it_out_until_the_last_leaves,
    those_in_slots_keep_it_out_until_the_last_leaves,
]
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
