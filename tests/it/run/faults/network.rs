//! A network that drops packets: a network namespace with a Redis in it, and a packet filter.

use super::fixture::assert_one_loss;
use super::timing::nanoseconds;
use crate::support::dlock::Dlock;
use crate::support::place::Place;
use crate::support::resp::{self, Value};
use crate::support::running::{Exit, Running};
use crate::support::server::{self, server};
use crate::support::wait::{boot_ns, eventually, until};
use crate::support::{SOON, namespace, probe};
use std::io::{BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const TTL: Duration = Duration::from_secs(6);

/// A separate network with a server in it, which is reached from outside through a socket in the file system.
struct IsolatedNetwork {
    place: Place,
    socket: PathBuf,
    server: Child,
}

impl IsolatedNetwork {
    fn new() -> Self {
        let place = Place::new();
        let socket = place.path("redis.sock");
        let text = "ip link set lo up && nft 'add table inet f' && exec redis-server --bind 127.0.0.1 --port 6379 \
            --save '' --dir \"$0\" --unixsocket \"$1\"";
        let mut command = server("unshare", "util-linux");
        command.args(["-n", "sh", "-c", text]).arg(place.path(".")).arg(&socket);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let mut server = server::start(command);
        until(SOON, "a server in its own network", || {
            assert!(
                server.try_wait().unwrap().is_none(),
                "it takes root, and the packages iproute2, nftables, redis-server"
            );
            UnixStream::connect(&socket).is_ok()
        });
        Self { place, socket, server }
    }

    fn command(&self, words: &[&str]) -> Value {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        stream.write_all(&resp::encode(words)).unwrap();
        resp::read_value(&mut BufReader::new(stream)).unwrap()
    }

    fn run(&self, ttl: Duration) -> Dlock {
        let ttl = format!("{}s", ttl.as_secs());
        let run = self.place.run().backend("redis://127.0.0.1/0").args(["--ttl", &ttl]);
        run.wrapped_by(namespace::prefix(&namespace::of(self.server.id())))
    }

    fn filter(&self, rules: &str) {
        namespace::sh(&namespace::of(self.server.id()), &format!("nft '{rules}'"));
    }

    /// Drops every packet between dlock and the server, without a reset.
    fn drop_packets(&self, which: &str) {
        self.filter(&format!(
            "add chain inet f i {{ type filter hook input priority 0; }}; add rule inet f i tcp {which} 6379 drop"
        ));
    }

    /// Lets packets pass again; TCP retransmits them.
    fn heal(&self) {
        self.filter("flush table inet f");
    }

    fn with_inherited_lock(&self, ttl: Duration, args: &[&str]) -> Running {
        let mut command = vec![probe::path().to_str().unwrap().to_owned()];
        let inherited_lock = self.place.inherited_lock();
        command.extend(
            ["--inherited-lock", inherited_lock.path()].iter().chain(args).map(|arg| (*arg).to_owned()),
        );
        let mut run = self.run(ttl).command(command).spawn();
        run.await_ready();
        run
    }

    /// When the lease ends at the store, on the clock that counts through suspend. The server rounds down to milliseconds.
    fn lease_end(&self) -> u64 {
        let end = self.command(&["PEXPIRETIME", "dlock:x"]).int();
        assert!(end > 0, "the lease has ended");
        let (wall, boot) = both_clocks();
        u64::try_from(i128::from(end) * 1_000_000 - i128::from(wall) + i128::from(boot)).unwrap()
    }
}

impl Drop for IsolatedNetwork {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// The wall clock and the clock that counts through suspend, in ns, read at the same time: this process did not lose its
/// processor between the two.
fn both_clocks() -> (u64, u64) {
    loop {
        let before = boot_ns();
        let wall = nanoseconds(SystemTime::now().duration_since(UNIX_EPOCH).unwrap());
        if boot_ns() - before < 100_000 {
            return (wall, before);
        }
    }
}

/// F12
fn lost_packets_end_the_command_in_time(which: &str) {
    let island = IsolatedNetwork::new();
    let inherited_lock = island.place.inherited_lock();
    let mut run = island.with_inherited_lock(TTL, &["tick", &island.place.arg("tick")]);
    let first = island.lease_end();
    until(SOON, "a renewal", || island.lease_end() > first + 500_000_000);
    island.drop_packets(which);
    // Not read before: on a busy machine, the lease may have been renewed again by then.
    let end = island.lease_end();
    inherited_lock.await_free();
    let last: u64 = island.place.read("tick").trim().parse().unwrap();
    let deadline = end - nanoseconds(TTL / 100 + Duration::from_millis(2));
    // The store's time of the renewal is later than its sending, and rounded to a millisecond.
    assert!(last <= deadline + 1_000_000, "{:?} too late", Duration::from_nanos(last - deadline));
    let output = run.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(76), "ready\n"), "{}", output.stderr);
    assert_one_loss(&output);
    until(SOON, "the end of the lease", || island.command(&["EXISTS", "dlock:x"]) == Value::Int(0));
    // The packets that TCP retransmits arrive now.
    island.heal();
    assert_eq!(island.command(&["EXISTS", "dlock:x"]), Value::Int(0));
    assert_eq!(island.run(TTL).sh("exit 3").output().outcome(), (Exit::Code(3), "", ""));
}

/// F12
#[test]
fn dropped_requests_end_the_command_in_time() {
    lost_packets_end_the_command_in_time("dport");
}

/// F12, F14: the lease known to dlock ends before that at the store, if any.
#[test]
fn packets_lost_both_ways_end_the_command_in_time() {
    lost_packets_end_the_command_in_time("sport 6379 drop; add rule inet f i tcp dport");
}

/// F13
#[test]
fn packets_lost_for_a_third_of_a_lease_do_not_disturb_the_command() {
    let island = IsolatedNetwork::new();
    let go = island.place.arg("go");
    // Of this, dlock has more than five seconds to renew the lock, from the first renewal that is due on.
    let ttl = 2 * TTL;
    let mut run = island.with_inherited_lock(ttl, &["signals", &format!("leave:{go}=5")]);
    let first = island.lease_end();
    let end =
        eventually(SOON, "a renewal", || Some(island.lease_end()).filter(|end| *end > first + 500_000_000));
    island.drop_packets("dport");
    std::thread::sleep(ttl / 3 + Duration::from_millis(300));
    island.heal();
    until(SOON, "another renewal", || island.lease_end() > end + 500_000_000);
    island.place.write("go", "");
    let output = run.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(5), "ready\n"), "{}", output.stderr);
    // The filter may have taken a while to be changed.
    assert_eq!(output.after_renewal_warnings(), [""; 0], "{}", output.stderr);
}

/// F56: a NAT drops the state of a waiter's idle connection, so that notifications do not arrive.
#[test]
fn a_waiter_notices_within_seconds_that_its_idle_connection_is_gone() {
    let island = IsolatedNetwork::new();
    let ttl = 10 * TTL;
    let go = island.place.arg("go");
    let mut holder = island.with_inherited_lock(ttl, &["signals", &format!("leave:{go}=0")]);
    let mut waiter = island.run(ttl).args(["-v", "--wait", "forever"]).command(["echo", "ran"]).spawn();
    waiter.await_stderr("waiting at position 1");
    let port = eventually(SOON, "a waiter that listens", || {
        let clients = island.command(&["CLIENT", "LIST"]).text();
        let client = clients.lines().find(|client| client.contains(" sub=1 "))?;
        let address = client.split(' ').find_map(|word| word.strip_prefix("addr="))?;
        Some(address.rsplit(':').next()?.to_owned())
    });
    island.filter(&format!(
        "add chain inet f i {{ type filter hook input priority 0; }}; \
         add rule inet f i tcp dport {port} drop; add rule inet f i tcp sport {port} drop"
    ));
    island.place.write("go", "");
    assert_eq!(holder.wait().exit, Exit::Code(0));
    // The holder's lease would have lasted for a minute.
    let output = waiter.wait_within(ttl / 2);
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ran\n"), "{}", output.stderr);
    println!("noticed after {:?} in all", output.elapsed);
}
