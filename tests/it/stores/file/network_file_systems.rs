//! F38: a directory on a network file system. Such file systems are not available here; the kernel's
//! description of one can be simulated for a single program.

use crate::support::place::Place;
use crate::support::running::Exit;
use std::path::PathBuf;
use std::process::Command;

/// The result of `statfs(2)` is taken from the environment.
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/vfs.h>
static int lie(int result, long *type) {
    const char *magic = getenv("FS_MAGIC");
    if (result == 0 && magic) *type = strtol(magic, NULL, 0);
    return result;
}
int statfs(const char *path, struct statfs *buf) {
    int (*real)(const char *, struct statfs *) = dlsym(RTLD_NEXT, "statfs");
    return lie(real(path, buf), (long *)&buf->f_type);
}
int statfs64(const char *path, struct statfs64 *buf) {
    int (*real)(const char *, struct statfs64 *) = dlsym(RTLD_NEXT, "statfs64");
    return lie(real(path, buf), (long *)&buf->f_type);
}
"#;

/// The library to be preloaded; `FS_MAGIC` determines the simulated file system.
pub fn library(place: &Place) -> PathBuf {
    let source = place.write("shim.c", SHIM);
    let library = place.path("shim.so");
    let built =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).arg("-ldl").output();
    let built = built.expect("a C compiler: apt-get install gcc");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    library
}

/// F38
#[test]
fn a_network_file_system_is_reported_once_and_used() {
    let place = Place::new();
    let library = library(&place);
    let on = |magic: &str| {
        place.run().env("LD_PRELOAD", &library).env("FS_MAGIC", magic).sh("unset LD_PRELOAD; echo ran")
    };
    let directory = place.locks();
    for (magic, kind) in
        [("0x6969", "NFS"), ("0xFF534D42", "SMB (cifs)"), ("0x65735546", "FUSE"), ("0x01021997", "9P")]
    {
        let warning = format!(
            "dlock: {} is on {kind}: the lock is only as good as the locks of that file system, and hosts may not see \
             each other's\n",
            directory.display()
        );
        assert_eq!(on(magic).output().outcome(), (Exit::Code(0), "ran\n", warning.as_str()));
        assert_eq!(on(magic).arg("-q").output().outcome(), (Exit::Code(0), "ran\n", ""));
    }
    // ext2 to ext4, and tmpfs.
    for magic in ["0xEF53", "0x01021994"] {
        assert_eq!(on(magic).output().outcome(), (Exit::Code(0), "ran\n", ""));
    }
}
