//! Authentication of dlock to sentinels and to their master, and theirs to dlock.

use crate::support::dlock::Dlock;
use crate::support::place::Place;
use crate::support::running::Exit;
use crate::support::sentinels::{Plan, Sentinels};

fn with_passwords() -> Sentinels {
    Sentinels::start_with(Plan {
        password: Some("of-the-servers".to_owned()),
        sentinel_password: Some("of-the-sentinels".to_owned()),
        ..Plan::default()
    })
}

/// The URL without a password in it.
fn url(group: &Sentinels) -> String {
    let url = group.url();
    let (scheme, rest) = url.split_once("://").expect("a URL");
    format!("{scheme}://{}", rest.rsplit_once('@').map_or(rest, |(_, hosts)| hosts))
}

fn run(place: &Place, url: &str) -> Dlock {
    place.run().backend(url).command(["true"])
}

#[test]
fn sentinels_and_servers_have_separate_passwords() {
    let group = with_passwords();
    let place = Place::new();
    let servers = place.write("servers", "of-the-servers\n").display().to_string();
    let sentinels = place.write("sentinels", "of-the-sentinels\n").display().to_string();
    let url = url(&group);
    let both = format!("{url}?password_file={servers}&sentinel_password_file={sentinels}");
    assert_eq!(run(&place, &both).output().outcome(), (Exit::Code(0), "", ""));

    let none = run(&place, &format!("{url}?password_file={servers}")).output();
    assert_eq!(none.exit, Exit::Code(77), "{}", none.stderr);
    assert!(none.stderr.contains(": sentinel 127.0.0.1:"), "{}", none.stderr);
    assert!(
        none.stderr.contains("a password is needed: set password_file= or REDISCLI_AUTH"),
        "{}",
        none.stderr
    );

    // The password of the servers is not sent to the sentinels.
    let wrong = format!("{url}?password_file={servers}&sentinel_password_file={servers}");
    let wrong = run(&place, &wrong).output();
    assert_eq!(wrong.exit, Exit::Code(77), "{}", wrong.stderr);
    assert!(
        wrong.stderr.contains(
            "; sentinels have a password of their own, sentinel_password_file=; the command did not run\n"
        ),
        "{}",
        wrong.stderr
    );
    assert!(!wrong.stderr.contains("of-the-s"), "{}", wrong.stderr);

    let no_master = run(&place, &format!("{url}?sentinel_password_file={sentinels}")).output();
    assert_eq!(no_master.exit, Exit::Code(77), "{}", no_master.stderr);
    assert!(no_master.stderr.contains(": master 127.0.0.1:"), "{}", no_master.stderr);

    let missing = format!("{url}?password_file={servers}&sentinel_password_file=/nowhere");
    let missing = run(&place, &missing).output();
    assert_eq!(missing.exit, Exit::Code(78), "{}", missing.stderr);
    assert!(missing.stderr.contains("password file /nowhere: no such file"), "{}", missing.stderr);

    let config = place.write(
        "config.toml",
        &format!(
            "backend = \"p\"\n[backends.p]\nurl = \"{url}\"\npassword_file = \"{servers}\"\n\
             sentinel_password_file = \"{sentinels}\"\n"
        ),
    );
    let config = config.display().to_string();
    let output = place.run().no_backend().args(["--config", &config]).command(["true"]).output();
    assert_eq!(output.outcome(), (Exit::Code(0), "", ""));
}

#[test]
fn sentinels_and_servers_are_contacted_through_tls_and_verified() {
    let group = Sentinels::start_with(Plan { tls: true, ..Plan::default() });
    let place = Place::new();
    assert!(group.url().starts_with("rediss-sentinel://"), "{}", group.url());
    assert_eq!(run(&place, &group.url()).output().outcome(), (Exit::Code(0), "", ""));

    let (url, _) =
        group.url().split_once('?').map(|(url, query)| (url.to_owned(), query.to_owned())).unwrap();
    let unknown = run(&place, &url).output();
    assert_eq!(unknown.exit, Exit::Code(69), "{}", unknown.stderr);
    assert!(unknown.stderr.contains("signed by an unknown authority"), "{}", unknown.stderr);

    let plain = run(&place, &url.replacen("rediss", "redis", 1)).output();
    assert_eq!(plain.exit, Exit::Code(78), "{}", plain.stderr);
    assert!(plain.stderr.contains(": the server uses TLS: use rediss-sentinel://"), "{}", plain.stderr);
}
