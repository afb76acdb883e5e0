//! Two hosts with separate networks, host names and processes, and a Redis between them.

use super::LINE;
use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::namespace;
use crate::support::place::Place;
use crate::support::process;
use crate::support::resp::{self, Value};
use crate::support::running::Exit;
use crate::support::server::{self, server};
use crate::support::wait::{eventually, until};
use nix::sys::signal::Signal;
use std::io::{BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

/// The key of the lock.
pub const KEY: &str = "dlock:minutely";

/// Two hosts, and between them a Redis.
pub struct Network {
    pub place: Place,
    store: Child,
    hosts: Vec<Host>,
}

/// A host, which exists as long as the first process of its PID namespace.
struct Host {
    namespaces: Child,
    init: i32,
    /// The end of its cable at the store.
    cable: String,
}

impl Network {
    /// Starts all of it.
    pub fn new() -> Self {
        let place = Place::new();
        // The one address that both hosts know, and a socket for the test.
        let text = "ip link set lo up && ip addr add 10.77.0.1/32 dev lo && exec redis-server --port 6379 \
            --bind 10.77.0.1 --protected-mode no --save '' --dir \"$0\" --unixsocket \"$0/redis.sock\"";
        let mut command = server("unshare", "util-linux");
        command.args(["--net", "sh", "-c", text]).arg(place.path("."));
        let mut store = start(command);
        until(SOON, "a server in a network of its own", || {
            assert!(
                store.try_wait().unwrap().is_none(),
                "it takes root, and the packages util-linux, iproute2, redis-server"
            );
            UnixStream::connect(place.path("redis.sock")).is_ok()
        });
        let hosts = [1, 2].map(|number| Host::new(number, store.id())).into();
        Self { place, store, hosts }
    }

    /// `dlock run` on one of the hosts.
    pub fn run(&self, host: usize, options: &[&str], text: &str) -> Dlock {
        let run = self.place.run().backend("redis://10.77.0.1").name("minutely");
        let target = format!("--target={}", self.hosts[host].init);
        // A process that enters another mount namespace is at its root.
        let run = run.args(options).sh(text).after_shell(&format!("cd '{}'", self.place.arg(".")));
        run.wrapped_by(["nsenter", target.as_str(), "--net", "--uts", "--mount", "--pid"])
    }

    /// Runs the line of the crontab, which must succeed without a message.
    #[track_caller]
    pub fn fire(&self, host: usize, options: &[&str], text: &str) {
        let output = self.run(host, &[&LINE, options].concat(), text).output();
        assert_eq!(output.outcome(), (Exit::Code(0), "", ""));
    }

    /// One command to the Redis itself.
    pub fn command(&self, words: &[&str]) -> Value {
        let mut stream = UnixStream::connect(self.place.path("redis.sock")).unwrap();
        stream.write_all(&resp::encode(words)).unwrap();
        resp::read_value(&mut BufReader::new(stream)).unwrap()
    }

    /// Whether the lock is held.
    pub fn is_held(&self) -> bool {
        self.command(&["EXISTS", KEY]) == Value::Int(1)
    }

    /// Waits until the server has received this many more requests for locks or leases.
    #[track_caller]
    pub fn await_questions(&self, more: usize) {
        let asked = || {
            let text = self.command(&["INFO", "commandstats"]).text();
            // By their texts, and by their digests.
            let scripts = text.lines().filter_map(|line| line.strip_prefix("cmdstat_eval"));
            let calls = scripts
                .filter_map(|line| line.split_once(":calls=")?.1.split(',').next()?.parse::<usize>().ok());
            calls.sum::<usize>()
        };
        let before = asked();
        until(SOON, "renewals", || asked() >= before + more);
    }

    /// Kills every process on a host in one instant: the first of them ends the others.
    #[track_caller]
    pub fn kill(&self, host: usize) {
        let init = self.hosts[host].init;
        process::send(init, Signal::SIGKILL);
        until(SOON, "the death of a host", || !process::alive(init));
    }

    /// Pulls the plug of a host's network.
    pub fn unplug(&self, host: usize) {
        namespace::sh(
            &namespace::of(self.store.id()),
            &format!("ip link set {} down", self.hosts[host].cable),
        );
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for child in self.hosts.iter_mut().map(|host| &mut host.namespaces).chain([&mut self.store]) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Host {
    fn new(number: usize, store: u32) -> Self {
        let mut command = server("unshare", "util-linux");
        command.args(["--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
        let text = format!("hostname web-{number} && ip link set lo up && exec sleep 1000000");
        command.args(["sh", "-c", &text]);
        let namespaces = start(command);
        let pid = i32::try_from(namespaces.id()).unwrap();
        let init = eventually(SOON, "a host", || {
            process::children(pid).into_iter().find(|stat| stat.comm == "sleep" && stat.is_alive())
        });
        let (init, cable) = (init.pid, format!("to-{number}"));
        namespace::sh(
            &namespace::of(store),
            &format!(
                "ip link add {cable} type veth peer name eth0 netns {init} && \
                 ip addr add 10.77.{number}.1/24 dev {cable} && ip link set {cable} up"
            ),
        );
        namespace::sh(
            &namespace::of(init.unsigned_abs()),
            &format!(
                "ip addr add 10.77.{number}.2/24 dev eth0 && ip link set eth0 up && \
                 ip route add 10.77.0.1 via 10.77.{number}.1"
            ),
        );
        Self { namespaces, init, cable }
    }
}

fn start(mut command: Command) -> Child {
    // Some versions of unshare report a killed child.
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    server::start(command)
}
