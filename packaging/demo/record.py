#!/usr/bin/env python3
"""Records the picture of README.md from the real output of dlock: two hosts, one lock, a crash, the hand-over.

    packaging/demo/record.py DLOCK SVG

Needs root (each host is a UTS namespace) and redis-server. A test compares the committed picture with a new one.
"""

import html
import os
import pathlib
import pty
import select
import signal
import subprocess
import sys
import tempfile
import time

COLUMNS = 100
DEADLINE = 60
JOB = "#!/bin/sh\nif [ -e go ]; then echo 'backup complete'; else echo 'copying files'; exec sleep 1000; fi\n"


class Host:
    """A shell on a terminal, in a UTS namespace with its own host name."""

    def __init__(self, name, directory, path):
        self.name, self.lines, self.shown = name, [], ""
        environment = {
            "PATH": f"{path}:/usr/local/bin:/usr/bin:/bin",
            "HOME": directory,
            "PS1": f"{name}$ ",
            "TERM": "dumb",
            "DLOCK_BACKEND": os.environ["DLOCK_BACKEND"],
        }
        shell = f"hostname {name}; stty -echo cols 200; cd {directory}; exec /bin/sh -i"
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            namespaces = ["--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
            os.execvpe("unshare", ["unshare", *namespaces, "/bin/sh", "-c", shell], environment)
        self.expect(f"{name}$ ")

    def expect(self, text):
        """Reads until the text has been printed since the last command."""
        end = time.monotonic() + DEADLINE
        while text not in self.shown:
            if time.monotonic() > end or not select.select([self.terminal], [], [], end - time.monotonic())[0]:
                sys.exit(f"{self.name} has not printed {text!r}, only {self.shown!r}")
            self.shown += os.read(self.terminal, 4096).decode().replace("\r", "")

    def type(self, command, text):
        """Types a command, and waits for a text of its output."""
        self.lines.append(f"{self.name}$ {command}")
        self.shown = ""
        os.write(self.terminal, f"{command}\n".encode())
        self.expect(text)

    def take(self):
        """Adds the output since the last command to the picture."""
        printed = self.shown.replace(f"{self.name}$ ", "")
        self.lines += [line for line in printed.split("\n") if line.strip()]
        self.shown = ""

    def crash(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def record(directory, path):
    """Plays the scene, and returns its steps: the host, its lines, and when they appear."""
    web_1, web_2 = (Host(name, directory, path) for name in ("web-1", "web-2"))
    steps = []

    def show(host, at):
        for line in host.lines:
            steps.append((host.name, line, at))
        host.lines = []

    web_1.type("dlock run --ttl 10s nightly -- ./backup.sh", "copying files\n")
    web_1.take()
    show(web_1, 1)
    # So that the ages in the messages are not those of a script.
    time.sleep(2)
    web_2.type("dlock run --ttl 10s nightly -- ./backup.sh", "see --wait\nweb-2$ ")
    web_2.take()
    show(web_2, 3)
    web_2.type("dlock run --ttl 10s --wait 1h nightly -- ./backup.sh", "waiting")
    web_2.take()
    show(web_2, 5)
    web_1.crash()
    web_1.lines.append("(the host loses power)")
    show(web_1, 7)
    (pathlib.Path(directory) / "go").touch()
    web_2.expect("backup complete\nweb-2$ ")
    web_2.take()
    show(web_2, 9)
    web_2.crash()
    return steps


def wrapped(line):
    """A line as a terminal of this width shows it."""
    return [line[at:at + COLUMNS] for at in range(0, len(line), COLUMNS)] or [""]


def picture(steps):
    """Draws one terminal for each host, one above the other; lines appear one after the other."""
    row, pad, end = 18, 14, max(at for _, _, at in steps) + 4
    parts, top = [], 0
    for host in ("web-1", "web-2"):
        lines = [(part, at) for name, line, at in steps if name == host for part in wrapped(line)]
        height = 30 + row * len(lines) + pad
        parts.append(f'<g transform="translate(0 {top})"><rect class="t" width="100%" height="{height}" rx="6"/>')
        parts.append(f'<circle cx="16" cy="14" r="5"/><text class="n" x="32" y="18">{host}</text>')
        for number, (line, at) in enumerate(lines):
            kind = "p" if line.startswith(f"{host}$") else "x" if line.startswith("(") else "o"
            parts.append(f'<text class="{kind} s{at}" x="{pad}" y="{46 + row * number}">{html.escape(line)}</text>')
        parts.append("</g>")
        top += height + 10
    # Each step appears after its seconds; without animations, all of them are visible.
    appear = "".join(
        f"@keyframes k{at}{{0%,{100 * at // end}%{{opacity:0}}{100 * at // end + 1}%,100%{{opacity:1}}}}"
        f".s{at}{{animation:k{at} {end}s infinite}}"
        for at in sorted({at for _, _, at in steps})
    )
    width = 2 * pad + round(COLUMNS * 7.85)
    style = (
        ".t{fill:#1b1f24}circle{fill:#57606a}text{font:13px ui-monospace,Menlo,Consolas,monospace;white-space:pre}"
        ".n{fill:#8c959f}.p{fill:#7ee787}.o{fill:#e6edf3}.x{fill:#ff7b72}" + f"@media (prefers-reduced-motion:no-preference){{{appear}}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top - 10}" role="img">\n'
        f"<title>Two hosts share one lock</title>\n<style>{style}</style>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def main():
    dlock, target = sys.argv[1:]
    with tempfile.TemporaryDirectory() as directory:
        (pathlib.Path(directory) / "backup.sh").write_text(JOB)
        (pathlib.Path(directory) / "backup.sh").chmod(0o755)
        path = f"{directory}/bin"
        os.mkdir(path)
        os.symlink(os.path.abspath(dlock), f"{path}/dlock")
        socket = f"{directory}/redis"
        server = subprocess.Popen(
            ["redis-server", "--port", "0", "--unixsocket", socket, "--save", "", "--dir", directory],
            stdout=subprocess.DEVNULL,
        )
        try:
            os.environ["DLOCK_BACKEND"] = f"redis+unix://{socket}"
            end = time.monotonic() + DEADLINE
            while not os.path.exists(socket):
                if time.monotonic() > end:
                    sys.exit("redis-server has not started")
                time.sleep(0.01)
            pathlib.Path(target).write_text(picture(record(directory, path)))
        finally:
            server.kill()
            server.wait()


main()
