//! A healthy server.

use super::{Findings, doctor, without_numbers};
use crate::support::place::Place;
use crate::support::redis::{Options, Redis};
use crate::support::resp::Value;
use crate::support::running::Exit;
use crate::support::tls::Flaw;

const FINDINGS: &str = "\
ok       reachability    N:N in Nms
ok       authentication  user default, no password required; database N
ok       availability    one server: while it is down no lock can be taken and commands are stopped
ok       latency         pN Nms, pN Nms of N pings
ok       version         Redis N
ok       role            a master without replicas
ok       eviction        noeviction: no key is removed when memory is full
ok       persistence     append-only file, synced on every write: a crash loses no lock
ok       idle            idle connections stay open (timeout N)
ok       one server      two connections have reached the same server
ok       clock           the server's clock is Nms ahead of this host's
ok       notifications   RESPN: waiters are notified of their turn, holders of a lost lock
ok       rights          default has all rights needed on dlock:* and dlock#*
ok       lock            taken, renewed and given back in Nms
ok       race            N races of N connections for a free lock had one winner each
ok       processes       a cgroup can be made: a whole tree is killed in one step
";

/// Each question with its answer, as text and in the words of JSON.
const ANSWERS: [(&str, &str, &str, &str); 4] = [
    (
        "Is a grant atomic here?",
        "atomic_grant",
        "yes",
        "N races of N connections for a free lock had one winner each",
    ),
    (
        "Can a granted lock be lost, and by what?",
        "loss",
        "no",
        "only if its key is removed by hand (DEL, FLUSHALL) or the server's disk is lost",
    ),
    (
        "Does a session keep to one server?",
        "one_server",
        "yes",
        "two connections have reached the same server",
    ),
    (
        "Whose clock ends a lease, and how long does a crashed holder block others?",
        "lease_clock",
        "server",
        "in steps of Nms; the lock of a crashed holder is free at most one --ttl (Ns unless set)\n    \
         after its last renewal, plus Ns for each crashed waiter ahead",
    ),
];

fn healthy() -> Redis {
    Redis::start_with(Options { persistent: true, ..Options::default() })
}

#[test]
fn a_healthy_server_has_only_good_findings() {
    let (redis, place) = (healthy(), Place::new());
    let output = doctor(&place, &redis.url()).output();
    let answers =
        ANSWERS.map(|(question, _, answer, detail)| format!("{question}\n    {answer}: {detail}\n")).concat();
    let expected =
        format!("redis://N:N/N\n\n{FINDINGS}\n{answers}\nRecommended: --ttl Ns\nno problems, no warnings\n");
    assert_eq!(
        (output.exit, without_numbers(&output.stdout).as_str(), output.stderr.as_str()),
        (Exit::Code(0), expected.as_str(), "")
    );
}

#[test]
fn the_findings_as_json_have_the_same_words() {
    let (redis, place) = (healthy(), Place::new());
    let output = doctor(&place, &redis.url()).arg("--json").output();
    let findings: Vec<String> = FINDINGS
        .lines()
        .map(|line| {
            let (check, found) = (line[9..25].trim_end(), &line[25..]);
            format!(
                "{{\"check\":\"{check}\",\"level\":\"ok\",\"found\":\"{found}\",\"consequence\":null,\"remedy\":null}}"
            )
        })
        .collect();
    let answers = ANSWERS.map(|(_, question, answer, detail)| {
        let detail = detail.replace("\n    ", " ");
        format!("{{\"question\":\"{question}\",\"answer\":\"{answer}\",\"detail\":\"{detail}\"}}")
    });
    let expected = format!(
        "{{\"version\":N,\"backend\":\"redis://N:N/N\",\"findings\":[{}],\"answers\":[{}],\"problems\":N,\"warnings\":N,\
         \"recommended_ttl_ms\":N}}\n",
        findings.join(","),
        answers.join(",")
    );
    // The placeholder for the line about processes ends the line, so the text comes from the object itself.
    let found = Findings::read(&output);
    let processes = found.only("processes", "ok");
    let stdout = output.stdout.replace(processes, "a cgroup can be made: a whole tree is killed in one step");
    assert_eq!((output.exit, without_numbers(&stdout)), (Exit::Code(0), expected));
}

/// Everything that a lock needs was tried, and no trace of it remains.
#[test]
fn the_scratch_lock_is_removed() {
    let (redis, place) = (healthy(), Place::new());
    Findings::of(doctor(&place, &redis.url()));
    assert_eq!(redis.command(&["KEYS", "*"]), Value::List(Vec::new()));
    // And nothing changes for other clients.
    let run = place.run().backend(redis.url()).command(["true"]).output();
    assert_eq!(run.outcome(), (Exit::Code(0), "", ""));
    let keys = || {
        let mut keys = redis.command(&["KEYS", "*"]).texts();
        keys.sort();
        keys
    };
    let before = keys();
    Findings::of(doctor(&place, &redis.url()));
    assert_eq!(keys(), before);
}

/// Scratch keys are created only once all rights that a lock needs have been tried.
#[test]
fn nothing_is_created_that_cannot_be_removed() {
    let redis = Redis::start_with_args(&["--rename-command", "DEL", ""]);
    let found = Findings::of(doctor(&Place::new(), &redis.url()));
    assert_eq!(found.only("rights", "problem"), "the server does not know DEL");
    assert_eq!(redis.command(&["KEYS", "*"]), Value::List(Vec::new()));
}

#[test]
fn the_validity_of_a_server_certificate_is_reported() {
    let redis = Redis::start_with(Options { tls: Some(Flaw::None), persistent: true, ..Options::default() });
    let place = Place::new();
    let findings = Findings::of(doctor(&place, &redis.url()));
    assert!(findings.only("tls", "ok").starts_with("the server's certificate is valid for another "));
    assert_eq!(findings.at("ok").len(), findings.all().len(), "{findings:?}");
    let url = format!("rediss://127.0.0.1:{}/0?insecure=true", redis.port());
    let output = doctor(&place, &url).output();
    assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""));
    assert!(output.stdout.contains("warning  tls             the server's certificate is not checked"));
}

#[test]
fn a_world_readable_key_file_is_reported() {
    use std::os::unix::fs::PermissionsExt;
    let redis = Redis::start_with(Options { tls: Some(Flaw::None), ..Options::default() });
    let (place, files) = (Place::new(), redis.certificates());
    let (ca, cert, key) = (files.ca.display(), files.client.display(), files.client_key.display());
    let url = format!("rediss://127.0.0.1:{}/0?ca_file={ca}&cert_file={cert}&key_file={key}", redis.port());
    for (mode, expected) in [(0o600, 0), (0o640, 0), (0o444, 1)] {
        std::fs::set_permissions(&files.client_key, std::fs::Permissions::from_mode(mode)).unwrap();
        let findings = Findings::of(doctor(&place, &url));
        assert_eq!(findings.check("key file").len(), expected, "{mode:o}");
        if expected == 1 {
            assert!(findings.only("key file", "warning").contains("(mode 0444)"));
        }
    }
}

/// As containers mount it.
#[test]
fn a_world_readable_password_file_is_reported() {
    use std::os::unix::fs::PermissionsExt;
    let redis = Redis::start_with_args(&["--requirepass", "s3cret"]);
    let place = Place::new();
    let file = place.write("password", "s3cret\n");
    let url = format!("redis://127.0.0.1:{}/0?password_file={}", redis.port(), file.display());
    for (mode, expected) in [(0o600, 0), (0o640, 0), (0o444, 1)] {
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        let findings = Findings::of(doctor(&place, &url));
        assert_eq!(findings.check("password file").len(), expected, "{mode:o}");
        if expected == 1 {
            assert!(findings.only("password file", "warning").contains("(mode 0444)"));
        }
        assert_eq!(findings.only("authentication", "ok"), "user default, with a password; database 0");
    }
}
