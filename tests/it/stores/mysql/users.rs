//! Users, their passwords and their rights.

use crate::support::dlock::Dlock;
use crate::support::mariadb::MariaDb;
use crate::support::place::Place;
use crate::support::running::Exit;

#[test]
fn the_user_of_the_policy_has_the_rights_of_a_run() {
    let server = MariaDb::lent();
    let url = server.url().replace("root@", "o'neill@");
    let policy = Place::new().bare().args(["doctor", "-q", "--policy", "-b", &url]).output();
    assert_eq!(policy.exit, Exit::Code(0), "{}", policy.stderr);
    server.sql(&policy.stdout.replace("<password>", "secret"));
    let output = Dlock::run().backend(&url).env("MYSQL_PWD", "secret").sh("echo ran").output();
    assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""));
    let doctor = Place::new().bare().args(["doctor", "-b", &url]).env("MYSQL_PWD", "secret").output();
    assert_eq!(doctor.exit, Exit::Code(0), "{}", doctor.stdout);
    assert_eq!(server.sql("SELECT name FROM dlock_locks"), "x\n", "the scratch lock is left behind");
}

#[test]
fn a_password_comes_from_the_usual_places() {
    let server = MariaDb::lent();
    server.create_user("me", "s3 cret", "ALL ON locks.*");
    let place = Place::new();
    let file = place.write("password", "s3 cret\n");
    place.write(".my.cnf", "[mysqld]\nuser=x\n[client]\nuser = me\npassword = \"s3 cret\" # mine\n");
    let (anyone, me) = (server.url().replace("root@", ""), server.url().replace("root", "me"));
    let with_file = format!("{me}?password_file={}", file.display());
    for (url, variable, home) in [
        (&me, Some("s3 cret"), None),
        (&with_file, Some("wrong"), None),
        (&anyone, None, Some(place.path("."))),
        (&me, None, Some(place.path("."))),
    ] {
        let mut run = Dlock::run().backend(url);
        run = variable.into_iter().fold(run, |run, value| run.env("MYSQL_PWD", value));
        run = home.into_iter().fold(run, |run, home| run.env("HOME", home));
        assert_eq!(run.sh("echo ran").output().outcome(), (Exit::Code(0), "ran\n", ""), "{url}");
    }
}
