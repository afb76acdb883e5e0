//! Locks in DynamoDB. What they have in common with every store is in the conformance suite, and what AWS's credentials are, in
//! `stores::s3::credentials`.

mod doctor;
mod errors;
mod lock_client;
mod lost_replies;
mod proxies;
mod requests;
