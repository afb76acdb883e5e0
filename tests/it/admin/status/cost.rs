//! The cost of status: in proportion to the number of locks, and in small steps.

use super::{parse, status};
use crate::support::redis::{Connection, Redis};
use crate::support::resp::Value;
use crate::support::running::Exit;
use crate::support::store::Store;
use std::collections::BTreeSet;

/// Locks as dlocks store them, without the processes: ARGV is their number.
const LOCKS: &str = r#"
local now = redis.call('TIME')
for i = 1, tonumber(ARGV[1]) do
  local lock = string.format('dlock:job-%05d', i)
  local tail, token = '{' .. lock .. '}', string.format('%032d', i)
  local member = 'dlock#member:' .. tail .. ':' .. token
  redis.call('SET', lock, token, 'PX', 3600000)
  redis.call('HSET', 'dlock#holder:' .. tail, 'format', '1', 'value', token, 'mode', 'x', 'slots', '1', 'm:' .. token, '')
  redis.call('SET', member, '{"fencing":' .. i .. ',"lease":3600000,"at":' .. now[1] .. '000,"identity":{"host":"web-' .. i ..
    '","pid":4121,"user":"root","command":"backup.sh","start":123456,"boot":"01234567-0123-0123-0123-0123456789ab"}}', 'PX', 3600000)
  redis.call('ZADD', 'dlock#locks', now[1] * 1000 + 90000000, lock)
end
"#;

/// One lock with many holders and many waiters: ARGV is the number of each.
const CROWD: &str = r#"
local now, lock, value = redis.call('TIME'), 'dlock:crowd', 'dlock:c500:1'
local tail = '{' .. lock .. '}'
local function identity(i)
  return '{"host":"web-' .. i .. '","pid":' .. i .. ',"user":"root","command":"render.sh","note":"' .. string.rep('n', 200) .. '"}'
end
redis.call('SET', lock, value, 'PX', 3600000)
redis.call('HSET', 'dlock#holder:' .. tail, 'format', '2', 'value', value, 'mode', 'c', 'slots', ARGV[1])
for i = 1, tonumber(ARGV[1]) do
  local token = string.format('%032d', i)
  redis.call('HSET', 'dlock#holder:' .. tail, 'm:' .. token, i - 1)
  redis.call('SET', 'dlock#member:' .. tail .. ':' .. token,
    '{"fencing":' .. i .. ',"lease":3600000,"at":' .. now[1] .. '000,"identity":' .. identity(i) .. '}', 'PX', 3600000)
end
redis.call('HSET', 'dlock#waiters:' .. tail, 'format', '1', 'slots', ARGV[1])
for i = 1, tonumber(ARGV[2]) do
  local token = string.format('%032d', 100000 + i)
  redis.call('ZADD', 'dlock#queue:' .. tail, string.format('%.0f', (now[1] - 5000 + i) * 1000000), token)
  redis.call('HSET', 'dlock#waiters:' .. tail, token,
    'c ' .. ARGV[1] .. ' 1 ' .. string.format('%.0f', now[1] * 1000 + 3600000) .. ' 0 ' .. identity(i))
end
redis.call('ZADD', 'dlock#locks', now[1] * 1000 + 90000000, lock)
"#;

/// How often each command was called since the statistics were reset, by anybody, scripts too.
fn calls(client: &mut Connection) -> Vec<(String, u64)> {
    let info = client.command(&["INFO", "commandstats"]).text();
    let call = |line: &str| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))
    };
    info.lines().filter_map(call).filter(|(_, calls)| *calls > 0).collect()
}

#[test]
fn ten_thousand_locks_among_many_other_keys_are_listed_in_batches() {
    let redis = Redis::start();
    let store = Store::on(&redis);
    let mut client = redis.connect();
    assert_eq!(client.command(&["EVAL", LOCKS, "0", "10000"]), Value::Nil);
    let others = "for i = 1, 200000 do redis.call('SET', 'app:' .. i, 'x') end";
    assert_eq!(client.command(&["EVAL", others, "0"]), Value::Nil);
    for json in [true, false] {
        client.command(&["CONFIG", "RESETSTAT"]);
        let output = status(&store).args(json.then_some("--json")).output();
        assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""));
        let expected: BTreeSet<String> = (1..=10_000).map(|number| format!("job-{number:05}")).collect();
        let shown: BTreeSet<String> = match json {
            true => {
                let seen = parse(&output.stdout);
                let locks = seen["locks"].as_array().unwrap();
                assert!(locks.iter().all(|lock| lock["holders"][0]["pid"] == 4121));
                locks.iter().map(|lock| lock["name"].as_str().unwrap().to_owned()).collect()
            }
            false => output.stdout.lines().skip(2).map(|line| super::cells(line)[0].to_owned()).collect(),
        };
        assert_eq!(shown, expected);
        let calls = calls(&mut client);
        let of = |names: &[&str]| -> u64 {
            calls.iter().filter(|(name, _)| names.contains(&name.as_str())).map(|(_, calls)| calls).sum()
        };
        assert_eq!(of(&["keys", "scan", "dbsize", "randomkey"]), 0, "{calls:?}");
        // The number of locks inspected in one step is limited, and close to the limit.
        let steps = of(&["eval", "evalsha"]);
        assert!((10_000 / 64..=10_000 / 16).contains(&steps), "{calls:?}");
        assert!(of(&["zscan"]) <= 100, "{calls:?}");
        let commands: u64 = calls.iter().map(|(_, calls)| calls).sum();
        assert!(commands <= 10 * 10_000, "{calls:?}");
    }
}

/// All are shown, however many there are, and no reply exceeds the length that dlock accepts.
#[test]
fn all_clients_of_a_crowded_lock_are_shown() {
    let redis = Redis::start();
    let store = Store::on(&redis);
    let mut client = redis.connect();
    assert_eq!(client.command(&["EVAL", CROWD, "0", "500", "1000"]), Value::Nil);
    client.command(&["CONFIG", "RESETSTAT"]);
    let output = status(&store).arg("--json").output();
    assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""));
    let seen = parse(&output.stdout);
    let lock = &seen["locks"][0];
    let slots: BTreeSet<u64> =
        lock["holders"].as_array().unwrap().iter().map(|holder| holder["slot"].as_u64().unwrap()).collect();
    assert_eq!(slots, (0..500).collect());
    assert_eq!(lock["holders"].as_array().unwrap().len(), 500);
    let line: Vec<_> =
        lock["waiters"].as_array().unwrap().iter().map(|waiter| waiter["pid"].as_u64().unwrap()).collect();
    assert_eq!(line, (1..=1000).collect::<Vec<_>>());
    let steps: u64 =
        calls(&mut client).iter().filter(|(name, _)| name.starts_with("eval")).map(|(_, calls)| calls).sum();
    assert!((5..=40).contains(&steps), "{steps}");
    let table = status(&store).output().stdout;
    assert_eq!(table.lines().count(), 2 + 500 + 1000);
    assert!(table.contains("slot 499 of 500") && table.contains("waits #1000, slots"));
}

/// A thousand waiters for a lock on this host.
#[test]
fn many_names_are_inspected_at_once() {
    let redis = Redis::start();
    let store = Store::on(&redis);
    assert_eq!(redis.command(&["EVAL", LOCKS, "0", "3"]), Value::Nil);
    let names: Vec<String> = (1..=3000).map(|number| format!("job-{number:05}")).collect();
    let output = status(&store).arg("--json").args(&names).output();
    assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""));
    let seen = parse(&output.stdout);
    let locks = seen["locks"].as_array().unwrap();
    let shown: Vec<_> = locks.iter().map(|lock| lock["name"].as_str().unwrap()).collect();
    assert_eq!(shown, names);
    assert_eq!(locks.iter().filter(|lock| lock["state"] == "held").count(), 3);
}
