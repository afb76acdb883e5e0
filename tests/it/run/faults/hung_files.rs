//! F38: a file system that does not respond, such as NFS without its server, or a frozen one.

use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::place::Place;
use crate::support::running::Exit;
use crate::support::wait::until;
use nix::sys::signal::Signal;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// No sidecar is opened while the file `$HANG` exists.
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int open64(const char *path, int flags, ...) {
    int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, "open64");
    va_list more;
    va_start(more, flags);
    int mode = va_arg(more, int);
    va_end(more);
    const char *hang = getenv("HANG");
    size_t length = strlen(path);
    if (hang && length > 6 && !strcmp(path + length - 6, ".dlock") && access(hang, F_OK) == 0) {
        char stuck[4096];
        snprintf(stuck, sizeof stuck, "%s.stuck", hang);
        close(real(stuck, O_WRONLY | O_CREAT, 0600));
        while (access(hang, F_OK) == 0) usleep(10000);
    }
    return real(path, flags, mode);
}
"#;

struct Hanging {
    place: Place,
    library: PathBuf,
}

impl Hanging {
    fn new() -> Self {
        let place = Place::new();
        let source = place.write("shim.c", SHIM);
        let library = place.path("shim.so");
        let mut command = Command::new("cc");
        let built = command.args(["-shared", "-fPIC", "-o"]).args([&library, &source]).arg("-ldl").output();
        let built = built.expect("a C compiler: apt-get install gcc");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        Self { place, library }
    }

    fn run(&self) -> Dlock {
        self.place.run().env("LD_PRELOAD", &self.library).env("HANG", self.place.path("hang"))
    }

    fn hang(&self) {
        self.place.write("hang", "");
    }

    fn await_hung(&self) {
        until(SOON, "a call that hangs", || self.place.path("hang.stuck").exists());
    }
}

#[test]
fn a_hung_file_system_blocks_neither_signals_nor_the_runtime_limit() {
    let hanging = Hanging::new();
    let inherited_lock = hanging.place.inherited_lock();
    let run = hanging.run().args(["--ttl", "1s", "--max-runtime", "8s", "--connect-timeout", "500ms"]);
    let mut run = run.probe(["--inherited-lock", inherited_lock.path(), "signals"]).spawn();
    run.await_ready();
    hanging.hang();
    hanging.await_hung();
    run.signal(Signal::SIGUSR1);
    run.await_stdout("USR1");
    // dlock ends although a call still hangs.
    let output = run.wait();
    assert_eq!(output.exit, Exit::Code(124), "{}", output.stderr);
    assert!(inherited_lock.is_free());
    fs::remove_file(hanging.place.path("hang")).unwrap();
    assert!(hanging.place.lock_is_free("x"));
    assert_eq!(hanging.place.run().sh("echo ran").output().outcome(), (Exit::Code(0), "ran\n", ""));
}

#[test]
fn a_hung_file_system_is_unavailable_and_does_not_block_the_end_of_a_wait() {
    let hanging = Hanging::new();
    hanging.hang();
    let output = hanging.run().args(["--connect-timeout", "300ms"]).sh("echo ran").output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(69), ""), "{}", output.stderr);
    assert!(output.stderr.contains("no answer within 300 ms"), "{}", output.stderr);
    fs::remove_file(hanging.place.path("hang.stuck")).unwrap();
    let mut waiter = hanging.run().args(["--wait", "forever"]).sh("echo ran").spawn();
    hanging.await_hung();
    waiter.signal(Signal::SIGTERM);
    assert_eq!(waiter.wait().exit, Exit::by(Signal::SIGTERM));
    // Operations requested when it ended are not carried out.
    fs::remove_file(hanging.place.path("hang")).unwrap();
    assert_eq!(hanging.place.run().sh("echo ran").output().outcome(), (Exit::Code(0), "ran\n", ""));
}
