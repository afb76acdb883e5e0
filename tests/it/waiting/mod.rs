//! Waiting in line: first come, first served, whoever dies, sleeps, or does not hear that it is his turn.

#[cfg(feature = "redis")]
mod crashed_hosts;
mod crowd;
mod crowds;
mod dead_heads;
#[cfg(feature = "redis")]
mod farewells;
mod last_moment;
mod leaving;
#[cfg(feature = "redis")]
mod lost_words;
mod notices;
#[cfg(feature = "redis")]
mod poor_stores;
pub mod scene;
#[cfg(feature = "redis")]
mod storms;
#[cfg(feature = "redis")]
mod traffic;
