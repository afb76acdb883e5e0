//! Servers of the versions in use.

use super::redis::{Options, Redis};
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
        let name = match self {
            Self::System => return None,
            Self::Redis6_0 => "redis-6.0",
            Self::Redis8_0 => "redis-8.0",
            Self::Valkey8_1 => "valkey-8.1",
        };
        let directory = std::env::var_os("DLOCK_TEST_SERVERS").map(PathBuf::from);
        let directory =
            directory.unwrap_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/target/servers").into());
        let program = directory.join(name).join("server");
        assert!(program.exists(), "{} is missing: run tests/servers.sh", program.display());
        Some(program)
    }
}
