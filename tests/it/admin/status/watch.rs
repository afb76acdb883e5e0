//! `--watch`: continuous output, until it is ended.

use super::{holding, parse, status};
use crate::support::SOON;
use crate::support::running::{Exit, Running};
use crate::support::store::Store;
use crate::support::wait::until;
use nix::sys::signal::Signal;
use std::io::{BufRead, BufReader};

mod on_terminal;
mod screen;

fn objects(run: &Running) -> Vec<serde_json::Value> {
    run.stdout().split_inclusive('\n').filter(|line| line.ends_with('\n')).map(parse).collect()
}

#[test]
fn with_json_each_line_is_an_object() {
    for store in Store::each() {
        let mut watch = status(&store).args(["--watch=100ms", "--json"]).spawn();
        let mut run = holding(store.run_with_ttl("30s"));
        until(SOON, "a lock that is held", || {
            objects(&watch).iter().any(|seen| seen["locks"][0]["holders"][0]["pid"] == run.pid())
        });
        drop(run.take_stdin());
        run.wait();
        until(SOON, "a lock that is free", || {
            objects(&watch).last().unwrap()["locks"] == serde_json::json!([])
        });
        watch.assert_running();
        watch.signal(Signal::SIGTERM);
        assert_eq!(watch.wait().exit, Exit::by(Signal::SIGTERM));
        assert_eq!(watch.stderr(), "");
    }
}

#[test]
fn without_a_terminal_tables_are_separated_by_empty_lines() {
    for store in Store::each() {
        let mut watch = status(&store).args(["--watch=100ms", "x"]).spawn();
        let free = format!("{}\nLOCK  STATE\nx     free\n", store.url());
        watch.await_stdout(&format!("{free}\n{free}\n{free}"));
        watch.signal(Signal::SIGINT);
        let output = watch.wait();
        assert_eq!((output.exit, output.stderr.as_str()), (Exit::by(Signal::SIGINT), ""));
        let tables: Vec<&str> = output.stdout.split("\n\n").map(str::trim_end).collect();
        assert!(tables.iter().all(|table| *table == free.trim_end()), "{tables:?}");
    }
}

/// `dlock status --watch | head -1`
#[test]
fn the_watch_ends_when_its_output_is_closed() {
    for store in Store::each() {
        for args in [&["--watch=100ms"][..], &["--watch=100ms", "--json"]] {
            let (reader, writer) = std::io::pipe().unwrap();
            let mut watch = status(&store).args(args).stdout(writer).spawn();
            let mut line = String::new();
            let mut reader = BufReader::new(reader);
            reader.read_line(&mut line).unwrap();
            assert!(line.contains(store.url()), "{line}");
            drop(reader);
            assert_eq!(watch.wait().outcome(), (Exit::Code(0), "", ""));
        }
    }
}

mod on_redis {
    use super::objects;
    use super::screen::watching;
    use crate::admin::status::{holding, status};
    use crate::support::SOON;
    use crate::support::redis::Redis;
    use crate::support::store::Store;
    use crate::support::wait::until;

    #[test]
    fn the_watch_survives_a_restart_of_the_store() {
        let mut redis = Redis::start();
        let store = Store::on(&redis);
        let mut watch = status(&store).args(["--watch=100ms", "--json", "-q"]).spawn();
        let mut terminal = watching(&store, &["--watch=100ms"], 24, 200);
        watch.await_stdout("\n");
        terminal.expect(&redis.url());
        redis.kill();
        watch.await_stderr("connection refused");
        terminal.expect("connection refused");
        // It is reported once, however long it lasts.
        let before = objects(&watch).len();
        until(SOON, "more looks in vain", || terminal.screen().matches("connection refused").count() > 3);
        assert_eq!(
            (watch.stderr().matches("connection refused").count(), objects(&watch).len()),
            (1, before),
            "{}",
            watch.stderr()
        );
        redis.restart();
        let run = holding(store.run_with_ttl("30s"));
        until(SOON, "the lock that is held now", || {
            objects(&watch).last().unwrap()["locks"][0]["holders"][0]["pid"] == run.pid()
        });
        terminal.expect("exclusive");
        watch.assert_running();
    }

    /// One update takes a handful of requests, and leaves no trace at the server.
    #[test]
    fn watching_costs_the_store_little() {
        let redis = Redis::start();
        let store = Store::on(&redis);
        let _run = holding(store.run_with_ttl("1h"));
        let watch = status(&store).args(["--watch=100ms", "--json"]).spawn();
        until(SOON, "some looks", || objects(&watch).len() > 3);
        let asked = || {
            let info = redis.command(&["INFO", "stats"]).text();
            let line = info.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
            line.unwrap().trim().parse::<usize>().unwrap()
        };
        let (looks, before) = (objects(&watch).len(), asked());
        until(SOON, "more looks", || objects(&watch).len() >= looks + 10);
        // In this order: the looks that are counted are at least those that were asked for.
        let after = asked();
        let looks = objects(&watch).len() - looks;
        // Commands that scripts call count too: those for one lock are ten or so.
        assert!(after - before <= (looks + 2) * 16, "{} commands for {looks} looks", after - before);
        let clients = redis.command(&["CLIENT", "LIST"]).text().lines().count();
        assert!(clients <= 5, "{clients}");
    }
}
