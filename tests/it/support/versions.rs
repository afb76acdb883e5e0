//! Servers of the versions in use.

use super::redis::{Options, Redis};
use super::server::other_version;
use std::path::PathBuf;

/// A product and its version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// The first version with RESP3.
    Redis6_0,
    /// The version of this system, Redis 7.0 on Debian 12.
    System,
    Redis8_0,
    Valkey8_1,
    Valkey9,
}

/// Defines one test for each version from each function of a version.
macro_rules! each_version {
    ($($(#[$meta:meta])* $name:ident;)+) => { $(
        $(#[$meta])*
        mod $name {
            use crate::support::versions::Version;

            #[test]
            fn redis_6_0() {
                super::$name(Version::Redis6_0);
            }

            #[test]
            fn of_this_system() {
                super::$name(Version::System);
            }

            #[test]
            fn redis_8_0() {
                super::$name(Version::Redis8_0);
            }

            #[test]
            fn valkey_8_1() {
                super::$name(Version::Valkey8_1);
            }

            #[test]
            fn valkey_9() {
                super::$name(Version::Valkey9);
            }
        }
    )+ };
}
pub(crate) use each_version;

impl Version {
    /// Starts one with default options.
    pub fn start(self) -> Redis {
        self.start_with(Options::default())
    }

    /// Starts one with additional arguments.
    pub fn start_with_args(self, args: &[&str]) -> Redis {
        self.start_with(Options {
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            ..Options::default()
        })
    }

    /// Starts one.
    pub fn start_with(self, options: Options) -> Redis {
        Redis::start_with(Options { program: self.program(), ..options })
    }

    /// The path that tests/servers.sh has installed it to.
    fn program(self) -> Option<PathBuf> {
        Some(other_version(match self {
            Self::System => return None,
            Self::Redis6_0 => "redis-6.0",
            Self::Redis8_0 => "redis-8.0",
            Self::Valkey8_1 => "valkey-8.1",
            Self::Valkey9 => "valkey-9",
        }))
    }
}
