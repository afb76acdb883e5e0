//! Redlock over five servers on this host, compared with one server: the cost of the majority without contention.

use std::error::Error;
use std::process::Stdio;
use std::time::{Duration, Instant};

use dlock::backend::registry;
use dlock::backend::url::Url;
use dlock::backend::{Attempt, Backend, Ending, Intent};
use dlock::lock::{Claim, Identity, LockName, Mode, Token};

use crate::Bench;
use crate::report::{Section, Target};
use crate::servers::Redis;
use crate::stats::{Rng, Sample, ms};

const NODES: usize = 5;

struct Store {
    name: &'static str,
    url: String,
    backend: Box<dyn Backend>,
    acquired: Vec<Duration>,
    released: Vec<Duration>,
    runs: Vec<Duration>,
}

impl Store {
    fn open(name: &'static str, url: String) -> Result<Store, Box<dyn Error>> {
        let backend = registry::parse(&Url::parse(&url)?, &|_| None)?.open();
        Ok(Store { name, url, backend, acquired: Vec::new(), released: Vec::new(), runs: Vec::new() })
    }

    /// Acquires and releases the lock over open connections.
    async fn once(&mut self) -> Result<(Duration, Duration), Box<dyn Error>> {
        let claim = Claim {
            name: LockName::new("figures")?,
            token: Token::random(),
            mode: Mode::Exclusive,
            ttl: Duration::from_secs(30),
            min_hold: Duration::ZERO,
            identity: Identity::default(),
            outer: Vec::new(),
            requires_outer_hold: false,
            once_per: None,
        };
        self.backend.connect().await?;
        let start = Instant::now();
        let attempt = self.backend.try_acquire(&claim, Intent::TakeNow).await?;
        let acquired = start.elapsed();
        if !matches!(attempt, Attempt::Granted(_)) {
            return Err(format!("{}: {attempt:?}", self.name).into());
        }
        let start = Instant::now();
        self.backend.release(&claim, Duration::ZERO, Ending::default()).await?;
        Ok((acquired, start.elapsed()))
    }
}

/// Measures all stores once per round, in random order.
pub fn redlock(bench: &Bench) -> Result<Section, Box<dyn Error>> {
    bench.redis()?;
    let dirs = tempfile::tempdir()?;
    let start = |node: usize| {
        let dir = dirs.path().join(node.to_string());
        std::fs::create_dir(&dir)?;
        Redis::start(&dir)
    };
    let nodes = (0..NODES).map(start).collect::<Result<Vec<_>, _>>()?;
    let hosts: Vec<String> = nodes.iter().map(|node| node.url().replace("redis://", "")).collect();
    let mut stores = [
        Store::open("redis:", nodes[0].url())?,
        Store::open("redlock:", format!("redlock://{}", hosts.join(",")))?,
    ];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut rng = Rng::new();
    let mut order: Vec<usize> = (0..stores.len()).collect();
    let warm_up = 20;
    for round in 0..warm_up + bench.runs {
        rng.shuffle(&mut order);
        for &turn in &order {
            let store = &mut stores[turn];
            let (acquired, released) = runtime.block_on(store.once())?;
            let run = time_of_a_run(bench, &store.url)?;
            if round >= warm_up {
                store.acquired.push(acquired);
                store.released.push(released);
                store.runs.push(run);
            }
        }
    }
    let mut section = Section::new(
        format!(
            "redlock: {NODES} servers on this host compared with one, p50 of {} rounds, interleaved",
            bench.runs
        ),
        &[("acquire ms", 3), ("release ms", 3), ("run true ms", 2)],
    );
    let mut figures = Vec::new();
    for store in stores {
        let times = [store.acquired, store.released, store.runs].map(|times| ms(Sample::new(times).p50()));
        section.row(store.name, &times);
        figures.push(times);
    }
    let ratio = |column: usize| figures[1][column] / figures[0][column];
    section.target("acquire over open connections, x one server", ratio(0), Target::AtMost(1.3));
    section.target("a whole run, x one server", ratio(2), Target::AtMost(1.3));
    Ok(section)
}

fn time_of_a_run(bench: &Bench, url: &str) -> Result<Duration, Box<dyn Error>> {
    let mut command = bench.dlock(&["-b", url, "x", "--", "true"]);
    command.stdout(Stdio::null());
    let start = Instant::now();
    let status = command.status()?;
    let took = start.elapsed();
    if !status.success() {
        return Err(format!("dlock run on {url} ended with {status}").into());
    }
    Ok(took)
}
