//! A master named by sentinels: which one is used, and what happens to a lock when it is replaced.
//!
//! Real sentinels cannot be controlled by a test, and take seconds. So most of these tests use fake ones with scripted
//! replies, in front of real servers; those of `failover` have real ones.

mod authentication;
mod doctor;
mod failover;
mod master_change;
mod master_choice;
mod replicas;
mod stage;
