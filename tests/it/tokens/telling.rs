//! Where the token goes, and what happens when it cannot go there.

use super::dlock;
use super::on_redis::{acquire, assert_free, printed, token, with};
use crate::refusal::left_behind;
use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::fake::Fake;
use crate::support::place::Place;
use crate::support::running::{Exit, Output};
use crate::support::store::Store;
use crate::support::wait::until;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

/// Asserts that acquire refuses this (64) with a line that says `why`, contacts nobody, and leaves nothing new.
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
    let line = format!("dlock: x: cannot write the token to {why}; the lock was given back\n");
    assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(70), line.as_str()));
    assert_free(store);
}

#[test]
fn a_token_that_nobody_takes_is_given_back() {
    let store = Store::redis();
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = acquire(&store, "60s").stdout(full).output();
    assert_given_back(&store, &output, "standard output: no space left on device");
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = acquire(&store, "60s").arg("--json").stdout(full).output();
    assert_given_back(&store, &output, "standard output: no space left on device");

    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = acquire(&store, "60s").stdout(writer).output();
    assert_given_back(&store, &output, "standard output: broken pipe");

    let (reader, writer) = std::io::pipe().unwrap();
    let filled = nix::fcntl::fcntl(&writer, nix::fcntl::FcntlArg::F_GETPIPE_SZ).unwrap();
    std::io::Write::write_all(&mut &writer, &vec![b'x'; usize::try_from(filled).unwrap()]).unwrap();
    let output = acquire(&store, "60s").stdout(writer).output();
    assert_given_back(&store, &output, "standard output: nobody reads it");
    drop(reader);
}

#[test]
fn a_closed_standard_output_is_said_before_the_lock_is_taken() {
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
fn the_file_is_for_its_owner_alone_whatever_the_umask() {
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

        // An older one was open to others, and is somebody's who reads it still.
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
fn a_token_file_that_cannot_be_written_is_said_before_the_lock_is_taken() {
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
        ("home", "it is there, and no regular file"),
        ("fifo", "it is there, and no regular file"),
        ("token/", "this is no name of a file"),
        ("home/..", "this is no name of a file"),
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
    let line = "--token-file: cannot write '/dev/null': it is there, and no regular file";
    assert_refused(&place, |run| run.args(["--token-file", "/dev/null"]), line);
    assert_eq!(place.read("target"), "precious");
    assert!(!place.path("nowhere").exists());
}

/// Somebody else's file, where everybody may write: he could read what is written into it.
#[test]
fn another_users_file_is_not_replaced() {
    let place = Place::new();
    let theirs = place.write("token", "");
    fs::set_permissions(place.path("."), Permissions::from_mode(0o777)).unwrap();
    let as_other =
        |run: Dlock| run.wrapped_by(["setpriv", "--reuid=64321", "--regid=64321", "--clear-groups"]);
    let line = format!("--token-file: cannot write '{}': it is there, and another user's", theirs.display());
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
fn a_full_disk_is_said_before_the_lock_is_taken_or_gives_it_back() {
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
        "cannot write the token to '{}': no space left on device; the lock was given back\n",
        store.place.arg("disk/token")
    );
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(70), ""));
    assert!(output.stderr.ends_with(&end), "{}", output.stderr);
    assert_free(&store);
}

#[test]
fn with_a_file_standard_output_has_no_token() {
    let store = Store::redis();
    let file = store.place.arg("token");
    let output = acquire(&store, "60s").args(["--json", "--token-file", &file]).output();
    let object: serde_json::Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!((output.exit, &object["token"]), (Exit::Code(0), &serde_json::Value::Null));
    let token = store.place.read("token");
    assert!(!output.stdout.contains(token.trim_end()) && output.stderr.is_empty());
    // Whoever gets nothing leaves the file of the one before as it is.
    let refused = acquire(&store, "60s").args(["--token-file", &file]).output();
    assert_eq!(refused.exit, Exit::Code(75));
    assert_eq!(store.place.read("token"), token);
    assert_eq!(left_behind(&store.place), [store.place.path("token")]);
}

/// A server on which nothing can be given back: the lease ends by itself.
#[test]
fn what_cannot_be_given_back_is_said() {
    use crate::support::redis::Redis;
    let redis = Redis::start();
    let store = Store::on(&redis);
    let (reader, writer) = std::io::pipe().unwrap();
    let filled = nix::fcntl::fcntl(&writer, nix::fcntl::FcntlArg::F_GETPIPE_SZ).unwrap();
    std::io::Write::write_all(&mut &writer, &vec![b'x'; usize::try_from(filled).unwrap()]).unwrap();
    let run = acquire(&store, "60s").args(["--connect-timeout", "1s"]).stdout(writer);
    let mut run = run.spawn();
    until(SOON, "the grant", || store.is_held());
    redis.stop();
    let output = run.wait();
    redis.resume();
    assert_eq!(output.exit, Exit::Code(70));
    assert!(
        output
            .stderr
            .contains("nobody reads it; and the lock could not be given back, it ends with its lease: "),
        "{}",
        output.stderr
    );
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
