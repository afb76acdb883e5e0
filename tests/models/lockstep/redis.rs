//! A Redis in memory, with the commands that the scripts of dlock use and a clock that the test sets.

use std::collections::BTreeMap;
use std::collections::VecDeque;

/// A server with one database.
#[derive(Clone, Debug, Default)]
pub(super) struct Redis {
    /// In microseconds since 1970.
    pub(super) now: u64,
    keys: BTreeMap<String, Entry>,
    /// The channels that have a subscriber.
    pub(super) subscriptions: Vec<String>,
    /// What the last script has published: channel and message.
    pub(super) published: Vec<(String, String)>,
}

#[derive(Clone, Debug)]
struct Entry {
    value: Value,
    /// In ms since 1970.
    expires_at: Option<u64>,
}

#[derive(Clone, Debug)]
enum Value {
    Text(String),
    Hash(BTreeMap<String, String>),
    /// Scores by member.
    SortedSet(BTreeMap<String, f64>),
    List(VecDeque<String>),
}

/// The reply to a command.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Reply {
    Nil,
    Number(i64),
    Text(String),
    Status(&'static str),
    Array(Vec<Reply>),
    Error(String),
}

const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

/// A collection that a command creates or reads.
trait Kind: Default {
    fn of(value: &mut Value) -> Option<&mut Self>;
    fn into_value(self) -> Value;
    fn is_empty(&self) -> bool;
}

macro_rules! kind {
    ($kind:ty, $variant:ident) => {
        impl Kind for $kind {
            fn of(value: &mut Value) -> Option<&mut Self> {
                match value {
                    Value::$variant(kind) => Some(kind),
                    _ => None,
                }
            }

            fn into_value(self) -> Value {
                Value::$variant(self)
            }

            fn is_empty(&self) -> bool {
                <$kind>::is_empty(self)
            }
        }
    };
}
kind!(BTreeMap<String, String>, Hash);
kind!(BTreeMap<String, f64>, SortedSet);
kind!(VecDeque<String>, List);

type Fields = BTreeMap<String, String>;
type Scores = BTreeMap<String, f64>;
type Elements = VecDeque<String>;

impl Redis {
    /// Returns an empty server.
    pub(super) fn new(now: u64) -> Redis {
        Redis { now, ..Redis::default() }
    }

    fn now_ms(&self) -> u64 {
        self.now / 1000
    }

    /// Removes the keys that have expired, as `expireIfNeeded` in db.c does: not in the millisecond of their expiry.
    fn expire(&mut self) {
        let now = self.now_ms();
        self.keys.retain(|_, entry| entry.expires_at.is_none_or(|at| now <= at));
    }

    /// Returns when a key expires, in ms since 1970.
    pub(super) fn expiries(&self) -> Vec<u64> {
        self.keys.values().filter_map(|entry| entry.expires_at).collect()
    }

    /// Returns a string, unless it has expired.
    pub(super) fn text(&self, key: &str) -> Option<&String> {
        match self.keys.get(key)? {
            Entry { value: Value::Text(text), expires_at } => {
                expires_at.is_none_or(|at| self.now_ms() <= at).then_some(text)
            }
            _ => None,
        }
    }

    /// Returns a field of a hash, without an effect.
    pub(super) fn field(&self, key: &str, field: &str) -> Option<&str> {
        match &self.keys.get(key)?.value {
            Value::Hash(fields) => fields.get(field).map(String::as_str),
            _ => None,
        }
    }

    /// Returns the members of a sorted set in order, without an effect.
    pub(super) fn members(&self, key: &str) -> Vec<String> {
        match self.keys.get(key).map(|entry| &entry.value) {
            Some(Value::SortedSet(scores)) => ranked(scores).into_iter().map(|(member, _)| member).collect(),
            _ => Vec::new(),
        }
    }

    /// Returns all that is stored, as text.
    pub(super) fn dump(&self) -> String {
        let lines = self.keys.iter().map(|(key, Entry { value, expires_at })| match expires_at {
            Some(at) => format!("{key} {value:?} until {at}\n"),
            None => format!("{key} {value:?}\n"),
        });
        lines.collect()
    }

    /// Executes a command.
    pub(super) fn execute(&mut self, arguments: &[String]) -> Reply {
        self.expire();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let reply = self
            .strings(&arguments)
            .or_else(|| self.hashes(&arguments))
            .or_else(|| self.sorted_sets(&arguments))
            .or_else(|| self.lists(&arguments))
            .or_else(|| self.server(&arguments));
        reply.unwrap_or_else(|| panic!("the server in memory lacks this command: {arguments:?}"))
    }

    fn strings(&mut self, arguments: &[&str]) -> Option<Reply> {
        Some(match *arguments {
            ["GET", key] => match self.keys.get(key).map(|entry| &entry.value) {
                None => Reply::Nil,
                Some(Value::Text(text)) => Reply::Text(text.clone()),
                Some(_) => Reply::Error(WRONG_TYPE.to_owned()),
            },
            ["STRLEN", key] => match self.keys.get(key).map(|entry| &entry.value) {
                None => Reply::Number(0),
                Some(Value::Text(text)) => Reply::Number(text.len() as i64),
                Some(_) => Reply::Error(WRONG_TYPE.to_owned()),
            },
            ["SET", key, text, ref options @ ..] => {
                let expires_at = match *options {
                    ["PX", lease] => Some(self.now_ms() + lease.parse::<u64>().unwrap()),
                    [] => None,
                    _ => return None,
                };
                self.keys.insert(key.to_owned(), Entry { value: Value::Text(text.to_owned()), expires_at });
                Reply::Status("OK")
            }
            ["DEL", key] => Reply::Number(self.keys.remove(key).is_some().into()),
            ["EXISTS", key] => Reply::Number(self.keys.contains_key(key).into()),
            ["TYPE", key] => Reply::Status(match self.keys.get(key).map(|entry| &entry.value) {
                None => "none",
                Some(Value::Text(_)) => "string",
                Some(Value::Hash(_)) => "hash",
                Some(Value::SortedSet(_)) => "zset",
                Some(Value::List(_)) => "list",
            }),
            ["PTTL", key] => Reply::Number(match self.keys.get(key) {
                None => -2,
                Some(Entry { expires_at: None, .. }) => -1,
                Some(Entry { expires_at: Some(at), .. }) => (at - self.now_ms()) as i64,
            }),
            ["PEXPIRE", key, lasts, ref options @ ..] => {
                let (now, lasts) = (self.now_ms(), lasts.parse::<i64>().unwrap());
                let Some(entry) = self.keys.get_mut(key) else { return Some(Reply::Number(0)) };
                let is_set = match *options {
                    [] => true,
                    ["NX"] => entry.expires_at.is_none(),
                    ["GT"] => entry.expires_at.is_some_and(|at| now.saturating_add_signed(lasts) > at),
                    _ => return None,
                };
                if !is_set {
                    return Some(Reply::Number(0));
                }
                entry.expires_at = Some(now.saturating_add_signed(lasts));
                if lasts <= 0 {
                    self.keys.remove(key);
                }
                Reply::Number(1)
            }
            _ => return None,
        })
    }

    /// Applies a function to a collection, which is created if it does not exist, and removed when it is empty.
    fn with<K: Kind>(&mut self, key: &str, apply: impl FnOnce(&mut K) -> Reply) -> Reply {
        let Some(entry) = self.keys.get_mut(key) else {
            let mut kind = K::default();
            let reply = apply(&mut kind);
            if !kind.is_empty() {
                self.keys.insert(key.to_owned(), Entry { value: kind.into_value(), expires_at: None });
            }
            return reply;
        };
        let Some(kind) = K::of(&mut entry.value) else { return Reply::Error(WRONG_TYPE.to_owned()) };
        let reply = apply(kind);
        if kind.is_empty() {
            self.keys.remove(key);
        }
        reply
    }

    fn hashes(&mut self, arguments: &[&str]) -> Option<Reply> {
        let text = |text: Option<&String>| text.map_or(Reply::Nil, |text| Reply::Text(text.clone()));
        Some(match *arguments {
            ["HSET", key, ref pairs @ ..] => self.with(key, |hash: &mut Fields| {
                let new = pairs
                    .chunks(2)
                    .filter(|pair| hash.insert(pair[0].to_owned(), pair[1].to_owned()).is_none());
                Reply::Number(new.count() as i64)
            }),
            ["HGET", key, field] => self.with(key, |hash: &mut Fields| text(hash.get(field))),
            ["HMGET", key, ref fields @ ..] => self.with(key, |hash: &mut Fields| {
                Reply::Array(fields.iter().map(|field| text(hash.get(*field))).collect())
            }),
            ["HDEL", key, ref fields @ ..] => self.with(key, |hash: &mut Fields| {
                Reply::Number(fields.iter().filter(|field| hash.remove(**field).is_some()).count() as i64)
            }),
            ["HEXISTS", key, field] => {
                self.with(key, |hash: &mut Fields| Reply::Number(hash.contains_key(field).into()))
            }
            ["HLEN", key] => self.with(key, |hash: &mut Fields| Reply::Number(hash.len() as i64)),
            ["HGETALL", key] => self.with(key, |hash: &mut Fields| {
                let pairs = hash.iter().flat_map(|(field, value)| [field, value]);
                Reply::Array(pairs.map(|part| Reply::Text(part.clone())).collect())
            }),
            _ => return None,
        })
    }

    fn sorted_sets(&mut self, arguments: &[&str]) -> Option<Reply> {
        Some(match *arguments {
            ["ZADD", key, "XX", score, member] => self.with(key, |set: &mut Scores| {
                if let Some(known) = set.get_mut(member) {
                    *known = score.parse().unwrap();
                }
                Reply::Number(0)
            }),
            ["ZADD", key, "GT", score, member] => self.with(key, |set: &mut Scores| {
                let score = score.parse().unwrap();
                let known = set.entry(member.to_owned()).or_insert(score);
                *known = known.max(score);
                Reply::Number(0)
            }),
            ["ZADD", key, score, member] => self.with(key, |set: &mut Scores| {
                Reply::Number(set.insert(member.to_owned(), score.parse().unwrap()).is_none().into())
            }),
            ["ZREM", key, member] => {
                self.with(key, |set: &mut Scores| Reply::Number(set.remove(member).is_some().into()))
            }
            ["ZCARD", key] => self.with(key, |set: &mut Scores| Reply::Number(set.len() as i64)),
            ["ZSCORE", key, member] => self.with(key, |set: &mut Scores| {
                set.get(member).map_or(Reply::Nil, |score| Reply::Text(score.to_string()))
            }),
            ["ZRANK", key, member] => self.with(key, |set: &mut Scores| {
                let rank = ranked(set).iter().position(|(one, _)| one == member);
                rank.map_or(Reply::Nil, |rank| Reply::Number(rank as i64))
            }),
            ["ZRANGE", key, from, to, ref options @ ..] => self.with(key, |set: &mut Scores| {
                let ranked = ranked(set);
                let range = range(ranked.len(), from, to);
                let with_scores = options == ["WITHSCORES"];
                let parts = ranked[range].iter().flat_map(|(member, score)| {
                    [Some(member.clone()), with_scores.then(|| score.to_string())].into_iter().flatten()
                });
                Reply::Array(parts.map(Reply::Text).collect())
            }),
            ["ZREMRANGEBYSCORE", key, "-inf", most] => self.with(key, |set: &mut Scores| {
                let (before, most) = (set.len(), most.parse::<f64>().unwrap());
                set.retain(|_, score| *score > most);
                Reply::Number((before - set.len()) as i64)
            }),
            _ => return None,
        })
    }

    fn lists(&mut self, arguments: &[&str]) -> Option<Reply> {
        Some(match *arguments {
            ["LPUSH", key, element] => self.with(key, |list: &mut Elements| {
                list.push_front(element.to_owned());
                Reply::Number(list.len() as i64)
            }),
            ["LTRIM", key, from, to] => self.with(key, |list: &mut Elements| {
                let range = range(list.len(), from, to);
                *list = list.drain(range).collect();
                Reply::Status("OK")
            }),
            ["LRANGE", key, from, to] => self.with(key, |list: &mut Elements| {
                let range = range(list.len(), from, to);
                Reply::Array(list.range(range).map(|element| Reply::Text(element.clone())).collect())
            }),
            ["LREM", key, "-1", element] => self.with(key, |list: &mut Elements| {
                let last = list.iter().rposition(|one| one == element);
                Reply::Number(last.and_then(|last| list.remove(last)).is_some().into())
            }),
            _ => return None,
        })
    }

    fn server(&mut self, arguments: &[&str]) -> Option<Reply> {
        Some(match *arguments {
            ["TIME"] => {
                let parts = [self.now / 1_000_000, self.now % 1_000_000];
                Reply::Array(parts.map(|part| Reply::Text(part.to_string())).into())
            }
            ["PUBLISH", channel, message] => {
                let receivers = self.subscriptions.iter().filter(|one| *one == channel).count();
                self.published.push((channel.to_owned(), message.to_owned()));
                Reply::Number(receivers as i64)
            }
            ["MEMORY", "USAGE", _] => Reply::Nil,
            _ => return None,
        })
    }
}

/// Returns the members of a sorted set by score, those of one score by name.
fn ranked(set: &Scores) -> Vec<(String, f64)> {
    let mut ranked: Vec<(String, f64)> = set.iter().map(|(member, score)| (member.clone(), *score)).collect();
    ranked.sort_by(|one, other| one.1.total_cmp(&other.1));
    ranked
}

/// Returns the range of a command, whose negative limits count from the end.
fn range(length: usize, from: &str, to: &str) -> std::ops::Range<usize> {
    let at = |limit: &str| {
        let limit = limit.parse::<isize>().unwrap();
        if limit < 0 { length as isize + limit } else { limit }
    };
    let end = (at(to) + 1).clamp(0, length as isize) as usize;
    (at(from).max(0) as usize).min(end)..end
}
