//! A dlock that is killed during a write. The kernel copies a long text page by page and checks for a fatal signal in
//! between, so that a file can end up half new and half old (`generic_perform_write` in Linux' mm/filemap.c).

use super::{assert_one_at_a_time, assert_run, end, hold, wait};
use crate::support::place::Place;
use crate::support::running::{Exit, Running};
use nix::sys::signal::Signal;
use std::path::PathBuf;
use std::process::Command;

/// Kills its process in the middle of a write into the sidecar that is longer than a page: after the first one, where
/// the kernel might.
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
static int is_sidecar(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path);
    return length > 6 && memcmp(path + length - 6, ".dlock", 6) == 0;
}
ssize_t pwrite64(int fd, const void *text, size_t count, off64_t at) {
    ssize_t (*real)(int, const void *, size_t, off64_t) = dlsym(RTLD_NEXT, "pwrite64");
    size_t page = 4096 - at % 4096;
    if (count > page && is_sidecar(fd)) {
        real(fd, text, page, at);
        kill(getpid(), SIGKILL);
    }
    return real(fd, text, count, at);
}
"#;

fn shim(place: &Place) -> PathBuf {
    let source = place.write("shim.c", SHIM);
    let library = place.path("shim.so");
    let mut command = Command::new("cc");
    command.args(["-shared", "-fPIC", "-o"]).args([&library, &source]).arg("-ldl");
    let output = command.output().expect("a C compiler: apt-get install gcc");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    library
}

/// F38, F41: the queue is longer than a page, and its first waiter dies while it records that it holds the lock.
#[test]
fn a_dlock_killed_during_a_write_leaves_a_readable_sidecar() {
    let place = Place::new();
    let library = shim(&place);
    let holder = hold(place.run());
    let mut victim = wait(&place, place.run().env("LD_PRELOAD", &library), 1);
    let mut waiters: Vec<Running> = (2..30).map(|position| wait(&place, place.run(), position)).collect();
    end(holder);
    assert_eq!(victim.wait().exit, Exit::by(Signal::SIGKILL), "{}", victim.stderr());
    for waiter in &mut waiters {
        let output = waiter.wait();
        assert_eq!(output.exit, Exit::Code(0), "{}", output.stderr);
    }
    assert_one_at_a_time(&place, waiters.len());
    assert_run(place.run(), 0, "");
}
