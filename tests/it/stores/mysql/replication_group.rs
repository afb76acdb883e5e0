//! F37: members of a group of MySQL's Group Replication.

use crate::support::doctor::assert_found;
use crate::support::mariadb::{DATABASE, MariaDb, Mode, ReplicationGroup};
use crate::support::place::Place;
use crate::support::running::{Exit, Output, Running};
use std::time::Instant;

/// Both recipes that have a session or a row of dlock's own.
const RECIPES: [&str; 2] = ["", "?recipe=get_lock"];
/// The status of `flock` when another process has the file.
const OVERLAP: i32 = 99;

fn url_of(member: &MariaDb, user: &str) -> String {
    format!("mysql://{user}@127.0.0.1:{}/{DATABASE}", member.port())
}

fn doctor(url: &str) -> Output {
    Place::new().bare().args(["doctor", "-b", url, "--json"]).output()
}

#[test]
fn a_group_with_several_primaries_is_refused_without_confirmation() {
    let group = ReplicationGroup::start(Mode::MultiPrimary, 1);
    group.member(0).create_user("me", "", "ALL ON locks.*");
    for user in ["root", "me"] {
        for recipe in RECIPES {
            let url = format!("{}{recipe}", url_of(group.member(0), user));
            let why = "the server belongs to a replication group with several primaries (group_replication_single_primary_mode=OFF), \
                       which can lose locks: use another server, or, if all clients write to one node, single_writer=yes";
            let refused = Place::new().run().backend(&url).sh("echo ran").output();
            let message = format!("dlock: x on {url}: {why}; the command did not run\n");
            assert_eq!(refused.outcome(), (Exit::Code(78), "", message.as_str()));
            let examined = doctor(&url);
            assert_eq!(examined.exit, Exit::Code(1), "{}", examined.stdout);
            assert_found(&examined, "problem", "version", why);

            let confirmed = format!("{url}{}single_writer=yes", if recipe.is_empty() { '?' } else { '&' });
            let output = Place::new().run().backend(&confirmed).sh("echo ran").output();
            assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ran\n"), "{}", output.stderr);
            assert!(output.stderr.contains("is for efficiency only"), "{}", output.stderr);
            let found = "it belongs to a replication group with several primaries (single_writer=yes)";
            assert_found(&doctor(&confirmed), "warning", "primary", found);
        }
    }
}

/// A command that ends with [`OVERLAP`] unless it is the only one of its name.
fn alone(place: &Place, name: &str, text: &str) -> [String; 6] {
    ["flock", "-n", "-E", &OVERLAP.to_string(), &place.arg(name), text].map(str::to_owned)
}

/// A holder on one member, and a run on another member that begins as soon as it may.
fn pair(place: &Place, name: &str, [holder, next]: [&str; 2]) -> (Running, Running) {
    let (ready, ran) = (
        place.script("hold", "#!/bin/sh\necho ready\nexec sleep 600\n"),
        place.script("next", "#!/bin/sh\necho ran\n"),
    );
    let holds = alone(place, name, ready.to_str().expect("UTF-8"));
    let mut holder = place.run().backend(holder).name(name).args(["--ttl", "8s"]).command(holds).spawn();
    holder.await_ready();
    let begins = alone(place, name, ran.to_str().expect("UTF-8"));
    let next = place.run().backend(next).name(name).args(["--retry", "1m", "--wait", "1m"]).command(begins);
    (holder, next.spawn())
}

/// Also for users that may write to a server that is read-only.
#[test]
fn only_the_primary_of_a_group_has_locks() {
    let group = ReplicationGroup::start(Mode::SinglePrimary, 2);
    group.member(0).create_user("me", "", "ALL ON locks.*");
    for user in ["root", "me"] {
        for recipe in RECIPES {
            let [primary, secondary] =
                [0, 1].map(|number| format!("{}{recipe}", url_of(group.member(number), user)));
            let output = Place::new().run().backend(&primary).sh("echo ran").output();
            assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""));
            assert_found(&doctor(&primary), "ok", "primary", "is the only one that does");
            let refused = Place::new().run().backend(&secondary).sh("echo ran").output();
            let why = "the server is read-only: name the primary, not a replica";
            let message = format!("dlock: x on {secondary}: {why}; the command did not run, see --retry\n");
            assert_eq!(refused.outcome(), (Exit::Code(69), "", message.as_str()));
            assert_found(&doctor(&secondary), "problem", "primary", why);
        }
    }
}

/// Another member becomes the primary, and then that one again.
#[test]
fn a_demoted_primary_of_a_group_has_no_second_holder() {
    let group = ReplicationGroup::start(Mode::SinglePrimary, 2);
    for [from, to] in [[0, 1], [1, 0]] {
        let place = Place::new();
        let mut pairs: Vec<_> = RECIPES
            .iter()
            .enumerate()
            .map(|(number, recipe)| {
                let [from, to] =
                    [from, to].map(|member| format!("{}{recipe}", url_of(group.member(member), "root")));
                pair(&place, &format!("held{number}"), [&from, &to])
            })
            .collect();
        group.promote(to);
        let promoted = Instant::now();
        for (holder, next) in &mut pairs {
            let output = holder.wait();
            assert_eq!(output.exit, Exit::Code(76), "{}", output.stderr);
            assert!(output.stderr.contains("the server is read-only"), "{}", output.stderr);
            let stopped = promoted.elapsed();
            let output = next.wait();
            assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ran\n"), "{}", output.stderr);
            println!("stopped after {stopped:?}, the next one ended after {:?}", promoted.elapsed());
        }
    }
}

/// It waits for the others with each commit, and answers what only reads.
#[test]
fn a_primary_that_has_lost_the_majority_keeps_no_holder() {
    let group = ReplicationGroup::start(Mode::SinglePrimary, 2);
    let mut runs: Vec<_> = RECIPES
        .iter()
        .enumerate()
        .map(|(number, recipe)| {
            let url = format!("{}{recipe}", url_of(group.member(0), "root"));
            let run = Place::new().run().backend(url).name(format!("held{number}")).args(["--ttl", "8s"]);
            let mut run = run.sh("echo ready; exec sleep 600").spawn();
            run.await_ready();
            run
        })
        .collect();
    group.member(1).daemon().stop();
    for run in &mut runs {
        let output = run.wait();
        assert_eq!(output.exit, Exit::Code(76), "{}", output.stderr);
        assert!(output.stderr.contains("could not be renewed in time"), "{}", output.stderr);
    }
    group.member(1).daemon().resume();
}
