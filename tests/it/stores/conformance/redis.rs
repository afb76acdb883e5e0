//! One Redis: this system's version, and the oldest with RESP3.

use super::servers::{FamilyRig, Servers};
use crate::support::redis::Redis;
use crate::support::resp::Value;
use crate::support::versions::Version;

struct One(Redis);

impl Servers for One {
    fn url(&self) -> String {
        self.0.url()
    }

    fn url_with_secret(&self, secret: &str) -> String {
        format!("redis://somebody:{secret}@127.0.0.1:1/2?prefix=p")
    }

    fn at(&self, _: &str, words: &[&str]) -> Vec<Value> {
        vec![self.0.command(words)]
    }

    fn keys(&self) -> Vec<Vec<String>> {
        vec![self.0.command(&["KEYS", "*"]).texts()]
    }

    fn restart(&mut self) {
        self.0.restart();
    }

    fn wipe(&mut self) {
        self.0.command(&["FLUSHALL"]);
    }
}

type RedisRig = FamilyRig<One>;

impl RedisRig {
    fn new() -> Self {
        Self::on(One(Redis::start()))
    }

    fn of_version_6_0() -> Self {
        Self::on(One(Version::Redis6_0.start()))
    }
}

super::list::every_check!(RedisRig::new);
super::checks! { RedisRig::new; supersede { an_older_waiter_is_notified_of_a_newer_one } }

mod of_version_6_0 {
    use super::RedisRig;

    crate::stores::conformance::list::every_check!(RedisRig::of_version_6_0; Request Data);
}
