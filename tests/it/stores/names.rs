//! Names that a store cannot keep: they are refused before a server is asked. What all stores refuse is in `cli::names`.

use crate::support::dlock::Dlock;
use crate::support::running::Exit;

#[test]
fn a_name_that_a_store_cannot_keep_is_refused() {
    let reserved = |what: &str| format!("its {what} would begin with dlock#, which dlock keeps for itself");
    let long = format!("mysql://me@127.0.0.1:1/db?prefix={}", "p".repeat(500));
    for (url, name, why) in [
        ("etcd://127.0.0.1:1?prefix=", "dlock#last", reserved("key")),
        ("memcached://127.0.0.1:1?prefix=", "dlock#probe", reserved("key")),
        ("zookeeper://127.0.0.1:1", "dlock#beside", reserved("node")),
        (&long, "thirteen-char", "with the prefix it is longer than 512 bytes".to_owned()),
    ] {
        let output = Dlock::run().backend(url).name(name).sh("echo ran").output();
        let message = format!("dlock: NAME '{name}' on {url}: {why}\n");
        assert_eq!(output.outcome(), (Exit::Code(64), "", message.as_str()));
    }
}
