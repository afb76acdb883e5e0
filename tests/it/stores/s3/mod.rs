//! Locks in S3. What they have in common with every store is in the conformance suite.

mod credentials;
mod doctor;
mod errors;
mod fake;
mod lost_replies;
mod proxies;
mod requests;
