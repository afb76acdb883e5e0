//! The recipes of dlock-fencing(7), run literally: each refuses a late writer.

use crate::packaging::documents::{Block, blocks_in};
use crate::support::dlock::{BINARY, Dlock};
use crate::support::redis::Redis;
use crate::support::running::{Exit, Running};
use crate::support::store::Store;
use crate::support::wait::until;
use crate::support::{SOON, process};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

/// The blocks of the page: three commands, the script that the last of them runs, and the command that moves a lock.
fn blocks() -> [String; 5] {
    let texts: Vec<String> = blocks_in("fencing.7.md", "sh").iter().map(Block::text).collect();
    texts.try_into().unwrap_or_else(|texts| panic!("the page has other recipes: {texts:#?}"))
}

/// A user who writes reports under the lock `report`, on a Redis for one test only.
struct Reader {
    redis: Redis,
    store: Store,
    recipe: String,
}

impl Reader {
    fn follows(recipe: &str) -> Self {
        let redis = Redis::start();
        let store = Store::on(&redis);
        std::fs::create_dir(store.place.path("bin")).unwrap();
        std::os::unix::fs::symlink(BINARY, store.place.path("bin/dlock")).unwrap();
        // The sum takes until the test ends it.
        store.place.script(
            "report.sh",
            "#!/bin/sh\necho \"$DLOCK_FENCING_TOKEN\" >began.$TOTAL\n\
             until [ -e go.$TOTAL ]; do sleep 0.05; done\necho $TOTAL\n",
        );
        Self { redis, store, recipe: recipe.to_owned() }
    }

    /// The recipe, with a report of this total.
    fn run(&self, total: u32, recipe: &str) -> Dlock {
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin", self.store.place.path("bin").display());
        let run = self.store.place.run().without_dlock().sh(recipe);
        run.env("PATH", path).env("DLOCK_BACKEND", self.store.url()).env("TOTAL", total.to_string())
    }

    /// The fencing token of a report.
    fn token(&self, total: u32) -> u64 {
        self.store.place.read(&format!("began.{total}")).trim().parse().expect("a fencing token")
    }

    fn go(&self, total: u32) {
        self.store.place.write(&format!("go.{total}"), "");
    }

    /// A run that has lost its lock without being stopped, and has not written yet: later runs have.
    fn late(&self) -> Running {
        // The guarantee is switched off.
        let recipe = self.recipe.replacen("dlock run ", "dlock run --on-lost warn ", 1);
        let mut late = self.run(1, &recipe).spawn();
        until(SOON, "the first report", || self.store.place.read("began.1").ends_with('\n'));
        self.redis.command(&["DEL", &self.store.space().key("report")]);
        late.await_stderr("the command goes on");
        late
    }

    /// The recipe from start to end.
    fn write(&self, total: u32) {
        self.go(total);
        assert_eq!(self.run(total, &self.recipe).output().outcome(), (Exit::Code(0), "", ""));
    }

    /// A late writer ends with this status and these last words, and leaves `written` (total and token)
    /// unchanged.
    #[track_caller]
    fn assert_refuses(&self, exit: i32, words: &str, written: impl Fn() -> (u32, u64)) {
        let mut late = self.late();
        self.write(2);
        assert_eq!(written(), (2, self.token(2)));
        self.go(1);
        let output = late.wait();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(exit), ""), "{}", output.stderr);
        assert_eq!(output.stderr.lines().skip(1).collect::<Vec<_>>().join("\n"), words);
        assert!(self.token(1) < self.token(2));
        assert_eq!(written(), (2, self.token(2)), "a late writer was not refused");
        self.write(3);
        assert_eq!(written(), (3, self.token(3)), "whoever comes next is not late");
        assert!(process::children(late.pid()).is_empty());
    }
}

/// An example of a user's server: it keeps what is PUT and the largest token of it, for each path.
struct FencedServer {
    port: u16,
    kept: Arc<Mutex<HashMap<String, (u64, String)>>>,
}

impl FencedServer {
    fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let kept = Arc::new(Mutex::new(HashMap::new()));
        let theirs = Arc::clone(&kept);
        // One connection after another. It ends with the test process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let _ = answer(stream, &mut theirs.lock().unwrap_or_else(PoisonError::into_inner));
            }
        });
        Self { port, kept }
    }

    fn kept(&self, path: &str) -> (u32, u64) {
        let kept = self.kept.lock().unwrap();
        let (token, body) = &kept[path];
        (body.parse().expect("a total"), *token)
    }
}

/// One request, compared and stored while no other is served.
fn answer(stream: TcpStream, kept: &mut HashMap<String, (u64, String)>) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let path =
        line.strip_prefix("PUT ").and_then(|line| line.split(' ').next()).unwrap_or_default().to_owned();
    let (mut token, mut length) = (None, 0);
    loop {
        line.clear();
        stream.read_line(&mut line)?;
        match line.trim_end().split_once(": ") {
            Some(("Fencing-Token", value)) => token = value.parse::<u64>().ok(),
            Some(("Content-Length", value)) => length = value.parse().unwrap_or(0),
            Some(_) => {}
            None => break,
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    let seen = kept.get(&path).map_or(0, |(token, _)| *token);
    let status = match token {
        None => "428 Precondition Required",
        Some(token) if token < seen => "412 Precondition Failed",
        Some(token) => {
            kept.insert(path, (token, String::from_utf8_lossy(&body).into_owned()));
            "204 No Content"
        }
    };
    write!(stream.get_mut(), "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
}

#[test]
fn an_update_with_a_fence_refuses_a_late_writer() {
    let [recipe, ..] = blocks();
    let reader = Reader::follows(&recipe);
    let database = |text: &str| {
        let output = Command::new("sqlite3").arg(reader.store.place.path("report.db")).arg(text).output();
        let output = output.expect("sqlite3 can be run: install the Debian package sqlite3");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    database("CREATE TABLE report (id INTEGER PRIMARY KEY, total INTEGER, fence INTEGER)");
    database("INSERT INTO report VALUES (1, 0, 0)");
    // An UPDATE without a matching row succeeds.
    reader.assert_refuses(0, "", || {
        let row = database("SELECT total, fence FROM report");
        let (total, fence) = row.trim().split_once('|').expect("a row");
        (total.parse().unwrap(), fence.parse().unwrap())
    });
}

#[test]
fn an_http_precondition_refuses_a_late_writer() {
    let [_, recipe, ..] = blocks();
    let server = FencedServer::start();
    let here = format!("http://127.0.0.1:{}", server.port);
    assert!(recipe.contains("https://reports.example.com/1"), "{recipe}");
    // No proxy from the environment of the tests.
    let recipe = format!("no_proxy='*' {}", recipe.replace("https://reports.example.com", &here));
    let reader = Reader::follows(&recipe);
    let words = "curl: (22) The requested URL returned error: 412";
    reader.assert_refuses(22, words, || server.kept("/1"));
}

#[test]
fn a_comparison_in_a_file_refuses_a_late_writer() {
    let [_, _, recipe, script, _] = blocks();
    let reader = Reader::follows(&recipe);
    reader.store.place.script("publish.sh", &format!("{script}\n"));
    reader.assert_refuses(1, "a later run was here", || {
        let text = reader.store.place.read("report.txt");
        let (token, total) = text.trim_end().split_once(' ').expect("a token and a total");
        (total.parse().unwrap(), token.parse().unwrap())
    });
}

#[test]
fn a_lock_that_moves_to_another_store_continues_with_larger_tokens() {
    let [.., recipe] = blocks();
    let reader = Reader::follows(&recipe);
    let place = &reader.store.place;
    place.script("use-new.sh", "#!/bin/sh\necho new >used\n");
    place.write(
        "config.toml",
        &format!(
            "backend = 'old'\n[backends.old]\nurl = '{}'\n[backends.new]\nurl = 'file://{}'\n",
            reader.store.url(),
            place.path("locks").display()
        ),
    );
    std::fs::create_dir_all(place.path("locks")).unwrap();
    let dlock = |arguments: &[&str]| {
        let run = place.bare().args(arguments).env("DLOCK_CONFIG", place.path("config.toml"));
        run.output()
    };
    let granted = |backend: &str| -> u64 {
        let run = dlock(&["run", "-b", backend, "report", "-c", "echo $DLOCK_FENCING_TOKEN"]);
        run.stdout.trim().parse().unwrap_or_else(|_| panic!("{run:?}"))
    };
    // No store begins with so large a token.
    let raised = dlock(&["doctor", "-b", "old", "--fencing-floor", "4503599627370496", "report"]);
    assert_eq!(raised.outcome(), (Exit::Code(0), "", ""));
    let before = granted("old");
    let moved = reader.run(0, &recipe).env("DLOCK_CONFIG", place.path("config.toml")).output();
    assert_eq!(moved.outcome(), (Exit::Code(0), "", ""));
    assert_eq!(place.read("used"), "new\n");
    // The command that has moved it had the token after that.
    let after = granted("new");
    assert!(after > before + 1, "{before}, then {after}");
}
