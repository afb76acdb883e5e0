//! The output of the token, and failures to write it.

use super::dlock;
use super::on_redis::{acquire, assert_free, printed, token, with};
use crate::acquire::refusal::left_behind;
use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::fake::Fake;
use crate::support::place::Place;
use crate::support::running::{Exit, Output};
use crate::support::store::Store;
use crate::support::wait::until;
use nix::poll::{PollFd, PollFlags, poll};
use std::fs::{self, File, Permissions};
use std::io::PipeWriter;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

/// Asserts that acquire refuses this (64) with a line that contains `why`, contacts no store, and leaves no new file.
#[track_caller]
fn assert_refused(place: &Place, set: impl FnOnce(Dlock) -> Dlock, why: &str) {
    let server = Fake::silent();
    let url = format!("redis://127.0.0.1:{}", server.port());
    let before = left_behind(place);
    let output = set(place.bare().args(["acquire", "--ttl", "60s", "-b", &url])).arg("x").output();
    assert_eq!(output.outcome(), (Exit::Code(64), "", format!("dlock: {why}\n").as_str()));
    assert_eq!(server.connections(), 0, "contacted in spite of: {}", output.stderr);
    assert_eq!(left_behind(place), before);
}

#[track_caller]
fn assert_given_back(store: &Store, output: &Output, why: &str) {
    let line = format!("dlock: x: cannot write the token to {why}; the lock was released\n");
    assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(70), line.as_str()));
    assert_free(store);
}

/// Waits until nobody can read from a pipe: a process that another test has forked has its other end open until its
/// exec.
fn await_no_reader(writer: &PipeWriter) {
    until(SOON, "a pipe without a reader", || {
        let mut ends = [PollFd::new(writer.as_fd(), PollFlags::POLLOUT)];
        poll(&mut ends, 0_u16).unwrap();
        ends[0].revents().is_some_and(|events| events.contains(PollFlags::POLLERR))
    });
}

#[test]
fn a_token_that_cannot_be_delivered_is_released() {
    let store = Store::redis();
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = acquire(&store, "60s").stdout(full).output();
    assert_given_back(&store, &output, "standard output: no space left on device");
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = acquire(&store, "60s").arg("--json").stdout(full).output();
    assert_given_back(&store, &output, "standard output: no space left on device");

    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    await_no_reader(&writer);
    let output = acquire(&store, "60s").stdout(writer).output();
    assert_given_back(&store, &output, "standard output: broken pipe");

    let (reader, writer) = std::io::pipe().unwrap();
    let filled = nix::fcntl::fcntl(&writer, nix::fcntl::FcntlArg::F_GETPIPE_SZ).unwrap();
    std::io::Write::write_all(&mut &writer, &vec![b'x'; usize::try_from(filled).unwrap()]).unwrap();
    let output = acquire(&store, "60s").stdout(writer).output();
    assert_given_back(&store, &output, "standard output: it has no reader");
    drop(reader);
}

#[test]
fn a_closed_standard_output_is_reported_before_the_lock_is_acquired() {
    let why = "standard output is closed: the token would be lost, see --token-file";
    assert_refused(&Place::new(), |run| run.after_shell("exec >&-"), why);
    let store = Store::redis();
    let file = store.place.arg("token");
    let output = acquire(&store, "60s").args(["--token-file", &file]).after_shell("exec >&-").output();
    assert_eq!(output.exit, Exit::Code(0), "{}", output.stderr);
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn the_token_file_is_private_whatever_the_umask() {
    for umask in ["0", "022", "0777"] {
        let store = Store::redis();
        let file = store.place.path("token");
        let to = |run: Dlock| run.arg("--token-file").arg(&file).after_shell(&format!("umask {umask}"));
        let output = to(acquire(&store, "60s")).output();
        assert_eq!(output.outcome(), (Exit::Code(0), "", ""));
        assert_eq!(mode(&file), 0o600, "umask {umask}");
        let token = fs::read_to_string(&file).unwrap();
        assert_eq!((token.len(), token.lines().count()), (33, 1));
        assert_eq!(with(&store, token.trim_end(), "release", &[]).exit, Exit::Code(0));

        // The mode of an older one was open to others, and a process may still have it open.
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o666)).unwrap();
        let old = File::open(&file).unwrap();
        let output = to(acquire(&store, "60s")).output();
        assert_eq!(output.outcome(), (Exit::Code(0), "", ""));
        assert_eq!(mode(&file), 0o600, "umask {umask}");
        assert_eq!(std::io::read_to_string(old).unwrap(), "old");
        assert_eq!(left_behind(&store.place), std::slice::from_ref(&file));
    }
}

#[test]
fn an_unwritable_token_file_is_reported_before_the_lock_is_acquired() {
    let place = Place::new();
    let target = place.write("target", "precious");
    symlink(&target, place.path("link")).unwrap();
    symlink(place.path("nowhere"), place.path("dangling")).unwrap();
    nix::unistd::mkfifo(&place.path("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    fs::set_permissions(place.write("theirs", ""), Permissions::from_mode(0o666)).unwrap();
    let long = "n".repeat(300);
    for (path, why) in [
        ("link", "it is a symbolic link, which dlock does not follow"),
        ("dangling", "it is a symbolic link, which dlock does not follow"),
        ("home", "it exists and is not a regular file"),
        ("fifo", "it exists and is not a regular file"),
        ("token/", "this is not a file name"),
        ("home/..", "this is not a file name"),
        ("target/token", "not a directory"),
        (&long, "file name too long"),
    ] {
        let path = place.arg(path);
        let line = format!("--token-file: cannot write '{path}': {why}");
        assert_refused(&place, |run| run.args(["--token-file", &path]), &line);
    }
    let path = place.arg("no-such/token");
    let line = format!(
        "--token-file: cannot write '{path}': cannot write a file in {}: no such file or directory",
        place.arg("no-such")
    );
    assert_refused(&place, |run| run.args(["--token-file", &path]), &line);
    let line = "--token-file: cannot write '/dev/null': it exists and is not a regular file";
    assert_refused(&place, |run| run.args(["--token-file", "/dev/null"]), line);
    let line = "--token-file: cannot write 'redis://u:***@h/x': cannot write a file in redis://u:***@h: no such file or directory";
    assert_refused(&place, |run| run.args(["--token-file", "redis://u:secret@h/x"]), line);
    assert_eq!(place.read("target"), "precious");
    assert!(!place.path("nowhere").exists());
}

/// A file of another user in a world-writable directory: that user could read what is written into it.
#[test]
fn a_file_of_another_user_is_not_replaced() {
    let place = Place::new();
    let theirs = place.write("token", "");
    fs::set_permissions(place.path("."), Permissions::from_mode(0o777)).unwrap();
    let as_other =
        |run: Dlock| run.wrapped_by(["setpriv", "--reuid=64321", "--regid=64321", "--clear-groups"]);
    let line =
        format!("--token-file: cannot write '{}': it exists and belongs to another user", theirs.display());
    assert_refused(&place, |run| as_other(run.arg("--token-file").arg(&theirs)), &line);

    fs::set_permissions(place.path("."), Permissions::from_mode(0o755)).unwrap();
    let path = place.arg("new");
    let line = format!(
        "--token-file: cannot write '{path}': cannot write a file in {}: permission denied",
        Path::new(&path).parent().unwrap().display()
    );
    assert_refused(&place, |run| as_other(run.args(["--token-file", &path])), &line);
}

/// Runs dlock where the directory `disk` is a file system with room for one page.
fn on_small_disk(place: &Place, run: Dlock, then: &str) -> Dlock {
    let disk = place.arg("disk");
    let _ = fs::create_dir(&disk);
    let text = format!("mount -t tmpfs -o size=4k none '{disk}' || exit 99\n{then}");
    run.args(["--token-file", &place.arg("disk/token")]).after_shell(&text).wrapped_by(["unshare", "-m"])
}

#[test]
fn a_full_disk_is_reported_before_the_lock_is_acquired_or_it_is_released() {
    let place = Place::new();
    let fill = format!("head -c 4096 /dev/zero >'{}'", place.arg("disk/fill"));
    let line = format!(
        "--token-file: cannot write '{}': cannot write a file in {}: no space left on device",
        place.arg("disk/token"),
        place.arg("disk")
    );
    assert_refused(&place, |run| on_small_disk(&place, run, &fill), &line);

    let store = Store::redis();
    let token = token(&store, "60s");
    let run = acquire(&store, "60s").args(["-v", "--wait", "forever"]);
    let mut run = on_small_disk(&store.place, run, "").spawn();
    run.await_stderr("waiting");
    let disk = format!("/proc/{}/root{}", run.pid(), store.place.arg("disk"));
    fs::write(format!("{disk}/fill"), vec![b'x'; 4096]).unwrap();
    assert_eq!(with(&store, &token, "release", &[]).exit, Exit::Code(0));
    let output = run.wait();
    let end = format!(
        "cannot write the token to '{}': no space left on device; the lock was released\n",
        store.place.arg("disk/token")
    );
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(70), ""));
    assert!(output.stderr.ends_with(&end), "{}", output.stderr);
    assert_free(&store);
}

#[test]
fn with_a_token_file_nothing_is_printed_on_standard_output() {
    let store = Store::redis();
    let file = store.place.arg("token");
    let output = acquire(&store, "60s").args(["--json", "--token-file", &file]).output();
    let object: serde_json::Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!((output.exit, &object["token"]), (Exit::Code(0), &serde_json::Value::Null));
    let token = store.place.read("token");
    assert!(!output.stdout.contains(token.trim_end()) && output.stderr.is_empty());
    // A failed acquire leaves the file of the former lease unchanged.
    let refused = acquire(&store, "60s").args(["--token-file", &file]).output();
    assert_eq!(refused.exit, Exit::Code(75));
    assert_eq!(store.place.read("token"), token);
    assert_eq!(left_behind(&store.place), [store.place.path("token")]);
}

/// The lock of a lost token could not be released.
#[test]
fn a_token_that_still_owns_a_lock_is_not_overwritten() {
    let store = Store::redis();
    let path = store.place.arg("token");
    let to_file =
        |name: &str| dlock(&store, "acquire").args(["--ttl", "60s", "--token-file", &path]).name(name);
    let refused = |owned: &str| {
        format!(
            "dlock: --token-file: the token in '{path}' still owns {owned} on {}: release it first, or name another \
             file\n",
            store.url()
        )
    };
    assert_eq!(to_file("other lock").output().outcome(), (Exit::Code(0), "", ""));
    let token = store.place.read("token");
    for _ in 0..2 {
        let output = to_file("x").args(["--wait", "1h"]).output();
        assert_eq!(output.outcome(), (Exit::Code(64), "", refused("other lock").as_str()));
        assert_free(&store);
    }
    assert_eq!(store.place.read("token"), token);
    let release = dlock(&store, "release").args(["--token-file", &path]).name("other lock");
    assert_eq!(release.output().exit, Exit::Code(0));
    assert_eq!(to_file("x").output().outcome(), (Exit::Code(0), "", ""));
    assert_ne!(store.place.read("token"), token);

    // It was written while the other one waited.
    let token = store.place.read("token");
    store.place.write("token", "");
    let mut waiter = to_file("x").args(["-v", "--wait", "forever"]).spawn();
    waiter.await_stderr("waiting");
    assert_eq!(to_file("third").output().outcome(), (Exit::Code(0), "", ""));
    let third = store.place.read("token");
    assert_eq!(with(&store, token.trim_end(), "release", &[]).exit, Exit::Code(0));
    let output = waiter.wait();
    let line = refused("third").replace("file\n", "file; the lock was released\n");
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(64), ""));
    assert!(output.stderr.ends_with(&line), "{}", output.stderr);
    assert_free(&store);
    assert_eq!(store.place.read("token"), third);
}

/// A server that does not reply to the release: the lease expires.
#[test]
fn a_failed_release_is_reported() {
    use crate::support::proxy::Proxy;
    use crate::support::redis::Redis;
    let redis = Redis::start();
    let proxy = Proxy::to(redis.port());
    let store = Store::on(&redis).behind(proxy.port());
    // The server has the scripts afterwards, and each later acquisition gets as many replies as the second one: the last
    // confirms the record that the token was delivered.
    let mut replies = 0;
    for _ in 0..2 {
        let before = proxy.replies();
        let token = printed(&acquire(&store, "60s").output());
        replies = proxy.replies() - before;
        assert_eq!(with(&store, &token, "release", &[]).exit, Exit::Code(0));
    }
    let (reader, writer) = std::io::pipe().unwrap();
    let filled = nix::fcntl::fcntl(&writer, nix::fcntl::FcntlArg::F_GETPIPE_SZ).unwrap();
    std::io::Write::write_all(&mut &writer, &vec![b'x'; usize::try_from(filled).unwrap()]).unwrap();
    proxy.hold_reply_after(replies - 1);
    let output = acquire(&store, "60s").stdout(writer).output();
    assert_eq!(output.exit, Exit::Code(70), "{output:?}");
    let why = "it has no reader; and the lock could not be released, it expires with its lease: ";
    assert!(output.stderr.contains(why), "{output:?}");
    drop(reader);
}

/// A token never shows where others can read it.
#[test]
fn the_token_is_printed_once_and_nowhere_else() {
    let store = Store::redis();
    let token = printed(&acquire(&store, "60s").output());
    for command in ["renew", "check", "release", "release"] {
        let output = dlock(&store, command).args(["-vv", "x"]).env("DLOCK_TOKEN", &token).output();
        assert!(!output.stderr.contains(&token) && !output.stdout.contains(&token), "{}", output.stderr);
    }
}
