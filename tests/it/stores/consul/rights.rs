//! A token with exactly the rights that `dlock doctor --policy` prints.

use crate::support::SOON;
use crate::support::consul::Consul;
use crate::support::dlock::Dlock;
use crate::support::doctor::{assert_found, doctor};
use crate::support::place::Place;
use crate::support::running::Exit;
use crate::support::wait::eventually;
use serde_json::{Value, json};

/// A server that denies everything without a token, and the token that may manage it.
pub fn strict() -> (Consul, String) {
    let settings = json!({"acl": {"enabled": true, "default_policy": "deny"}});
    let consul = Consul::start_with(&settings, None);
    let token = eventually(SOON, "the first token", || {
        let (status, reply) = consul.ask("PUT", "acl/bootstrap", b"");
        let token: Value = serde_json::from_str(&reply).ok().filter(|_| status == 200)?;
        Some(token["SecretID"].as_str()?.to_owned())
    });
    (consul, token)
}

/// A token with these rules.
pub fn token(consul: &Consul, management: &str, rules: &str) -> String {
    let ask = |path: &str, body: &Value| {
        let (status, reply) = consul.ask_as(management, "PUT", path, body.to_string().as_bytes());
        assert_eq!(status, 200, "{reply}");
        serde_json::from_str::<Value>(&reply).unwrap()
    };
    let policy = ask("acl/policy", &json!({"Name": format!("p{}", rules.len()), "Rules": rules}));
    let token = ask("acl/token", &json!({"Policies": [{"ID": policy["ID"]}]}));
    token["SecretID"].as_str().unwrap().to_owned()
}

/// The rules in what `dlock doctor --policy` prints.
pub fn rules() -> String {
    let output = Dlock::bare().args(["doctor", "-q", "--policy", "-b", "consul://"]).output();
    assert_eq!(output.exit, Exit::Code(0), "{}", output.stderr);
    let (_, rest) = output.stdout.split_once("<<'END'\n").unwrap_or_else(|| panic!("{}", output.stdout));
    rest.split_once("END\n").unwrap().0.to_owned()
}

#[test]
fn the_printed_rights_are_enough_and_without_one_of_them_it_is_named() {
    let (place, (consul, management)) = (Place::new(), strict());
    let url = |token: &str| format!("consul://:{token}@127.0.0.1:{}", consul.port());
    let enough = token(&consul, &management, &rules());
    let run = |token: &str| place.run().backend(url(token)).arg("-q").sh("echo ran").output();
    assert_eq!(run(&enough).outcome(), (Exit::Code(0), "ran\n", ""));
    let examined = doctor(&url(&enough));
    assert_eq!(examined.exit, Exit::Code(0), "{}", examined.stdout);
    let semaphore = format!("{}?recipe=semaphore", url(&enough));
    let slot = place.run().name("y").backend(&semaphore).args(["-q", "--slots", "2"]).sh("echo ran").output();
    assert_eq!(slot.outcome(), (Exit::Code(0), "ran\n", ""));
    let examined = doctor(&semaphore);
    assert_eq!(examined.exit, Exit::Code(0), "{}", examined.stdout);
    for command in [&["status"][..], &["status", "x"], &["status", "--history", "x"]] {
        let output = place.bare().args(["-q", "-b", &url(&enough)]).args(command).output();
        assert_eq!(output.exit, Exit::Code(0), "{output:?}");
    }
    let file = place.write("token", &format!("{enough}\n"));
    let from = |variable: &str, value: &str| {
        let run = place.run().backend(format!("consul://127.0.0.1:{}", consul.port())).arg("-q");
        run.env(variable, value).sh("echo ran").output()
    };
    for (variable, value) in
        [("CONSUL_HTTP_TOKEN", enough.as_str()), ("CONSUL_HTTP_TOKEN_FILE", file.to_str().unwrap())]
    {
        assert_eq!(from(variable, value).outcome(), (Exit::Code(0), "ran\n", ""), "{variable}");
    }
    for line in rules().lines().filter(|line| !line.starts_with("agent")) {
        let less = token(&consul, &management, &rules().replace(line, "# denied"));
        let output = run(&less);
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(77), ""), "{line}: {}", output.stderr);
        assert!(output.stderr.contains("denied"), "{line}: {}", output.stderr);
        assert!(!output.stderr.contains(&less), "{}", output.stderr);
        let examined = doctor(&url(&less));
        assert_eq!(examined.exit, Exit::Code(1), "{line}: {}", examined.stdout);
    }
    let reader = rules().replace("write", "read");
    let output = run(&token(&consul, &management, &reader));
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(77), ""), "{}", output.stderr);
    let unseen = rules().lines().filter(|line| !line.starts_with("agent")).collect::<Vec<_>>().join("\n");
    let examined = doctor(&url(&token(&consul, &management, &unseen)));
    assert_found(&examined, "warning", "agent", "the token may not read what the agent is");
    assert_eq!(examined.exit, Exit::Code(0), "{}", examined.stdout);
    let unknown = run("11111111-2222-3333-4444-555555555555");
    assert_eq!((unknown.exit, unknown.stdout.as_str()), (Exit::Code(77), ""), "{}", unknown.stderr);
}
