//! Five masters, of which a majority decides.

use super::servers::{FamilyRig, Servers};
use crate::support::masters::Masters;
use crate::support::pool::Lent;
use crate::support::resp::Value;

struct Nodes {
    masters: Lent<Masters>,
}

impl Servers for Nodes {
    fn url(&self) -> String {
        self.masters.url()
    }

    fn url_with_secret(&self, secret: &str) -> String {
        format!("redlock://somebody:{secret}@127.0.0.1:1,127.0.0.1:2,127.0.0.1:3/2?prefix=p")
    }

    fn at(&self, _key: &str, words: &[&str]) -> Vec<Value> {
        self.masters.command(words)
    }

    fn keys(&self) -> Vec<Vec<String>> {
        self.masters.command(&["KEYS", "*"]).iter().map(Value::texts).collect()
    }

    fn quorum(&self) -> usize {
        self.masters.quorum()
    }

    fn has_slots(&self) -> bool {
        false
    }

    fn restart(&mut self) {
        for node in 0..self.masters.count() {
            self.masters.restart_empty(node);
        }
    }

    fn wipe(&mut self) {
        self.masters.wipe();
    }
}

type RedlockRig = FamilyRig<Nodes>;

impl RedlockRig {
    fn new() -> Self {
        Self::on(Nodes { masters: Masters::lent() })
    }
}

super::every_check!(RedlockRig::new);
