//! One Redis that accepts only TLS, requires a certificate of its clients, and gives them exactly the rights listed in
//! README.md.

use super::rig::with;
use super::servers::{FamilyRig, Servers};
use crate::support::redis::{Options, Redis};
use crate::support::resp::Value;
use crate::support::tls::{Certificates, Flaw};
use tempfile::TempDir;

const PASSWORD: &str = "s3cret";

struct Guarded {
    redis: Redis,
    directory: TempDir,
}

impl Guarded {
    /// Where the user of this name can log in.
    fn url_of(&self, user: &str) -> String {
        let files = self.redis.certificates();
        let url = with(&self.redis.url(), &format!("cert_file={}", files.client.display()));
        let url = with(&url, &format!("key_file={}", files.client_key.display()));
        let password = self.directory.path().join("password");
        with(&url, &format!("username={user}&password_file={}", password.display()))
    }
}

impl Servers for Guarded {
    fn url(&self) -> String {
        self.url_of("dlock")
    }

    fn exact_url(&self) -> String {
        with(&self.url_of("exact"), "prefix=")
    }

    fn url_with_secret(&self, secret: &str) -> String {
        format!("rediss://somebody:{secret}@127.0.0.1:1/2?prefix=p")
    }

    fn at(&self, _: &str, words: &[&str]) -> Vec<Value> {
        vec![self.redis.command(words)]
    }

    fn keys(&self) -> Vec<Vec<String>> {
        vec![self.redis.command(&["KEYS", "*"]).texts()]
    }

    fn restart(&mut self) {
        self.redis.restart();
    }

    fn wipe(&mut self) {
        self.redis.command(&["FLUSHALL"]);
    }
}

/// The arguments that create a user with these rules.
fn user(name: &str, rules: &[&str]) -> Vec<String> {
    let password = format!(">{PASSWORD}");
    let words = ["--user", name, "on", &password].into_iter().chain(rules.iter().copied());
    words.map(str::to_owned).collect()
}

type TlsRig = FamilyRig<Guarded>;

impl TlsRig {
    fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("it-tls-").tempdir().unwrap();
        std::fs::write(directory.path().join("password"), format!("{PASSWORD}\n")).unwrap();
        let rules = crate::stores::redis::minimal_rights::rules().concat();
        // Without a prefix of the names, a key may be anything.
        let mut exact: Vec<&str> = rules.iter().copied().filter(|rule| !rule.starts_with('~')).collect();
        exact.push("~*");
        let mut args = ["--tls-auth-clients", "yes"].map(str::to_owned).to_vec();
        args.extend(user("dlock", &rules));
        args.extend(user("exact", &exact));
        let certificates = Some(Certificates::make(directory.path(), Flaw::None));
        let redis = Redis::start_with(Options { args, certificates, ..Options::default() });
        Self::on(Guarded { redis, directory })
    }
}

super::list::every_check!(TlsRig::new; Request);
