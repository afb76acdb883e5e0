//! What is special to Memcached: what it refuses, what is wrong with a server, and how locks are lost.

mod breaks;
mod doctor;
mod errors;
mod faults;
mod ledger;
mod lost_replies;
mod refusals;
