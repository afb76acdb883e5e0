//! Invalid command lines.

use super::breaking;
use crate::support::place::Place;
use crate::support::running::Exit;
use crate::support::store::Store;

#[test]
fn invalid_values_are_refused_before_the_store_is_queried() {
    let place = Place::new();
    let long = "x".repeat(1001);
    let wide = "é".repeat(501);
    let cases: &[(&[&str], &str)] = &[
        (&["--fencing-token", "0"], "expected a positive integer"),
        (&["--fencing-token", "-1"], "expected a positive integer"),
        (&["--fencing-token", "9007199254740992"], "expected a positive integer"),
        (&["--fencing-token", "x"], "expected a positive integer"),
        (&["--fencing-token", ""], "a value is required"),
        (&["--wait", "5M"], "5M"),
        (&["--wait", "-1"], "-1"),
        (&["--reason", &long], "--reason: 1001 bytes are too many, at most 1000"),
        (&["--reason", &wide], "--reason: 1002 bytes are too many, at most 1000"),
        (&["--ttl", "5s"], "--ttl"),
        (&["y"], "break takes one NAME"),
    ];
    for (arguments, said) in cases {
        // There is no server: any request would result in 69.
        let run = place.bare().args(["break", "-b", "redis://127.0.0.1:1/0"]).args(*arguments).name("x");
        let output = run.output();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(64), ""), "{arguments:?}: {output:?}");
        assert!(output.stderr.contains(said), "{arguments:?}: {}", output.stderr);
        assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
    }
    let output = place.bare().args(["break", "-b", "redis://127.0.0.1:1/0"]).output();
    assert_eq!(output.exit, Exit::Code(64));
    assert_eq!(output.stderr, "dlock: break: which lock? dlock break NAME\n");
}

#[test]
fn a_pattern_is_rejected_and_an_escaped_one_is_a_name() {
    for store in Store::each() {
        for pattern in ["ha*", "h?", "[a]x", "x["] {
            let output = super::breaking_of(&store, pattern).output();
            let line = format!(
                "dlock: NAME '{pattern}': break takes an exact name, not a pattern (\\* is a literal *)\n"
            );
            assert_eq!(output.outcome(), (Exit::Code(64), "", line.as_str()));
        }
        let output = super::breaking_of(&store, r"ha\*").output();
        let line = format!("ha* on {} is free\n", store.url());
        assert_eq!(output.outcome(), (Exit::Code(0), line.as_str(), ""));
        // The limit of 200 bytes applies to the name, not to its escaped form.
        let output = super::breaking_of(&store, &r"\*".repeat(120)).output();
        let line = format!("{} on {} is free\n", "*".repeat(120), store.url());
        assert_eq!(output.outcome(), (Exit::Code(0), line.as_str(), ""));
    }
}

#[test]
fn a_reason_of_a_thousand_bytes_is_short_enough() {
    for store in Store::each() {
        let output = breaking(&store).args(["--reason", &"x".repeat(1000)]).output();
        assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""));
    }
}

#[test]
fn an_invalid_backend_is_a_configuration_error() {
    let place = Place::new();
    let output = place.bare().args(["break", "-b", "nosuch://x"]).name("x").output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(78), ""), "{}", output.stderr);
}
