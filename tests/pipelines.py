#!/usr/bin/env python3
"""Runs the steps of packaging/github/action.yml and packaging/gitlab/dlock.gitlab-ci.yml as a runner would.

pipelines.py DLOCK DEB TARBALL      called by tests/packages.sh; needs PyYAML

The steps are taken from the files, the inputs come as environment variables as the action says, and each runs in bash
(the template: in sh as well) with a real dlock, or with one that prints its arguments.
"""

import hashlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

import yaml

DLOCK, DEB, TARBALL = (os.path.realpath(argument) for argument in sys.argv[1:])
PACKAGING = pathlib.Path(__file__).resolve().parent.parent / "packaging"
ACTION = yaml.safe_load((PACKAGING / "github/action.yml").read_text())
TEMPLATE = yaml.safe_load((PACKAGING / "gitlab/dlock.gitlab-ci.yml").read_text())[".dlock"]
INSTALL, RUN = ACTION["runs"]["steps"]
# What becomes a command wherever a value is pasted into shell text, bare or between quotes of either kind.
HOSTILE = "$(touch pwned) `touch pwned`; touch pwned & \"; touch pwned; ' ; touch pwned; '\"$(touch pwned)\" \\ *"
ECHO = f"""#!{sys.executable}
import json, os, sys
print(json.dumps([sys.argv[1:], os.environ.get("DLOCK_BACKEND")]))
"""


class Runner:
    """A clean machine: a directory, and a PATH with this program as `dlock` in front."""

    def __init__(self, dlock=None):
        self.directory = tempfile.TemporaryDirectory(prefix="dlock-pipelines.")
        self.home = pathlib.Path(self.directory.name)
        (self.home / "bin").mkdir()
        (self.home / "paths").touch()
        if dlock == "echo":
            (self.home / "bin/dlock").write_text(ECHO)
            (self.home / "bin/dlock").chmod(0o755)
        elif dlock:
            (self.home / "bin/dlock").symlink_to(dlock)

    def environment(self, variables):
        paths = (self.home / "paths").read_text().split("\n")[:-1]
        return {
            "PATH": ":".join([*reversed(paths), str(self.home / "bin"), "/usr/local/bin:/usr/bin:/bin"]),
            "HOME": str(self.home),
            "RUNNER_TEMP": str(self.home),
            "GITHUB_PATH": str(self.home / "paths"),
            **variables,
        }

    def start(self, shell, text, variables):
        (self.home / "step.sh").write_text(text)
        return subprocess.Popen(
            [*shell, str(self.home / "step.sh")],
            env=self.environment(variables),
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, shell, text, variables):
        process = self.start(shell, text, variables)
        stdout, stderr = process.communicate(timeout=60)
        assert not (self.home / "pwned").exists(), f"a value was run as shell text: {variables}"
        return process.returncode, stdout, stderr

    def step(self, step, **inputs):
        return self.run(["bash", "--noprofile", "--norc", "-eo", "pipefail"], step["run"], of_action(step, inputs))

    def job(self, shell, **variables):
        text = "\n".join(["set -e", *TEMPLATE["before_script"], *TEMPLATE["script"]])
        return self.run([shell], text, {**TEMPLATE["variables"], **variables})


def of_action(step, inputs):
    """The variables of a step, as the runner fills them in."""
    unknown = inputs.keys() - {name.replace("-", "_") for name in ACTION["inputs"]}
    assert not unknown, unknown
    variables = {}
    for variable, value in step["env"].items():
        [name] = re.fullmatch(r"\$\{\{ inputs\.([a-z0-9-]+) \}\}", value).groups()
        variables[variable] = inputs.get(name.replace("-", "_"), ACTION["inputs"][name].get("default", ""))
    return variables


def equal(found, expected, what):
    assert found == expected, f"{what}:\n    found    {found!r}\n    expected {expected!r}"


def locks(runner):
    return f"file://{runner.home}/locks"


def with_locks(dlock=DLOCK):
    runner = Runner(dlock)
    (runner.home / "locks").mkdir()
    return runner


def no_input_is_pasted_into_a_script():
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step["run"], step["name"]
        assert step["shell"] == "bash"
    used = re.findall(r"inputs\.([a-z0-9-]+)", json.dumps(ACTION["runs"]))
    equal(sorted(set(used)), sorted(ACTION["inputs"]), "inputs that are used, and inputs that are described")


def the_action_runs_the_script_under_the_lock():
    runner = with_locks()
    script = "echo \"$DLOCK_NAME by $(ps -o comm= $PPID)\"\nfalse | true && echo not reached"
    equal(runner.step(RUN, name="deploy", run=script, backend=locks(runner))[0], 1, "pipefail")
    script = "env | grep -c ^INPUT_ || true; echo \"$DLOCK_NAME\"; exit 7"
    equal(runner.step(RUN, name="deploy", run=script, backend=locks(runner)), (7, "0\ndeploy\n", ""), "a script")


def the_action_says_when_somebody_else_holds_the_lock():
    runner = with_locks()
    holder = subprocess.Popen(["flock", runner.home / "locks/deploy.lock", "sh", "-c", "echo; read x"],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    holder.stdout.readline()
    for code, inputs in [(75, {}), (0, {"conflict_exit_code": "0"})]:
        status, stdout, stderr = runner.step(RUN, name="deploy", run="echo ran", backend=locks(runner), **inputs)
        equal((status, stdout), (code, ""), f"contention with {inputs}")
        assert stderr.startswith("dlock: deploy is held by "), stderr
    holder.communicate()


def the_action_passes_every_option():
    inputs = {
        "wait": "30m", "retry": "2m", "ttl": "1m", "grace": "5s", "max_runtime": "20m", "min_hold": "1s",
        "slots": "2", "orphans": "kill", "note": "a note", "conflict_exit_code": "0",
    }
    options = [f"--{name.replace('_', '-')}={value}" for name, value in inputs.items()]
    bash = ["--", "bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", "true"]
    status, stdout, stderr = Runner("echo").step(RUN, name="a b\n\nc\n", run="true", shared="true", backend="x:", **inputs)
    equal((status, stderr), (0, ""), "every option")
    equal(json.loads(stdout), [["run", *options, "--shared", "a b", "c", *bash], "x:"], "every option")
    status, stdout, _ = Runner("echo").step(RUN, name="x", run="true")
    equal(json.loads(stdout), [["run", "x", *bash], None], "no option")
    # The real one knows them all; slots and shared are for different runs.
    runner = with_locks()
    equal(runner.step(RUN, name="x", run="true", backend=locks(runner), **inputs)[0], 0, "every option, for real")
    equal(runner.step(RUN, name="x", run="true", backend=locks(runner), shared="true")[0], 0, "shared, for real")


def the_action_runs_nothing_of_a_hostile_input():
    for name in set(ACTION["inputs"]) - {"run", "working-directory", "package", "sha256"}:
        inputs = {"name": "x", "run": "true", name.replace("-", "_"): HOSTILE}
        status, stdout, _ = Runner("echo").step(RUN, **inputs)
        if name == "shared":
            equal(status, 64, name)
            continue
        [arguments, backend] = json.loads(stdout)
        given = {"name": HOSTILE, "backend": HOSTILE}.get(name, f"--{name}={HOSTILE}")
        equal((backend if name == "backend" else arguments[1]), given, name)
        runner = with_locks()
        runner.step(RUN, **{"backend": locks(runner), **inputs})
    for name in ["-v", "--on-lost=warn", "x\n-v"]:
        equal(with_locks("echo").step(RUN, name=name, run="true")[0], 64, f"the name {name!r}")
    for inputs in [{"package": HOSTILE, "sha256": "0" * 64}, {"package": DEB, "sha256": HOSTILE}, {"package": "--help", "sha256": "0" * 64}]:
        runner = Runner()
        assert runner.step(INSTALL, **inputs)[0] != 0, inputs
        equal((runner.home / "paths").read_text(), "", f"the PATH after {inputs}")


def the_action_installs_a_package():
    for package in [DEB, TARBALL]:
        sha256 = hashlib.sha256(pathlib.Path(package).read_bytes()).hexdigest()
        runner = Runner()
        status, stdout, stderr = runner.step(INSTALL, package=package, sha256=sha256)
        equal((status, stderr), (0, ""), package)
        script = "dlock --version"
        status, again, _ = runner.step(RUN, name="x", run=script, backend=f"file://{runner.home}")
        equal((status, again), (0, stdout), f"the dlock of {package}")
        for status, wrong, what in [(65, "0" * 64, "another sum"), (64, "", "no sum")]:
            runner = Runner()
            equal(runner.step(INSTALL, package=package, sha256=wrong)[0], status, what)
            equal((runner.home / "paths").read_text(), "", f"the PATH after {what}")
    equal(Runner().step(INSTALL, package="http://example.com/dlock.deb", sha256="0" * 64)[0], 64, "a package by http")
    equal(Runner().step(RUN, name="x", run="true")[0], 127, "no dlock")
    # From an URL, by a curl that has it without a network.
    runner = Runner()
    url = f"https://example.com/a%20b/{HOSTILE}?token=1"
    curl = f"""#!{sys.executable}
import shutil, sys
options = sys.argv[1:]
assert options[:3] == ["--proto", "=https", "--fail"], options
shutil.copy({TARBALL!r}, options[options.index("--output") + 1])
open("asked", "w").write(options[options.index("--url") + 1])
"""
    (runner.home / "bin/curl").write_text(curl)
    (runner.home / "bin/curl").chmod(0o755)
    status, _, stderr = runner.step(INSTALL, package=url, sha256=sha256)
    equal((status, (runner.home / "asked").read_text()), (0, url), f"a package from an URL: {stderr}")


def a_cancelled_workflow_reaches_the_script():
    runner = with_locks()
    script = "trap 'echo interrupted >got; exit 5' INT; touch started; while :; do sleep 0.05; done"
    variables = of_action(RUN, {"name": "x", "run": script, "backend": locks(runner)})
    process = runner.start(["bash", "-e"], RUN["run"], variables)
    deadline = time.monotonic() + 30
    while not (runner.home / "started").exists():
        assert process.poll() is None and time.monotonic() < deadline, "the script does not start"
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    equal((process.returncode, (runner.home / "got").read_text()), (5, "interrupted\n"), "a cancelled workflow")


def the_template_runs_the_command_under_the_lock():
    for shell in ["sh", "bash"]:
        runner = with_locks()
        variables = {"LOCK_NAME": "deploy", "DLOCK_BACKEND": locks(runner), "LOCK_COMMAND": "echo $DLOCK_NAME; exit 7"}
        equal(runner.job(shell, **variables), (7, "deploy\n", ""), f"a job in {shell}")
        equal(runner.job(shell, LOCK_NAME="x")[0], 64, "no command")
        equal(runner.job(shell, LOCK_COMMAND="true")[0], 64, "no name")
        equal(runner.job(shell, LOCK_NAME="-v", LOCK_COMMAND="true")[0], 64, "a name that is an option")
        equal(Runner().job(shell, LOCK_NAME="x", LOCK_COMMAND="true")[0], 127, "no dlock")


def the_template_passes_every_option_and_runs_nothing_hostile():
    options = [name for name in TEMPLATE["variables"] if name.startswith("LOCK_") and name not in ("LOCK_NAME", "LOCK_COMMAND")]
    for shell in ["sh", "bash"]:
        for value in ["5", HOSTILE]:
            given = {name: value for name in options}
            status, stdout, stderr = Runner("echo").job(shell, LOCK_NAME=f"{HOSTILE}\nb", LOCK_COMMAND="true", **given)
            flags = [f"--{name[5:].lower().replace('_', '-')}={value}" for name in options]
            equal((status, stderr), (0, ""), shell)
            equal(json.loads(stdout)[0], ["run", *flags, HOSTILE, "b", "-c", "true"], shell)
        for package in [{"DLOCK_PACKAGE": HOSTILE, "DLOCK_PACKAGE_SHA256": "0" * 64}, {"DLOCK_PACKAGE": TARBALL, "DLOCK_PACKAGE_SHA256": HOSTILE}]:
            assert Runner("echo").job(shell, LOCK_NAME="x", LOCK_COMMAND="true", **package)[0] != 0, package


def the_template_installs_a_package():
    for shell in ["sh", "bash"]:
        runner = with_locks(None)
        sha256 = hashlib.sha256(pathlib.Path(TARBALL).read_bytes()).hexdigest()
        variables = {"LOCK_NAME": "x", "LOCK_COMMAND": "echo ran", "DLOCK_BACKEND": locks(runner), "DLOCK_PACKAGE": TARBALL}
        status, stdout, stderr = runner.job(shell, DLOCK_PACKAGE_SHA256=sha256, **variables)
        equal((status, stdout.splitlines()[1:], stderr), (0, ["ran"], ""), shell)
        equal(runner.job(shell, **variables)[0], 64, f"no sum in {shell}")
        equal(runner.job(shell, DLOCK_PACKAGE_SHA256="0" * 64, **variables)[0], 65, f"another sum in {shell}")


def the_examples_of_the_page_run():
    """Those of the action and of the template, in dlock-ci(7)."""
    page = (PACKAGING / "manual/pages/ci.7.md").read_text()
    blocks = [yaml.safe_load(text) for text in re.findall(r"^```yaml\n(.*?)^```$", page, re.M | re.S)]
    [[step]] = [block for block in blocks if isinstance(block, list) and "uses" in block[0]]
    [job] = [block["deploy"] for block in blocks if isinstance(block, dict) and "deploy" in block]
    runner = with_locks(None)
    (runner.home / "deploy.sh").write_text("#!/bin/sh\necho deployed under $DLOCK_NAME")
    (runner.home / "deploy.sh").chmod(0o755)
    assert (PACKAGING.parent / step["uses"] / "action.yml").samefile(PACKAGING / "github/action.yml")
    inputs = {name.replace("-", "_"): value for name, value in step["with"].items()}
    assert pathlib.Path(DEB).name == inputs["package"].split("/")[-1].replace("amd64", DEB.split("_")[-1][:-4]), "the version"
    assert inputs["sha256"], "the example names the sum"
    sha256 = hashlib.sha256(pathlib.Path(DEB).read_bytes()).hexdigest()
    inputs.update(package=DEB, sha256=sha256, backend=locks(runner))
    equal(runner.step(INSTALL, **inputs)[0], 0, "the action installs dlock")
    equal(runner.step(RUN, **inputs), (0, "deployed under deploy\n", ""), "the action of the page")
    equal(job.keys(), {"extends", "variables"}, "the job of the page")
    variables = {**job["variables"], "DLOCK_BACKEND": locks(runner)}
    equal(runner.job("sh", **variables), (0, "deployed under deploy\n", ""), "the job of the page")


CHECKS = [
    no_input_is_pasted_into_a_script,
    the_action_runs_the_script_under_the_lock,
    the_action_says_when_somebody_else_holds_the_lock,
    the_action_passes_every_option,
    the_action_runs_nothing_of_a_hostile_input,
    the_action_installs_a_package,
    a_cancelled_workflow_reaches_the_script,
    the_template_runs_the_command_under_the_lock,
    the_template_passes_every_option_and_runs_nothing_hostile,
    the_template_installs_a_package,
    the_examples_of_the_page_run,
]
for check in CHECKS:
    check()
    print(f"  ok    {check.__name__.replace('_', ' ')}")
